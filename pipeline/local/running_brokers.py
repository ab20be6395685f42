"""List and stop the local brokers of this user.

An announced broker has a file named by its port, which its guard locks. A file without a lock is
the leftover of a crash, and is ignored.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.errors import LocalKafkaError
from pipeline.local.cache_folders import file_lock, print_to_stderr, state_root, xdg_directory
from pipeline.local.port_probe import HOST, broker_racks, has_certificate_of

_STOP_SECONDS = 40.0


@dataclass(frozen=True)
class RunningBroker:
    """The announcement of a broker; `started_at` is RFC 3339. One with `ca_file` is secure."""

    port: int
    pid: int
    guard_pid: int
    identity: str
    data_dir: str
    log_file: str
    java: str
    started_at: str
    ca_file: str | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def answers(self) -> bool:
        """Return whether this broker, not another on its port, answers a metadata request."""
        if self.ca_file is None:
            return self.identity in broker_racks(self.port)
        # A secure broker tells its rack to users only; its CA is its own.
        return has_certificate_of(self.port, self.ca_file)


def state_file(port: int) -> Path:
    """Return the file that announces the broker on this port."""
    return _state_dir() / f"{port}.json"


def make_state_dir() -> None:
    """Create the directory that announces brokers. Raises `LocalKafkaError` if that fails."""
    try:
        _state_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalKafkaError(
            f"cannot create {_state_dir()}: {error.strerror}",
            hint="set XDG_STATE_HOME to a writable directory",
        ) from error


@contextmanager
def one_start_at_a_time() -> Iterator[None]:
    """Wait until no other start of this user is between the look at `running_brokers` and its
    announcement: two on one port or data directory would both see nobody."""
    waiting = "waiting for another `springtide kafka start` ..."
    with file_lock(_state_dir() / "start.lock", print_to_stderr, waiting):
        yield


def default_data_dir() -> Path:
    return xdg_directory("XDG_DATA_HOME", ".local/share") / "springtide" / "kafka"


def running_brokers() -> list[RunningBroker]:
    """Return the running announced brokers, sorted by port."""
    brokers = [_read(path) for path in _state_dir().glob("*.json")]
    return sorted((broker for broker in brokers if broker), key=lambda broker: broker.port)


def stop_running(broker: RunningBroker) -> None:
    """Stop a broker and wait for its end. Raises `LocalKafkaError` after 40 s."""
    try:
        os.kill(broker.guard_pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LocalKafkaError(
            f"no permission to stop the broker on port {broker.port} (pid {broker.guard_pid})",
            hint="it belongs to another user",
        ) from error
    deadline = time.monotonic() + _STOP_SECONDS
    while _read(state_file(broker.port)) == broker:
        if time.monotonic() > deadline:
            raise LocalKafkaError(
                f"the broker on port {broker.port} did not stop within {_STOP_SECONDS:.0f} s",
                hint=f"see {broker.log_file}; `kill -9 {broker.guard_pid}` ends it at once",
            )
        time.sleep(0.05)


def _read(path: Path) -> RunningBroker | None:
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=RunningBroker)
    except (OSError, ValueError):
        return None
    return None


def _state_dir() -> Path:
    return state_root() / "kafka"
