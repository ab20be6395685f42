"""Restart a worker that has ended, where neither Kubernetes nor systemd does.

A worker ends whenever it cannot be sure of its state (a failed delivery, an unknown exception),
because a restart is cheap and exact. All children of one supervisor share a static group
membership, so a restarted worker gets its partitions back before its session times out.
"""

import ctypes
import fcntl
import itertools
import random
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pipeline.errors import SettingsError, UsageError
from pipeline.logs import get_logger

log = get_logger(__name__)

_PR_SET_PDEATHSIG = 1
STOP_SECONDS = 30.0
_FINAL_EXIT_CODES = frozenset({SettingsError.exit_code, UsageError.exit_code})
"""Exit codes after which a restart with the same arguments would fail in the same way."""


@contextmanager
def claim_member_name(folder: Path, group: str) -> Iterator[str]:
    """Return a member name of `group` that is unique on this machine while the block runs.

    Names are reused: a static member does not leave the group when it ends, so a successor of the
    same name gets its partitions at once instead of after the session time-out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        with (folder / f"{group}-{number}.member").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            file.seek(0)
            name = file.read().strip()
            if not name:
                name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
                file.write(name)
                file.flush()
            yield name
            return


class Supervisor:
    """Runs `argv` again until it succeeds, its failure is final, or a signal arrives.

    The pause before a restart doubles up to `pause_max` seconds, times 0.5 to 1.5, so that workers
    that failed together do not return at once. It starts at `pause_min` again
    once a child has run for twice `pause_max`: a child that fails sooner after its start would
    otherwise be restarted without growing pauses.
    """

    def __init__(self, argv: Sequence[str], pause_min: float, pause_max: float) -> None:
        self._argv = list(argv)
        self._pauses = (pause_min, pause_max)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Run the child, and return the exit code: the child's if it is final, 0 after a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        pause, longest = self._pauses
        while not self._stopping:
            start = time.monotonic()
            code = self._run_once()
            if self._stopping or code == 0 or code in _FINAL_EXIT_CODES:
                return 0 if self._stopping else code
            if time.monotonic() - start > 2 * longest:
                pause = self._pauses[0]
            seconds = round(pause * (0.5 + random.random()), 2)
            log.warning("worker ended, restarting", exit_code=code, pause_seconds=seconds)
            self.pause(seconds)
            pause = min(2 * pause, longest)
        return 0

    def _run_once(self) -> int:
        self._child = subprocess.Popen(self._argv, preexec_fn=_end_with_parent)
        if self._stopping:
            self._child.terminate()
        return self._child.wait()

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        # `wait` continues after a signal. The alarm kills a child that ignores SIGTERM.
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        if self._child is not None and self._child.poll() is None:
            log.error("worker did not stop in time, killed", seconds=STOP_SECONDS)
            self._child.kill()


def _end_with_parent() -> None:
    # A killed supervisor must not leave a worker behind, and Ctrl-C must not reach the child twice,
    # from the terminal and from the supervisor.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
