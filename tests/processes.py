"""Command lines of `springtide`, live processes, and waiting until a condition is true.

A test waits for a condition, and never sleeps until something must have happened: beside other
tests a process may be five times as slow. A bound only ends a test that has failed.
"""

import asyncio
import contextlib
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def springtide(*arguments: str) -> list[str]:
    """Return the command line of `springtide`."""
    return [sys.executable, "-m", "pipeline.cli.main", *arguments]


def environment(tree: Path = ROOT, /, **more: str) -> dict[str, str]:
    """Return the environment with the packages of `tree`, for any working directory."""
    return os.environ | {"PYTHONPATH": f"{tree}:{tree / 'node-exporter'}"} | more


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def command_lines(folder: Path) -> dict[int, list[str]]:
    """The arguments, by process id, of processes that name the folder on their command line."""
    lines = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in (line := path.read_bytes().decode(errors="replace")):
                lines[int(path.parent.name)] = line.split("\0")
    return lines


def hears_sigterm(pid: int) -> bool:
    """Whether a process would hear SIGTERM by now, instead of being ended by it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _pause(seconds: float, since: float) -> float:
    """Return the pause after a check that began at `since`: at least these seconds, and so long
    that checks that start a program, such as kubectl, take at most a third of a CPU."""
    return min(max(seconds, 2.0 * (time.monotonic() - since)), 0.5)


def eventually(condition: Callable[[], Any], seconds: float = 60) -> bool:
    """Return whether the condition becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        if condition():
            return True
        time.sleep(_pause(0.02, now))
    return bool(condition())


async def until(
    condition: Callable[..., Any], seconds: float = 60, explain: Callable[[], object] | None = None
) -> None:
    """Return when the condition, or what it awaits, is true.

    Otherwise raises AssertionError with its last value, and what `explain` returns.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        if time.monotonic() > deadline:
            reason = f"\n{explain()}" if explain else ""
            raise AssertionError(f"not within {seconds:g} s: {value!r}{reason}")
        await asyncio.sleep(_pause(0.1, began))
