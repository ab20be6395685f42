"""What is known of a process of pytest-xdist that died: it is part of the summary of the run.

Its stack is printed where it happens, too, far above the few lines that the host of CI shows.
"""

import faulthandler
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

_MOST_CALLS = 20
_DESCRIPTIONS = pytest.StashKey[list[str]]()
_STACKS = pytest.StashKey[object]()


def _stacks_file(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir()) / f"springtide-tests-{run}-{worker}.stacks"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_DESCRIPTIONS] = []
    work = getattr(config, "workerinput", None)
    if work is not None:
        stacks = _stacks_file(work["testrunuid"], work["workerid"]).open("w")
        config.stash[_STACKS] = stacks
        faulthandler.enable(stacks)  # after pytest's own, which writes to standard error


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    stacks = _stacks_file(node.workerinput["testrunuid"], node.workerinput["workerid"])
    if error is not None:
        description = f"{node.gateway.id}: {_exit_of(node)}; {_available_memory()}"
        text = stacks.read_text(errors="replace") if stacks.exists() else ""
        calls = text.rpartition("Current thread")[2].splitlines()[1:_MOST_CALLS]
        node.config.stash[_DESCRIPTIONS].append("\n".join([description, *calls]))
    stacks.unlink(missing_ok=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for description in config.stash[_DESCRIPTIONS]:
        terminalreporter.section("a process of this run died")
        terminalreporter.write_line(description)


def _exit_of(node: Any) -> str:
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return "how it ended is unknown"
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "it runs still, and does not answer"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _available_memory() -> str:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(line for line in lines if line.startswith("MemAvailable"))
