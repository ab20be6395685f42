"""Which local brokers run on this machine for this user, and how to stop one from outside.

A broker that was announced has a file named by its port, which its keeper keeps locked; a file
that nobody locks was left by a crash or a power cut and means nothing.
"""

import fcntl
import json
import os
import signal
import time
from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.errors import LocalKafkaError
from pipeline.local.cache_folders import xdg
from pipeline.local.port_probe import HOST, answering_racks

_STOP_SECONDS = 40.0


@dataclass(frozen=True)
class RunningBroker:
    """What a broker's announcement says; `started_at` is RFC 3339."""

    port: int
    pid: int
    keeper_pid: int
    identity: str
    data_dir: str
    log_file: str
    java: str
    started_at: str

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def answers(self) -> bool:
        """Whether this very broker answers a metadata request now."""
        return self.identity in answering_racks(self.port)


def state_file(port: int) -> Path:
    """Where the broker on this port is announced."""
    return _state_dir() / f"{port}.json"


def default_data_dir() -> Path:
    """Where `springtide kafka start` keeps the data."""
    return xdg("XDG_DATA_HOME", ".local/share") / "springtide" / "kafka"


def running_brokers() -> list[RunningBroker]:
    """The announced brokers that run, by port."""
    found = [_read(path) for path in _state_dir().glob("*.json")]
    return sorted((one for one in found if one), key=lambda one: one.port)


def stop_running(broker: RunningBroker) -> None:
    """Stop it and wait until it is gone; LocalKafkaError if it is not within 40 s."""
    try:
        os.kill(broker.keeper_pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LocalKafkaError(
            f"may not stop the broker on port {broker.port} (pid {broker.keeper_pid})",
            hint="it belongs to another user",
        ) from error
    deadline = time.monotonic() + _STOP_SECONDS
    while _read(state_file(broker.port)) == broker:
        if time.monotonic() > deadline:
            raise LocalKafkaError(
                f"the broker on port {broker.port} did not stop within {_STOP_SECONDS:.0f} s",
                hint=f"see {broker.log_file}; kill -9 {broker.keeper_pid} ends it at once",
            )
        time.sleep(0.05)


def _read(path: Path) -> RunningBroker | None:
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                state = json.load(file)
                return RunningBroker(**{one.name: state[one.name] for one in fields(RunningBroker)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _state_dir() -> Path:
    return xdg("XDG_STATE_HOME", ".local/state") / "springtide" / "kafka"
