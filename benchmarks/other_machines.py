"""Judge the calibrated predictor on machines and days with which no constant was chosen:

    python -m benchmarks.other_machines rnd --traces traces

`rnd` is the trace GWA-T-12 "rnd" of the Grid Workloads Archive (Bitbrains): folders 2013-7, 2013-8
and 2013-9 with a file for each of 500 virtual machines. `traces` has the public data set
bitbrains_rnd, August of 203 of these machines, which are recognised by their usage. Judged are the
other machines in August and in September, and the known ones in September, laid out as the public
data set: requests are those of the month before, pods are spread over nodes three times, and 40% of
them move every two days on average, as strangers. The prior is that of the package. Prints measured
over declared risk at 1, 2, 5 and 10%, and savings; in the last column how much of the first ratio
comes from the predictions of the worst 24 hours.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.random import Generator

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.calibrated_runs import CalibratedRun
from pipeline.processors.backtest.protocol import outcomes, over_machines, score, scored_steps
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.model.model_config import RESOURCES
from pipeline.sources.trace_folders import read_dataset

RISKS: Final = (0.01, 0.02, 0.05, 0.1)
STEP: Final = 300
HOUR: Final = 3600 // STEP
DAY: Final = 24 * HOUR
MONTHS: Final = {7: (1_372_629_600, 30), 8: (1_375_308_000, 30), 9: (1_377_986_400, 29)}
"""Midnight of the first day in the Netherlands, Unix time, and whole days of each month."""
SUITES: Final = (
    ("std", "cpu", 24), ("std", "memory", 24), ("dense", "cpu", 24), ("static", "cpu", 24),
    ("std", "cpu", 3),
)  # fmt: skip
"""Scenario, resource and horizon in hours of the public suites of bitbrains_rnd."""
_PODS_OF_NODE: Final = {"std": 16, "static": 16, "dense": 40}
_SPREADS: Final = 3
_LEAST_KNOWN: Final = 0.9
_REQUEST_UNITS: Final = np.array([50.0, 64 * MEBIBYTE])
_TOLERANCES: Final = {"cpu": 1.0, "memory": MEBIBYTE}
_MOST_DIFFERENCE: Final = 2.0
_COLUMNS: Final = {
    "time": pa.int64(), "cores": pa.float64(), "capacity": pa.float64(), "mhz": pa.float64(),
    "cpu_percent": pa.float64(), "memory_limit": pa.float64(), "memory": pa.float64(),
}  # fmt: skip


class Machine(NamedTuple):
    """Usage (steps, 2) of a machine in a month, millicores and bytes, NaN where unknown, and its
    size (2,)."""

    usage: FloatArray
    size: FloatArray


def read_month(folder: Path, begin_seconds: int, days: int) -> dict[str, Machine]:
    """The machines of a month, by the names of their files. A gap of up to an hour is held."""
    steps = days * DAY
    machines = {}
    for file in sorted(folder.glob("*.csv")):
        table = pc.read_csv(
            file,
            pc.ReadOptions(skip_rows=1, column_names=[*_COLUMNS, *"abcd"]),
            pc.ParseOptions(delimiter=";"),
            pc.ConvertOptions(column_types=_COLUMNS, include_columns=[*_COLUMNS]),
        )
        time, cores, _, _, percent, limit, memory = (c.to_numpy() for c in table.columns)
        at = (time - begin_seconds) // STEP
        own = (at >= 0) & (at < steps)
        if not own.any():
            continue
        used = np.stack([10.0 * percent * cores, 1024.0 * memory], axis=1)[own]
        counts = np.bincount(at[own], minlength=steps)
        sums = [np.bincount(at[own], column, minlength=steps) for column in used.T]
        usage = np.full((steps, 2), np.nan)
        np.divide(np.stack(sums, axis=1), counts[:, None], out=usage, where=counts[:, None] > 0)
        size = np.array([1000.0 * np.median(cores), 1024.0 * limit.max()])
        machines[file.stem] = Machine(np.minimum(_held(usage), size), size)
    return machines


def _held(usage: FloatArray) -> FloatArray:
    """Usage with gaps of up to an hour filled by the last known value."""
    at = np.arange(len(usage))
    last = np.maximum.accumulate(np.where(np.isnan(usage[:, 0]), -1, at))
    is_short = (last >= 0) & (at - last <= HOUR)
    return np.where(is_short[:, None], usage[last], np.nan)


def known_machines(month: Mapping[str, Machine], traces: Sequence[Trace]) -> set[str]:
    """The machines whose mean difference from a series of the traces is less than rounding."""
    names = [*month]
    usage = np.nan_to_num(np.stack([month[name].usage[:, 0] for name in names]))
    known = set()
    (trace, *_) = traces
    for number in range(len(trace.series)):
        stays = np.flatnonzero(trace.series_index == number)
        first = int(stays[np.argmin(trace.start[stays])])
        own, start = trace.stay_usage(first)[:, 0], int(trace.start[first])
        differences = np.abs(usage[:, start : start + len(own)] - own).mean(axis=1)
        if differences.min() < _MOST_DIFFERENCE:
            known.add(names[int(differences.argmin())])
    return known


def traces_of(
    name: str, month: Mapping[str, Machine], before: Mapping[str, Machine], names: Iterable[str]
) -> dict[str, Trace]:
    """A trace of each scenario, of the machines that are known for most of both months."""
    own = [
        each
        for each in sorted(names, key=int)
        if each in month
        and each in before
        and np.isfinite(month[each].usage[:, 0]).mean() >= _LEAST_KNOWN
        and np.isfinite(before[each].usage).any()
        and (month[each].size >= _REQUEST_UNITS).all()
    ]
    random = np.random.default_rng([*name.encode()])
    # Longer gaps are 0, as in the public data set.
    usage = np.nan_to_num(np.stack([month[each].usage for each in own]))
    sizes = np.stack([month[each].size for each in own])
    past = np.stack([np.nanquantile(before[each].usage, 0.99, axis=0) for each in own])
    headroom = np.exp(random.normal(np.log(1.5), 0.4, past.shape))
    requests = np.ceil(past * headroom / _REQUEST_UNITS) * _REQUEST_UNITS
    requests = np.minimum(np.maximum(requests, _REQUEST_UNITS), sizes)
    return {
        scenario: _placed(name, scenario, own, usage, sizes, requests, random)
        for scenario in _PODS_OF_NODE
    }


def _placed(
    name: str,
    scenario: str,
    series: Sequence[str],
    usage: FloatArray,
    sizes: FloatArray,
    requests: FloatArray,
    random: Generator,
) -> Trace:
    """The trace of a scenario: each stay comes to the least requested of three random nodes."""
    steps, nodes = usage.shape[1], max(round(len(series) / _PODS_OF_NODE[scenario]), 3)
    rows = []
    for spread in range(_SPREADS):
        requested, node_of = np.zeros(nodes), dict[int, int]()
        for start, end, pod in _stays(scenario != "static", len(series), steps, random):
            if pod in node_of:
                requested[node_of[pod]] -= requests[pod, 0]
            choices = random.choice(nodes, 3, replace=False)
            node_of[pod] = node = int(choices[np.argmin(requested[choices])])
            requested[node] += requests[pod, 0]
            rows.append((spread * nodes + node, start, end, pod))
    node_index, starts, ends, pods = np.array(sorted(rows)).T
    return Trace(
        dataset=name, scenario=scenario, step_seconds=STEP, start_seconds=0, steps=steps,
        nodes=tuple(f"g{n // nodes}-node-{n % nodes:03d}" for n in range(_SPREADS * nodes)),
        allocatable=np.full((_SPREADS * nodes, 2), np.inf), node_index=node_index, start=starts,
        end=ends, requests=requests[pods], limits=sizes[pods], series=tuple(series),
        pods=tuple(
            f"g{node // nodes}-{series[pod]}-{start}"
            for node, start, pod in zip(node_index, starts, pods, strict=True)
        ),
        series_index=pods, first_sample=pods * steps + starts, usage=usage.reshape(-1, 2),
    )  # fmt: skip


def _stays(is_moving: bool, pods: int, steps: int, random: Generator) -> list[tuple[int, int, int]]:
    """Start, end and pod of each stay: 40% of pods move every two days on average, if any does."""
    stays = []
    for pod in random.permutation(pods).tolist():
        end, moves = 0, is_moving and random.random() < 0.4
        while (start := end) < steps:
            length = 1 + int(random.exponential(2 * DAY)) if moves else steps
            end = min(start + length, steps)
            stays.append((start, end, pod))
    return sorted(stays, key=lambda stay: stay[0])


def row(trace: Trace, resource: str, horizon_hours: int) -> str:
    """Measured over declared risk, and savings, at each risk, and the part of the worst day."""
    r, horizon = RESOURCES.index(resource), horizon_hours * HOUR
    at = scored_steps(trace.steps, horizon, 7 * DAY, HOUR)
    run = CalibratedRun(
        trace, 3600.0 * horizon_hours, RISKS, at, moved_pods_known=False, resources=(resource,)
    )
    for step in range(trace.steps):
        run.apply(step)
    happened = outcomes(trace, at, horizon)
    truth = happened.requests[..., r], happened.oracle[..., r], _TOLERANCES[resource]
    scores = [over_machines(score(of_risk, *truth)) for of_risk in run.predictions[..., r]]
    cells = [
        f"{each.violation / risk:.2f} / {each.savings:.1%}"
        for risk, each in zip(RISKS, scores, strict=True)
    ]
    suite = f"{trace.scenario}, {resource}, {horizon_hours} h"
    requests, oracle, tolerance = truth
    peaks = np.minimum(run.predictions[0, ..., r], requests)
    exceeded = (peaks < np.minimum(oracle, requests) - tolerance).mean(axis=0)
    # Predictions are scored hourly.
    worst_day = np.convolve(exceeded, np.ones(24)).max() / len(exceeded) / RISKS[0]
    return f"| {' | '.join([trace.dataset, suite, *cells, f'{worst_day:.2f}'])} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rnd", type=Path)
    parser.add_argument("--traces", type=Path, required=True)
    given = parser.parse_args(arguments)
    months = {
        month: read_month(given.rnd / f"2013-{month}", *span) for month, span in MONTHS.items()
    }
    known = known_machines(months[8], read_dataset(given.traces, "bitbrains_rnd"))
    others = months[8].keys() - known
    for name, month, names in (
        ("August, other machines", 8, others),
        ("September, other machines", 9, others),
        ("September, known machines", 9, known),
    ):
        traces = traces_of(name, months[month], months[month - 1], names)
        count = len(traces["std"].series)
        print(f"{name}: {count} machines, {len(traces['std'].nodes)} nodes", flush=True)
        for scenario, resource, horizon_hours in SUITES:
            print(row(traces[scenario], resource, horizon_hours), flush=True)


if __name__ == "__main__":
    main()
