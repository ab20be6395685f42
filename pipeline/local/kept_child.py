"""Our end of the line to a keeper (`pipeline.local.keeper`): a process that does not outlive us."""

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
from pipeline.local import keeper


class KeptChild:
    """One child process at a time, kept by a keeper; `remove` is the folder that goes at the end.

    What the keeper itself has to say goes to `log`, as does the child's output. Errors are of the
    class `error` and call the child `what`.
    """

    def __init__(
        self,
        log: Path,
        remove: Path | None,
        what: str = "broker",
        error: type[SpringtideError] = LocalKafkaError,
    ) -> None:
        self._log = log
        self._what = what
        self._error = error
        self._exit_code: int | None = None
        self._running = False
        self._received = b""
        with log.open("ab") as errors:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", keeper.__file__, *([str(remove)] if remove else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                # Java reads and writes paths in the encoding of the locale: not all are ASCII.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                bufsize=0,
            )

    def start(self, argv: list[str], cwd: Path) -> int:
        """Start the child; its process id."""
        # Said before it is so: that it ended can come together with that it started.
        self._exit_code, self._running = None, True
        try:
            pid: int = self.ask("pid", do="start", argv=argv, log=str(self._log), cwd=str(cwd))
        except self._error:
            self._running = False
            raise
        return pid

    def signal(self, number: int, grace_seconds: float) -> None:
        """Send a signal and wait for the end, which comes by SIGKILL after `grace_seconds`."""
        self.ask("stopped", do="stop", signal=int(number), grace_seconds=grace_seconds)
        self._running = False

    def is_running(self) -> bool:
        """Whether the child has not ended, and its keeper neither."""
        if self._running:
            with contextlib.suppress(self._error):
                self._receive(0)
        return self._running

    @property
    def exit_code(self) -> int | None:
        """With what the child ended by itself or with its keeper; negative for a signal."""
        return self._exit_code

    def wait(self, deadline: float) -> int | None:
        """The child's exit code; None if it runs on at `deadline` (of `time.monotonic`)."""
        while self._running and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        return self._exit_code

    def ask(self, answer: str, **request: Any) -> Any:
        """Send a request and return what the keeper answers under the key `answer`."""
        try:
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise self._lost() from error
        while True:
            for reply in self._receive(None):
                if "error" in reply:
                    raise self._error(f"cannot {request['do']} the {self._what}: {reply['error']}")
                if answer in reply:
                    return reply[answer]

    def close(self) -> None:
        """End the child, its keeper, and the folder that it was given."""
        self.let_go()
        try:
            self._keeper.wait(2 * keeper.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._running = False

    def let_go(self) -> None:
        """Close the line: a keeper that was told to detach goes on, another ends."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _receive(self, timeout_seconds: float | None) -> list[dict[str, Any]]:
        pipe = self._keeper.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], timeout_seconds)[0]:
            return []
        data = os.read(pipe.fileno(), 65536)
        if not data:
            self._running = False
            raise self._lost()
        *lines, self._received = (self._received + data).split(b"\n")
        replies = [json.loads(line) for line in lines]
        for reply in replies:
            if "exited" in reply:
                self._exit_code, self._running = reply["exited"], False
        return replies

    def _lost(self) -> SpringtideError:
        return self._error(
            f"the keeper of the local {self._what} (pid {self._keeper.pid}) is gone, and the "
            f"{self._what} with it",
            hint=f"it was killed, or see the end of {self._log}",
        )
