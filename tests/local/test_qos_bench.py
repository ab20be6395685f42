"""`springtide qos-bench` on real cgroups, for short: it shows that the phases differ."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from node_exporter.kernel.cgroup_paths import KubeQOS
from pipeline.cli.main import cli
from pipeline.local import qos_bench
from pipeline.local.demo_workload import CGROUP_ROOT, demo_name
from pipeline.local.qos_bench import PHASES, BenchOptions, Phase, PhaseResult, run_bench
from pipeline.local.qos_report import picture, table


@pytest.mark.cgroups
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_phases_run_without_a_broker_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qos_bench, "SETTLE_SECONDS", 6.0)
    told: list[str] = []
    results = asyncio.run(run_bench(PHASES, BenchOptions(3.0, 50.0, 2), tmp_path, told.append))
    assert [result.phase for result in results] == [*PHASES]
    assert len(told) == len(PHASES)
    alone, unprotected, *protected = results
    assert (alone.offline_cores, alone.offline_rounds) == (0.0, 0.0)
    for result in results:
        assert len(result.latencies) == len(alone.latencies) > 100  # 50 a second at random
        assert result.online_cores > 0
    assert unprotected.offline_rounds > 0
    # The actuator acts although no broker answers.
    for result in protected:
        log = (tmp_path / f"{result.phase.name}-node-actuator.log").read_text()
        assert "no broker answers, actions wait" in log
        assert (tmp_path / f"{result.phase.name}.json").exists()
    assert not (CGROUP_ROOT / "cpu" / demo_name(os.getpid())).exists()


def test_a_picture_without_a_directory_is_refused_before_measuring(tmp_path: Path) -> None:
    arguments = ["qos-bench", "--svg", str(tmp_path / "missing" / "qos.svg")]
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, "missing" in result.output) == (2, True)


@pytest.mark.parametrize("duration", ["4s", "2h"])
def test_a_time_out_of_range_is_refused(duration: str) -> None:
    result = CliRunner().invoke(cli, ["qos-bench", "--for", duration])
    assert (result.exit_code, "less than 5s or more than 1h" in result.output) == (2, True)


def result(name: str, latency: float, rounds: float) -> PhaseResult:
    phase = Phase(name, "", KubeQOS.BURSTABLE)
    return PhaseResult(phase, tuple(latency * n / 100 for n in range(1, 101)), 0.5, 1.0, rounds)


def test_the_table_compares_with_the_first_phase_and_the_most_work() -> None:
    lines = table([result("alone", 0.01, 0), result("beside", 0.03, 200)], 2).splitlines()
    assert lines[0].split("|")[1].strip() == "phase"
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells[0] == "beside"
    assert cells[4:6] == ["29.70", "3.00"]
    assert cells[-2:] == ["75", "100"]
    assert len({len(line) for line in lines}) == 1


@given(st.lists(st.tuples(st.floats(1e-4, 10), st.floats(0, 1e6)), min_size=1, max_size=6))
def test_bars_stay_in_the_picture(phases: list[tuple[float, float]]) -> None:
    svg = picture([result(f"<{i}>", *values) for i, values in enumerate(phases)])
    assert svg.startswith("<svg")
    assert "&lt;0&gt;" in svg
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([^"]+)"', svg)]
    assert len(widths) == 2 * len(phases)
    assert all(1 <= width <= 360 for width in widths)
