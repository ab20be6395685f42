"""Machines of the archive are read, recognised, and laid out as the public data set."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.other_machines import (
    DAY,
    HOUR,
    STEP,
    Machine,
    known_machines,
    read_month,
    row,
    traces_of,
)

BEGIN = 1_375_308_000
HEADER = ";\t".join(
    [
        "Timestamp [ms]", "CPU cores", "CPU capacity provisioned [MHZ]", "CPU usage [MHZ]",
        "CPU usage [%]", "Memory capacity provisioned [KB]", "Memory usage [KB]", "r", "w", "rx",
        "tx",
    ]
)  # fmt: skip


def write(file: Path, steps: list[int], percent: float) -> None:
    lines = [
        f"{BEGIN + step * STEP + 176};\t2;\t5200.0;\t52.0;\t{percent};\t2097152.0;\t1024.0;\t0;\t0;"
        "\t0;\t0"
        for step in steps
    ]
    file.write_text("\n".join([HEADER, *lines]) + "\n")


def test_files_become_usage_on_a_grid(tmp_path: Path) -> None:
    present = [step for step in range(DAY) if not (20 <= step < 25 or 100 <= step < 120)]
    write(tmp_path / "7.csv", [-3, *present, DAY + 1], 2.5)
    machines = read_month(tmp_path, BEGIN, 1)
    usage, size = machines["7"]
    assert size.tolist() == [2000.0, 2.0**31]
    assert usage.shape == (DAY, 2)
    assert np.nanmin(usage, axis=0).tolist() == [50.0, 2.0**20]
    assert np.nanmax(usage, axis=0).tolist() == [50.0, 2.0**20]
    unknown = np.flatnonzero(np.isnan(usage[:, 0]))
    assert unknown.tolist() == [*range(99 + HOUR + 1, 120)], "an hour of a long gap is held"


@pytest.fixture
def month() -> dict[str, Machine]:
    random = np.random.default_rng(5)
    steps = np.arange(9 * DAY)
    wave = 1.0 + 0.5 * np.sin(2 * np.pi * steps / DAY)
    return {
        str(number): Machine(
            np.outer(wave, [random.uniform(100.0, 900.0), 2.0**28]), np.array([2000.0, 2.0**31])
        )
        for number in range(48)
    }


def test_machines_of_the_traces_are_recognised(month: dict[str, Machine]) -> None:
    traces = traces_of("some", month, month, ["3", "11", "40"])
    assert known_machines(month, [traces["std"]]) == {"3", "11", "40"}


def test_each_machine_is_on_one_node_of_each_spread_at_a_time(month: dict[str, Machine]) -> None:
    traces = traces_of("all", month, month, month)
    for scenario, trace in traces.items():
        steps = np.zeros((3, len(trace.series), trace.steps), np.int64)
        stays = np.zeros(steps.shape[:2], np.int64)
        for stay in range(len(trace.pods)):
            own = int(trace.nodes[trace.node_index[stay]][1]), trace.series_index[stay]
            steps[*own, trace.start[stay] : trace.end[stay]] += 1
            stays[own] += 1
        assert (steps == 1).all()
        moving = (stays > 1).mean()
        assert moving == 0.0 if scenario == "static" else 0.25 < moving < 0.55
        assert (trace.requests <= trace.limits).all()
        assert (trace.requests >= 50.0).all()
        number = int(trace.series[trace.series_index[5]])
        expected = month[str(number)].usage[trace.start[5] : trace.end[5]]
        assert np.array_equal(trace.stay_usage(5), expected)


def test_a_row_has_a_rate_and_savings_for_each_risk(month: dict[str, Machine]) -> None:
    trace = traces_of("all", month, month, month)["static"]
    cells = row(trace, "cpu", 24).strip("| ").split(" | ")
    assert cells[:2] == ["all", "static, cpu, 24 h"]
    assert len(cells) == 7
    rates, savings = zip(*((cell.split(" / ")) for cell in cells[2:6]), strict=True)
    assert float(rates[0]) == 0.0, "each day is like the last one"
    assert float(rates[-1]) > 0.0, "a tenth of the predictions may be exceeded"
    assert all(0.0 < float(each.rstrip("%")) < 100.0 for each in savings)
    assert cells[6] == "0.00"


def test_the_worst_day_has_all_exceedances_of_a_single_event(month: dict[str, Machine]) -> None:
    steps = np.arange(12 * DAY)
    usage = np.where(steps < 10 * DAY, 300.0, 1200.0)
    same = {name: Machine(np.outer(usage, [1.0, 2.0**20]), month[name].size) for name in month}
    cells = row(traces_of("all", same, same, same)["static"], "cpu", 24).strip("| ").split(" | ")
    ratio = float(cells[2].split(" / ")[0])
    assert ratio > 1.0
    assert float(cells[6]) == ratio
