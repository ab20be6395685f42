"""Run a child process that ends with this process, by a guard (`pipeline.local.process_guard`).

The guard is a process and not a thread or an exit handler, because neither runs when this process
is killed.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.errors import LocalKafkaError, SpringtideError
from pipeline.local import process_guard


class GuardedProcess:
    """A child process and its guard, which removes the directory `remove` at the end.

    The output of the child and errors of the guard go to `log`. Failures raise `error`, and name
    the child `name`.
    """

    def __init__(
        self,
        log: Path,
        remove: Path | None,
        name: str = "broker",
        error: type[SpringtideError] = LocalKafkaError,
    ) -> None:
        self._log = log
        self._name = name
        self._error = error
        # The exit code, unless `signal` ended the child; negative for a signal.
        self.exit_code: int | None = None
        self._running = False
        self._received = b""
        with log.open("ab") as errors:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", process_guard.__file__, *([str(remove)] if remove else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                # Java encodes paths by the locale, and not all are ASCII.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                bufsize=0,
            )

    def start(self, argv: list[str], cwd: Path) -> int:
        """Start the child, and return its process id."""
        # Set first, because the child's end can be reported together with its start.
        self.exit_code, self._running = None, True
        try:
            pid: int = self.ask("pid", do="start", argv=argv, log=str(self._log), cwd=str(cwd))
        except self._error:
            self._running = False
            raise
        return pid

    def signal(self, number: int, grace_seconds: float) -> None:
        """Send a signal and wait for the end; send SIGKILL after `grace_seconds`."""
        self.ask("stopped", do="stop", signal=int(number), grace_seconds=grace_seconds)
        self._running = False

    def is_running(self) -> bool:
        """Return whether the child and its guard are running."""
        if self._running:
            with contextlib.suppress(self._error):
                self._receive(0)
        return self._running

    def wait(self, deadline: float) -> int | None:
        """Wait until `deadline` (of `time.monotonic`); return the exit code, None if running."""
        while self._running and (remaining := deadline - time.monotonic()) > 0:
            self._receive(remaining)
        return self.exit_code

    def ask(self, answer: str, **request: Any) -> Any:
        """Send a request, and return the value of `answer` in the guard's answer."""
        try:
            assert self._guard.stdin is not None
            self._guard.stdin.write(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise self._guard_ended_error() from error
        while True:
            for reply in self._receive(None):
                if "error" in reply:
                    raise self._error(f"cannot {request['do']} the {self._name}: {reply['error']}")
                if answer in reply:
                    return reply[answer]

    def close(self) -> None:
        """Stop the child and its guard, and remove the directory."""
        self.disconnect()
        try:
            self._guard.wait(2 * process_guard.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._running = False

    def disconnect(self) -> None:
        """Close the connection to the guard: a detached guard continues, another one ends."""
        for pipe in (self._guard.stdin, self._guard.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _receive(self, timeout_seconds: float | None) -> list[dict[str, Any]]:
        pipe = self._guard.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], timeout_seconds)[0]:
            return []
        data = os.read(pipe.fileno(), 65536)
        if not data:
            self._running = False
            raise self._guard_ended_error()
        *lines, self._received = (self._received + data).split(b"\n")
        replies = [json.loads(line) for line in lines]
        for reply in replies:
            if "exited" in reply:
                self.exit_code, self._running = reply["exited"], False
        return replies

    def _guard_ended_error(self) -> SpringtideError:
        return self._error(
            f"the guard of the local {self._name} (pid {self._guard.pid}) has ended, and the "
            f"{self._name} with it",
            hint=f"it may have been killed; see the end of {self._log}",
        )
