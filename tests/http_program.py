"""Run a program that answers HTTP on loopback, for tests."""

import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.local.control_plane import Component
from pipeline.local.port_probe import HOST, free_port

REQUEST_SECONDS: Final = 5.0
_READY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


class HttpProgram(NamedTuple):
    """A program that runs, and answers at `url`."""

    url: str
    component: Component


@contextmanager
def http_program(
    program: Path, arguments: Callable[[Path, str], Sequence[str]], ready_path: str
) -> Iterator[HttpProgram]:
    """Start a program, wait until `ready_path` answers, and close it at the end of the block.

    `arguments` get a folder for its files, which is removed, and the address to listen on. Raises
    `ControlPlaneError` if it does not become ready.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"springtide-{program.name}-"))
    address = f"{HOST}:{free_port()}"
    component = Component(program.name, folder, folder)
    try:
        component.argv = [str(program), *arguments(folder, address)]
        component.start()
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(f"http://{address}{ready_path}"):
            if not component.is_running or time.monotonic() > deadline:
                raise component.error("did not become ready")
            time.sleep(_POLL_SECONDS)
        yield HttpProgram(f"http://{address}", component)
    finally:
        component.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=REQUEST_SECONDS):
            return True
    except (OSError, urllib.error.URLError):
        return False
