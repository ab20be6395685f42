"""The supervisor with real processes: restarts, pauses, and no process left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.agents.supervisor import Supervisor
from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually, is_alive

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Restore the signal handlers that the supervisor replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the requested pauses, without waiting."""
    requested: list[float] = []
    monkeypatch.setattr("pipeline.agents.supervisor.random.random", lambda: 0.5)
    monkeypatch.setattr(Supervisor, "pause", lambda self, seconds: requested.append(seconds))
    return requested


def child(tmp_path: Path, body: str) -> list[str]:
    """Return the command of a child that runs `body`, in which `runs` counts runs from 1."""
    script = f"""
import os, pathlib, signal, sys, time
count = pathlib.Path({str(tmp_path / "runs")!r})
with count.open("a") as file:
    file.write(f"{{os.getpid()}}\\n")
runs = len(count.read_text().split())
{textwrap.dedent(body)}
"""
    return [sys.executable, "-c", script]


def runs(tmp_path: Path) -> list[int]:
    """Return the process ids of all children so far."""
    path = tmp_path / "runs"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("code", [0, 2], ids=["success", "settings error"])
def test_a_successful_child_and_a_settings_error_are_not_restarted(
    tmp_path: Path, pauses: list[float], code: int
) -> None:
    assert Supervisor(child(tmp_path, f"sys.exit({code})"), 1, 30).run() == code
    assert (len(runs(tmp_path)), pauses) == (1, [])


@pytest.mark.parametrize("death", ["sys.exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_pauses_double_up_to_the_limit(tmp_path: Path, pauses: list[float], death: str) -> None:
    assert Supervisor(child(tmp_path, f"if runs < 8: {death}"), 1, 30).run() == 0
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_long_run_resets_the_pause(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each call of the clock is a minute later, so a run lasts that long.
    times = iter(range(0, 10_000, 61))
    monkeypatch.setattr("pipeline.agents.supervisor.time.monotonic", lambda: float(next(times)))
    assert Supervisor(child(tmp_path, "sys.exit(runs < 4)"), 1, 30).run() == 0
    assert pauses == [1, 1, 1]


def supervised(
    tmp_path: Path, body: str, stop_seconds: float = 30, pause_seconds: float = 0.2
) -> "subprocess.Popen[str]":
    """Start a supervisor process; its first pause is of `pause_seconds`."""
    script = (
        "import sys\nfrom pipeline.agents import supervisor\n"
        f"supervisor.STOP_SECONDS = {stop_seconds}\n"
        f"sys.exit(supervisor.Supervisor({child(tmp_path, body)!r}, {pause_seconds}, 300).run())"
    )
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, preexec_fn=die_with_parent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_child_and_the_supervisor(tmp_path: Path, number: int) -> None:
    body = """
    def stop(*_):
        time.sleep(0.3)
        pathlib.Path(count.parent / "clean").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    pathlib.Path(count.parent / "ready").touch()
    time.sleep(60)
    """
    process = supervised(tmp_path, body)
    assert eventually((tmp_path / "ready").exists)
    process.send_signal(number)
    assert process.wait(60) == 0
    assert ((tmp_path / "clean").exists(), len(runs(tmp_path))) == (True, 1)


def test_a_signal_ends_a_pause(tmp_path: Path) -> None:
    process = supervised(tmp_path, "sys.exit(1)", pause_seconds=200)
    assert eventually(lambda: runs(tmp_path) and not is_alive(runs(tmp_path)[0]))
    process.terminate()
    assert process.wait(60) == 0


def test_a_child_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path(count.parent / "ready").touch()
    time.sleep(60)
    """
    process = supervised(tmp_path, body, stop_seconds=0.5)
    assert eventually((tmp_path / "ready").exists)
    process.terminate()
    assert process.wait(60) == 0
    assert not is_alive(runs(tmp_path)[0])


def test_the_child_of_a_killed_supervisor_ends(tmp_path: Path) -> None:
    process = supervised(tmp_path, "time.sleep(60)")
    assert eventually(lambda: bool(runs(tmp_path)))
    # The child registers to end with its parent before its script starts.
    process.kill()
    process.wait()
    assert eventually(lambda: not is_alive(runs(tmp_path)[0]))


def test_a_killed_child_is_restarted(tmp_path: Path) -> None:
    process = supervised(tmp_path, "time.sleep(60)")
    assert eventually(lambda: len(runs(tmp_path)) == 1)
    (first,) = runs(tmp_path)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: len(runs(tmp_path)) == 2)
    process.terminate()
    assert process.wait(60) == 0
    assert not any(is_alive(pid) for pid in runs(tmp_path))
