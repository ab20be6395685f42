"""A command on a terminal of its own: what it shows, keys, size, and how it leaves the terminal."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually

_SEQUENCES = re.compile(
    rb"\x1b(?:\[[0-9;?<>=$ ]*[A-Za-z@~^]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", re.DOTALL
)

# In pytest's workers readline sets the size of another terminal.
_NOT_HANDED_ON = ("NO_COLOR", "COLUMNS", "LINES")
_READ_SECONDS = 0.1


class PseudoTerminal:
    """A running command and everything that it wrote to its terminal."""

    def __init__(self, command: Sequence[str], rows: int, columns: int, **more: str) -> None:
        self._master, self._slave = os.openpty()
        self._is_closed = False
        self.resize(rows, columns)
        self.settings = termios.tcgetattr(self._slave)
        variables = {
            name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON
        }
        self.process = subprocess.Popen(
            command, stdin=self._slave, stdout=self._slave, stderr=self._slave,
            env=variables | {"TERM": "xterm-256color"} | more, preexec_fn=self._own_terminal,
        )  # fmt: skip
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _own_terminal(self) -> None:
        die_with_parent()
        os.setsid()
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def _read(self) -> None:
        with suppress(OSError):  # the command has ended
            while not self._is_closed:
                if select.select([self._master], [], [], _READ_SECONDS)[0]:
                    self.written += os.read(self._master, 65_536)

    def text(self, since: int = 0) -> str:
        """What was written since a position of `written`, without control sequences."""
        return _SEQUENCES.sub(b"", self.written[since:]).decode(errors="replace")

    def shows(self, *parts: str, since: int = 0) -> bool:
        """Whether each of these texts is written within a minute."""
        return eventually(lambda: all(part in self.text(since) for part in parts))

    def press(self, keys: str) -> int:
        """Type these keys; returns the position of `written` before their effect."""
        position = len(self.written)
        os.write(self._master, keys.encode())
        return position

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self) -> int:
        """The exit code; the terminal then has its settings, its cursor and its first screen."""
        code = self.process.wait(60)
        assert termios.tcgetattr(self._slave) == self.settings
        assert eventually(
            lambda: self.written.rfind(b"\x1b[?1049l") > self.written.rfind(b"\x1b[?1049h")
        )
        assert self.written.rfind(b"\x1b[?25h") > self.written.rfind(b"\x1b[?25l")
        return code

    def close_terminal(self) -> None:
        """Close the window: the command gets SIGHUP, and its writes fail."""
        if not self._is_closed:
            self._is_closed = True
            # Nobody may read a descriptor that another file has by then.
            self._reader.join()
            os.close(self._slave)
            os.close(self._master)

    def close(self) -> None:
        self.close_terminal()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


@contextmanager
def on_terminal(
    command: Sequence[str], rows: int = 30, columns: int = 160, **more: str
) -> Iterator[PseudoTerminal]:
    """Run a command on a terminal of this size, with `more` variables."""
    terminal = PseudoTerminal(command, rows, columns, **more)
    try:
        yield terminal
    finally:
        terminal.close()
