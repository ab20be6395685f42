"""Measure what it is worth that new pods borrow the history of their workload:

    python -m benchmarks.calibrated_borrowing TRACES --suite google-mem-24h --days 2

Each node of a suite is a pool of its own, as in a worker. Every pod is replaced by a new one of its
workload, which is its series, five minutes later, after stays of `--days` on average (exponential):
on its node, or with `--rescheduled` on a random other node of its spread. `--days 0` leaves pods as
they are in the trace, where some move to other nodes. With `--releases` half of the new pods use
another multiple of what their predecessor used, log-normal with this sigma; the request stays.
Prints violations and savings at declared risks of 1%, 2%, 5% and 10%, with pods as
strangers, with workloads known on the node on which they ran, and known on all nodes, by histories
that are published every six hours.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.protocol import Outcomes, outcomes
from pipeline.processors.backtest.suites import PUBLIC, Suite
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.workload_history import HourlyPeaks, hourly_peaks, stated
from pipeline.processors.model.model_config import RESOURCES
from pipeline.sources.trace_folders import read_dataset

RISKS: Final = (0.01, 0.02, 0.05, 0.1)
_SEED: Final = 7
_HELD: Final = 46  # histories of departed pods, as in a worker
_EVERY: Final = 6  # steps between two predictions
_MULTIPLES: Final = (0.25, 4.0)
_PUBLISHED_SECONDS: Final = 6 * 3600

Known = Literal["strangers", "on_node", "elsewhere"]
_TITLES: Final[Mapping[Known, str]] = {
    "strangers": "strangers",
    "on_node": "known on their node",
    "elsewhere": "known on all nodes",
}


def with_rollouts(
    trace: Trace, mean_days: float, sigma: float, *, is_rescheduled: bool = False
) -> Trace:
    """The trace with stays cut into stays of new pods, one step apart, `is_rescheduled` on other
    nodes of the same spread."""
    random = np.random.default_rng(_SEED)
    day = 86_400 // trace.step_seconds
    stays, starts, ends, usage, places = [], [], [], [], []
    spreads = np.array([name.partition("-")[0] for name in trace.nodes])
    for stay, (begin, end) in enumerate(zip(trace.start.tolist(), trace.end.tolist(), strict=True)):
        start, multiple, node = begin, 1.0, int(trace.node_index[stay])
        others = np.flatnonzero(spreads == spreads[node])
        while start < end:
            cut = start + max(day // 24, int(random.exponential(mean_days * day)))
            cut = end if cut + 1 >= end else cut
            if start > begin and random.random() < 0.5:
                multiple = float(np.clip(multiple * np.exp(random.normal(0.0, sigma)), *_MULTIPLES))
            part = trace.stay_usage(stay)[start - begin : cut - begin]
            usage.append(np.minimum(multiple * part, trace.limits[stay]))
            if start > begin and is_rescheduled:
                node = int(random.choice(others[others != node]))
            stays.append(stay)
            places.append(node)
            starts.append(start)
            ends.append(cut)
            start = cut + 1
    begins, lengths = np.array(starts), np.array(ends) - np.array(starts)
    order = np.lexsort((begins, np.array(places)))
    of, begins, first = np.array(stays)[order], begins[order], np.cumsum(lengths) - lengths
    return replace(
        trace,
        pods=tuple(f"{trace.pods[stay]}-{start}" for stay, start in zip(of, begins, strict=True)),
        node_index=np.array(places)[order],
        start=begins,
        end=begins + lengths[order],
        requests=trace.requests[of],
        limits=trace.limits[of],
        series_index=trace.series_index[of],
        first_sample=first[order],
        usage=np.concatenate(usage),
    )


def predictions(trace: Trace, resource: int, suite: Suite, known: Known) -> FloatArray:
    """Peaks of each node at the scored steps, (nodes, q, risks), in the unit of requests."""
    horizon = Horizon(suite.horizon_steps(trace), trace.step_seconds)
    held = 0 if known == "strangers" else _HELD
    pools = [
        CalibratedPool(horizon, RISKS, single_node=True, most_departed=held) for _ in trace.nodes
    ]
    unit = (1.0, MEBIBYTE)[resource]
    at = {step: column for column, step in enumerate(suite.at(trace).tolist())}
    result = np.full((len(pools), len(at), len(RISKS)), np.nan)
    counts = trace.limits[:, resource] > 0.0
    stays = [np.flatnonzero((trace.node_index == node) & counts) for node in range(len(pools))]
    spreads = [name.partition("-")[0] for name in trace.nodes]
    told: dict[str, dict[int, HourlyPeaks]] = {spread: {} for spread in spreads}
    for step in range(trace.steps):
        if known == "elsewhere" and step % (_PUBLISHED_SECONDS // trace.step_seconds) == 0:
            for spread, pool in zip(spreads, pools, strict=True):
                _publish(told[spread], pool.workload_histories())
        for node, pool in enumerate(pools):
            own = stays[node]
            pods: IntArray = own[(trace.start[own] <= step) & (step < trace.end[own])]
            samples = trace.first_sample[pods] + step - trace.start[pods]
            usage = trace.usage[samples, resource] / unit
            requests = trace.requests[pods, resource] / unit
            limits = np.fmax(4.0 * requests, usage)
            workloads = None if known == "strangers" else trace.series_index[pods]
            of_step = PodUsage(pods, np.full(len(pods), node), usage, requests, limits, workloads)
            pool.observe(step, of_step, told[spreads[node]])
            if step % _EVERY and step not in at:
                continue
            peaks = pool.predict()
            if step in at and len(peaks.nodes):
                result[node, at[step]] = peaks.peaks[0] * unit
    return result


def _publish(told: dict[int, HourlyPeaks], histories: Mapping[int, HourlyPeaks]) -> None:
    """Tell histories that are longer, or as long and newer; as records, which are rounded."""
    for workload, history in histories.items():
        old = told.get(workload)
        rank = len(history.peaks), history.end_hour
        if old is None or rank >= (len(old.peaks), old.end_hour):
            told[workload] = hourly_peaks(stated(history, 1.0), 1.0)


def scores(
    trace: Trace, judged: Outcomes, suite: Suite, known: Known
) -> tuple[FloatArray, FloatArray]:
    """Mean violation and savings over the nodes, (risks,) each."""
    resource = RESOURCES.index(suite.resource)
    tolerance = (1.0, MEBIBYTE)[resource]
    violations, savings = [], []
    for node, predicted in enumerate(predictions(trace, resource, suite, known)):
        requests = judged.requests[node, :, resource, None]
        oracle = judged.oracle[node, :, resource, None]
        counts = (requests[:, 0] > 0.0) & ~np.isnan(oracle[:, 0]) & ~np.isnan(predicted[:, 0])
        peaks = np.minimum(predicted, requests)[counts]
        violations.append((oracle[counts] > peaks + tolerance).mean(axis=0))
        savings.append((1.0 - peaks / requests[counts]).mean(axis=0))
    return np.mean(violations, axis=0), np.mean(savings, axis=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", required=True, choices=[suite.name for suite in PUBLIC])
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--releases", type=float, default=0.0)
    parser.add_argument("--rescheduled", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000, help="only so many nodes")
    given = parser.parse_args(arguments)
    (suite,) = (suite for suite in PUBLIC if suite.name == given.suite)
    traces = read_dataset(given.folder, suite.dataset)
    (trace,) = (trace for trace in traces if trace.scenario == suite.scenario)
    if given.days > 0.0:
        trace = with_rollouts(trace, given.days, given.releases, is_rescheduled=given.rescheduled)
    trace = replace(trace, nodes=trace.nodes[: given.nodes])
    judged = outcomes(trace, suite.at(trace), suite.horizon_steps(trace))
    for known in get_args(Known):
        violation, savings = scores(trace, judged, suite, known)
        cells = (f"{v:.1%} / {s:.1%}" for v, s in zip(violation, savings, strict=True))
        print(_TITLES[known], *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
