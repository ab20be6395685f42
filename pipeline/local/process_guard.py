"""A small process between a program and its broker, which stops the broker if the program ends.

The guard is the parent of the child process, and owns a temporary directory. It reads requests as
lines of JSON from its standard input. When the input ends, because the program closed it or ended
(even by kill -9), the guard stops the child, removes the directory and ends. After the request
`detach` it outlives the program, and does the same on SIGTERM. If the guard is killed, the kernel
kills the child.

The script uses only the standard library, and runs in its own session:
`python -I process_guard.py [DIRECTORY-TO-REMOVE]`. Requests with their answers:

    {"do": "start", "argv": [...], "log": path, "cwd": path}   {"pid": 123}
    {"do": "stop", "signal": 15, "grace_seconds": 20}          {"stopped": 143}
    {"do": "announce", "path": path, "state": {...}}           {"announced": path}
    {"do": "detach"}                                           {"detached": true}

When the child ends early, the guard writes {"exited": code}. A failed request is answered with
{"error": text}. The guard holds a lock (flock) on the announced file, which distinguishes a running
broker from the leftover of a crash.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

_PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 20.0


class ProcessGuard:
    """Runs one child process, and removes `remove` at the end."""

    def __init__(self, remove: Path | None) -> None:
        self.remove = remove
        self.child: subprocess.Popen[bytes] | None = None
        self.announced: TextIO | None = None
        self.announced_path: Path | None = None
        self.detached = False
        self.ending = False
        self.wake, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def run(self) -> None:
        """Handle requests until the program or the child has ended, then clean up."""
        try:
            pending = b""
            while not self.ending:
                watched = [self.wake] if self.detached else [self.wake, 0]
                ready, _, _ = select.select(watched, [], [])
                if self.wake in ready:
                    os.read(self.wake, 4096)
                    self._reap()
                if 0 in ready:
                    data = os.read(0, 65536)
                    if not data:
                        return
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._handle(json.loads(line))
        finally:
            self._clean_up()

    def _handle(self, request: dict[str, Any]) -> None:
        try:
            match request:
                case {"do": "start", "argv": argv, "log": log, "cwd": cwd}:
                    self._reply(pid=self._start(argv, log, cwd))
                case {"do": "stop", "signal": number, "grace_seconds": grace_seconds}:
                    self._reply(stopped=self._stop(number, grace_seconds))
                case {"do": "announce", "path": path, "state": state}:
                    self._announce(Path(path), state)
                    self._reply(announced=path)
                case {"do": "detach"}:
                    self.detached = True
                    self._reply(detached=True)
                case _:
                    self._reply(error=f"not a request: {request!r}")
        except OSError as error:
            self._reply(error=str(error))

    def _start(self, argv: list[str], log: str, cwd: str) -> int:
        with Path(log).open("ab") as output:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                process_group=0,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        return self.child.pid

    def _stop(self, number: int, grace_seconds: float) -> int | None:
        if self.child is None:
            return None
        child, self.child = self.child, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        try:
            return child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            return child.wait()

    def _reap(self) -> None:
        if self.child is None or self.child.poll() is None:
            return
        code, self.child = self.child.returncode, None
        self._reply(exited=code)
        if self.detached:
            self.ending = True

    def _announce(self, path: Path, state: dict[str, Any]) -> None:
        # Lock and write the file before the rename: an unlocked file is a leftover.
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        file = temporary.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({**state, "guard_pid": os.getpid()}, file)
        file.flush()
        temporary.replace(path)
        self.announced, self.announced_path = file, path

    def _reply(self, **answer: object) -> None:
        # The program may have ended; the guard cleans up anyway.
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(answer).encode() + b"\n")

    def _clean_up(self) -> None:
        if self.child is not None:
            self._reply(exited=self._stop(signal.SIGTERM, GRACE_SECONDS))
        if self.remove is not None:
            shutil.rmtree(self.remove, ignore_errors=True)
        if self.announced_path is not None:
            self.announced_path.unlink(missing_ok=True)


def die_with_parent() -> None:
    """Let the kernel kill the calling process when its parent ends; for `preexec_fn`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    ProcessGuard(Path(sys.argv[1]) if len(sys.argv) > 1 else None).run()
