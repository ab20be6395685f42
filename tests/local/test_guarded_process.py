"""The guard's promise, with `sleep` and shells in the broker's place: nothing is left behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import LocalKafkaError
from pipeline.local.guarded_process import GuardedProcess
from tests.processes import eventually, is_alive

SLEEP = ["/bin/sleep", "300"]
# Answers SIGTERM only when told to by KILL.
DEAF = [sys.executable, "-Sc", "import signal, time; signal.signal(15, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(300)"]  # fmt: skip


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "file").write_text("x")
    return folder


@pytest.fixture
def child(folder: Path) -> Iterator[GuardedProcess]:
    child = GuardedProcess(folder / "log", remove=folder)
    yield child
    child.close()


def test_child_starts_and_stops(child: GuardedProcess, folder: Path) -> None:
    pid = child.start(SLEEP, folder)
    assert (child.is_running(), is_alive(pid), os.getpgid(pid)) == (True, True, pid)
    guard_pid = parent_of(pid)
    assert os.getsid(pid) == os.getsid(guard_pid) == guard_pid, "Ctrl-C must not reach them"
    child.signal(signal.SIGTERM, 5)
    assert (child.is_running(), is_alive(pid)) == (False, False)
    assert folder.exists(), "the folder stays for the next start"
    again = child.start(SLEEP, folder)
    assert child.is_running()
    child.close()
    assert (child.is_running(), is_alive(again), folder.exists()) == (False, False, False)


def test_output_of_the_child_goes_to_the_log(child: GuardedProcess, folder: Path) -> None:
    child.start(["/bin/sh", "-c", "pwd; echo oops >&2; exit 3"], folder)
    assert child.wait(time.monotonic() + 10) == 3
    assert not child.is_running()
    assert (folder / "log").read_text() == f"{folder}\noops\n"


def test_immediate_end_of_the_child_is_reported(child: GuardedProcess, folder: Path) -> None:
    for code in range(20):
        child.start(["/bin/sh", "-c", f"exit {code}"], folder)
        assert child.wait(time.monotonic() + 10) == code


def test_wait_returns_at_its_deadline(child: GuardedProcess, folder: Path) -> None:
    child.start(SLEEP, folder)
    started = time.monotonic()
    assert child.wait(started + 0.1) is None
    assert time.monotonic() - started < 5
    assert child.is_running()


def test_child_that_ignores_sigterm_is_killed(child: GuardedProcess, folder: Path) -> None:
    pid = child.start(DEAF, folder)
    assert eventually(lambda: "deaf" in (folder / "log").read_text())
    child.signal(signal.SIGTERM, 0.2)
    assert not is_alive(pid)


def test_external_kill_of_the_child_is_noticed(child: GuardedProcess, folder: Path) -> None:
    os.kill(child.start(SLEEP, folder), signal.SIGKILL)
    assert eventually(lambda: not child.is_running())
    assert child.exit_code == -signal.SIGKILL
    child.signal(signal.SIGTERM, 1)
    assert child.is_running() is False
    child.start(SLEEP, folder)
    assert child.is_running()


def test_failed_start_is_an_error_and_leaves_the_guard(child: GuardedProcess, folder: Path) -> None:
    with pytest.raises(LocalKafkaError, match=r"cannot start the broker.*No such file"):
        child.start(["/no/such/java"], folder)
    child.start(SLEEP, folder)
    assert child.is_running()


def test_kill_9_of_the_guard_kills_the_child(child: GuardedProcess, folder: Path) -> None:
    pid = child.start(SLEEP, folder)
    guard_pid = parent_of(pid)
    os.kill(guard_pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(pid))
    assert eventually(lambda: not child.is_running())
    with pytest.raises(LocalKafkaError, match=r"guard .* has ended"):
        child.start(SLEEP, folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_of_the_parent_leaves_no_child_and_no_directory(
    folder: Path, number: signal.Signals
) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pipeline.local import process_guard\n"
        "from pipeline.local.guarded_process import GuardedProcess\n"
        f"child = GuardedProcess(Path({str(folder)!r}) / 'log', Path({str(folder)!r}))\n"
        f"print(child.start({SLEEP!r}, Path('/')), flush=True)\n"
        "time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not is_alive(pid) and not folder.exists())


def test_announced_file_is_locked_and_removed_with_the_guard(
    child: GuardedProcess, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "9092.json"
    child.start(SLEEP, folder)
    child.ask("announced", do="announce", path=str(path), state={"port": 9092})
    assert json.loads(path.read_text())["port"] == 9092
    with path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    child.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("by_sigterm", [True, False])
def test_detached_guard_outlives_the_connection_until_sigterm_or_the_end_of_its_child(
    folder: Path, by_sigterm: bool
) -> None:
    child = GuardedProcess(folder / "log", remove=folder)
    pid = child.start(SLEEP, folder)
    guard_pid = parent_of(pid)
    child.ask("detached", do="detach")
    child.disconnect()
    time.sleep(0.3)
    assert is_alive(pid)
    os.kill(*((guard_pid, signal.SIGTERM) if by_sigterm else (pid, signal.SIGKILL)))
    assert eventually(lambda: not is_alive(pid) and not folder.exists())
    child.close()
