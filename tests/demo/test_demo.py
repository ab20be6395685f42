"""`springtide demo` as a user runs it: real cgroups, a real broker, and nothing left behind."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.demo import command
from tests.demo.demo_runs import Run, assert_nothing_left, demo_directory
from tests.processes import eventually

pytestmark = [pytest.mark.broker, pytest.mark.cgroups, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def directory() -> Iterator[Path]:
    with demo_directory() as path:
        yield path


def test_demo_shows_real_usage_and_an_answer_and_leaves_nothing(directory: Path) -> None:
    run = Run(directory, "--keep", str(directory / "output-kept"))
    run.wait_for(r"5 pods run in cgroups")
    # On a busy machine the first answer may come before the pod had time to allocate.
    run.wait_for(r"\nhungry-cache .* ([6-9]\d|\d{3,})Mi +allocates [^$]*/prioritize", 400)
    assert len(run.trees()) >= 1
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(180) == 0, run.text

    row = re.search(r"^\S+ +\d+s +(\d+\.\d\d) .* +5 .*$", run.text, re.MULTILINE)
    assert row, run.text
    assert float(row[1]) > 0.05
    pods = {line.split()[0]: line.split() for line in pod_table(run.text)}
    assert (pods["steady-web"][1], pods["batch-crunch"][1]) == ("prod", "batch")
    # The columns: name, class, two of the request, cpu, its peak, memory, its peak.
    assert 0.02 < float(pods["steady-web"][4]) < 0.45
    assert float(pods["steady-web"][5]) > float(pods["idle-cron"][5])
    assert int(pods["hungry-cache"][7].removesuffix("Mi")) > 60
    # In mode act, by the threshold that is shown: this machine is refused or scored.
    assert "thresholds: CPU 25%" in run.text
    assert "lowered" in run.text
    refused = r"refused  \S+: node\(s\) cpu usage exceed threshold"
    assert re.search(rf"{refused}|^ +[1-9]0?  ", run.text, re.M)
    assert re.search(r"1 node, 1 with peaks, \d+ windows applied, \d+ gaps, 0 dead", run.text)
    files = {path.name for path in (directory / "output-kept").iterdir()}
    assert {"exporter.log", "worker.log", "extender.log", "settings.yaml"} <= files
    assert_nothing_left(run)


def pod_table(text: str) -> list[str]:
    """The lines of the last table of pods."""
    after = text.rpartition("WHAT IT DOES\n")[2]
    return after.partition("\n\n")[0].splitlines()


def test_simulated_fleet_is_marked_and_reaches_the_present(directory: Path) -> None:
    run = Run(directory, "--fleet", "20", "--for", "3s")
    assert run.process.wait(180) == 0, run.text
    assert re.search(r"^sim-000\d\d .*[ ,]simulated", run.text, re.MULTILINE)
    assert "still catching up" not in run.text
    assert re.search(r"^ +[1-9]  sim-000\d\d$", run.text, re.MULTILINE)  # judged, so fresh
    assert re.search(r"21 nodes \(20 simulated\), 21 with peaks", run.text)
    assert "thresholds: CPU 65%" in run.text
    assert_nothing_left(run)


def test_ctrl_c_ends_the_demo_with_a_summary(directory: Path) -> None:
    run = Run(directory)
    run.wait_for(r"\nrunning \d+ s")
    os.killpg(run.process.pid, signal.SIGINT)  # the terminal sends it to the whole group
    assert run.process.wait(180) == 0, run.text
    assert re.search(r"\d windows? applied", run.text)
    assert_nothing_left(run)


def test_killed_demo_takes_its_processes_with_it_and_the_next_one_removes_the_rest(
    directory: Path,
) -> None:
    run = Run(directory)
    run.wait_for(r"logs in ")
    assert len(run.processes()) >= 9  # five pods, three roles, a broker and its guard
    run.process.kill()
    run.process.wait()
    assert eventually(lambda: not run.processes(), 120), run.processes()
    assert run.trees() != []
    following = Run(directory)
    following.wait_for(r"removed leftovers of a killed demo")
    assert run.trees() == []
    following.wait_for(r"starting a Kafka")
    following.process.send_signal(signal.SIGTERM)
    assert following.process.wait(180) == 130, following.text
    assert_nothing_left(following)


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (r" exporter $", "the demo's exporter ended by signal 9; its log ends:"),
        (r" kafka\.Kafka ", "the demo's broker ended; its log ends:"),
    ],
)
def test_demo_ends_and_names_the_part_that_ended(
    directory: Path, process: str, message: str
) -> None:
    run = Run(directory)
    run.wait_for(r"logs in ")
    (pid,) = [pid for pid, command in run.processes().items() if re.search(process, command)]
    os.kill(pid, signal.SIGKILL)
    assert run.process.wait(180) == 1, run.text
    assert message in run.text
    assert_nothing_left(run)


def test_directory_with_too_long_a_path_for_a_socket_is_an_error(directory: Path) -> None:
    deep = directory / ("d" * 80)
    deep.mkdir()
    run = Run(deep)
    assert run.process.wait(180) == 2
    assert "set TMPDIR to a shorter path" in run.text


@pytest.mark.parametrize("wrong", ["0", "soon", "-5s", "5y", ""])
def test_invalid_durations_are_refused(wrong: str) -> None:
    done = CliRunner().invoke(command, ["--for", wrong])
    assert (done.exit_code, "is not a duration such as 90s, 5m" in done.stderr) == (2, True)
