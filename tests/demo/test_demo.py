"""`springtide demo` as a user runs it: real cgroups, a real broker, and nothing left behind."""

import math
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.demo import command
from pipeline.local.demo_suppression import threshold_percent
from pipeline.local.demo_workload import Workload, cpu_count
from pipeline.topics.resource_amounts import millicores
from tests.demo.demo_runs import Run, assert_nothing_left, demo_directory
from tests.processes import eventually

pytestmark = [pytest.mark.broker, pytest.mark.cgroups, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def directory() -> Iterator[Path]:
    with demo_directory() as path:
        yield path


def test_demo_shows_usage_and_an_answer_and_ends_with_a_summary(directory: Path) -> None:
    run = Run(directory, "--keep", str(directory / "output-kept"))
    run.wait_for(r"5 pods run in cgroups")
    # On a busy machine the first answer may come before the pod had time to allocate.
    run.wait_for(r"\nhungry-cache .* ([6-9]\d|\d{3,})Mi +allocates [^$]*/prioritize", 400)
    assert len(run.trees()) >= 1
    os.killpg(run.process.pid, signal.SIGINT)  # Ctrl-C: the terminal sends it to the whole group
    assert run.process.wait(180) == 0, run.text

    row = re.search(r"^\S+ +\d+s +(\d+)m .* +5 .*$", run.text, re.MULTILINE)
    assert row, run.text
    assert int(row[1]) > 50
    pods = {line.split()[0]: line.split() for line in pod_table(run.text)}
    assert (pods["steady-web"][1], pods["batch-crunch"][1]) == ("prod", "batch")
    # The columns: name, class, two of the request, cpu, its peak, memory, its peak.
    assert 20 < millicores(pods["steady-web"][4]) < 450
    assert millicores(pods["steady-web"][5]) > millicores(pods["idle-cron"][5])
    assert int(pods["hungry-cache"][7].removesuffix("Mi")) > 60
    # In mode act, by the threshold that is shown: this machine is refused or scored.
    assert "thresholds: CPU 25%" in run.text
    assert "lowered" in run.text
    refused = r"refused  \S+: node\(s\) cpu usage exceed threshold"
    assert re.search(rf"{refused}|^ +[1-9]0?  ", run.text, re.M)
    assert re.search(r"1 node, 1 with peaks, \d+ windows applied, \d+ gaps, 0 dead", run.text)
    files = {path.name for path in (directory / "output-kept").iterdir()}
    assert {f"{role}.log" for role in ("exporter", "worker", "extender", "node-actuator")} <= files
    assert {"settings.yaml", "slo-controller-config.json"} <= files
    assert_nothing_left(run)


def test_node_actuator_holds_the_batch_pod_down_and_lets_it_grow_back(directory: Path) -> None:
    run = Run(directory)
    run.wait_for(r"node actuator in mode act: best-effort pods get what others leave of \d+% of")
    (name,) = {tree.name for tree in run.trees()}
    tree = Workload(name)
    assert eventually(lambda: tree.best_effort_quota_cores() is not None, 180), run.text
    rise, fall, room = watch_quota(tree, 48)  # four bursts of bursty-api
    # On a machine whose other processes leave no room the limit stays where it is.
    assert (rise > 0.15 and fall > 0.15) or room < 0.4, (rise, fall, room, run.text)
    run.wait_for(
        r"node actuator: best-effort pods may use \d+m? of \d+ CPUs?\n"
        r"  bursty-api    uses \d+m\n"
        r"  batch-crunch  uses \d+m of the 600m that it wants\n"
    )
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(180) == 0, run.text
    assert_nothing_left(run)


def watch_quota(tree: Workload, seconds: float) -> tuple[float, float, float]:
    """The largest rise and fall of the best-effort quota in cores, until both are seen, and the
    largest room that everything else on this machine left over six seconds."""
    best_effort = f"{tree.name}/kubepods/besteffort"
    shared = threshold_percent(cpu_count()) / 100 * cpu_count()
    rise, fall, room = 0.0, 0.0, -math.inf
    highest, lowest = 0.0, math.inf
    used: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while (rise <= 0.15 or fall <= 0.15) and time.monotonic() < end:
        quota = tree.best_effort_quota_cores()
        assert quota is not None
        highest, lowest = max(highest, quota), min(lowest, quota)
        rise, fall = max(rise, quota - lowest), max(fall, highest - quota)
        busy = busy_cpu_seconds() - tree.cpu_seconds(best_effort)
        used.append((time.monotonic(), busy))
        earlier = [entry for entry in used if entry[0] <= used[-1][0] - 6]
        if earlier:
            at, before = earlier[-1]
            room = max(room, shared - (busy - before) / (used[-1][0] - at))
        time.sleep(0.5)
    return rise, fall, room


def busy_cpu_seconds() -> float:
    """CPU time of all CPUs of this machine (proc(5)): user, nice, system, irq, softirq, steal."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


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


def test_killed_demo_takes_its_processes_with_it_and_the_next_one_removes_the_rest(
    directory: Path,
) -> None:
    run = Run(directory)
    run.wait_for(r"logs in ")
    assert len(run.processes()) >= 10  # five pods, four roles, a broker and its guard
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
    assert (done.exit_code, "is not a duration such as 90s, 15m" in done.stderr) == (2, True)
