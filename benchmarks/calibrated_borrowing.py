"""Measure what it is worth that new pods borrow the history of their workload:

    python -m benchmarks.calibrated_borrowing TRACES --suite google-mem-24h --days 2

Each node of a suite is a pool of its own, as in a worker. Every pod is replaced by a new one of its
workload, which is its series, five minutes later, after stays of `--days` on average (exponential).
With `--releases` half of the new pods use another multiple of what their predecessor used,
log-normal with this sigma; the request stays. Prints violations and savings at declared risks of
1%, 2%, 5% and 10%, with pods as strangers and with workloads known.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.protocol import Outcomes, outcomes
from pipeline.processors.backtest.suites import PUBLIC, Suite
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.model.model_config import RESOURCES
from pipeline.sources.trace_folders import read_dataset

RISKS: Final = (0.01, 0.02, 0.05, 0.1)
_SEED: Final = 7
_HELD: Final = 46  # histories of departed pods, as in a worker
_EVERY: Final = 6  # steps between two predictions
_MULTIPLES: Final = (0.25, 4.0)


def with_rollouts(trace: Trace, mean_days: float, sigma: float) -> Trace:
    """The trace with stays cut into stays of new pods, one step apart."""
    random = np.random.default_rng(_SEED)
    day = 86_400 // trace.step_seconds
    stays, starts, ends, usage = [], [], [], []
    for stay, (begin, end) in enumerate(zip(trace.start.tolist(), trace.end.tolist(), strict=True)):
        start, multiple = begin, 1.0
        while start < end:
            cut = start + max(day // 24, int(random.exponential(mean_days * day)))
            cut = end if cut + 1 >= end else cut
            if start > begin and random.random() < 0.5:
                multiple = float(np.clip(multiple * np.exp(random.normal(0.0, sigma)), *_MULTIPLES))
            part = trace.stay_usage(stay)[start - begin : cut - begin]
            usage.append(np.minimum(multiple * part, trace.limits[stay]))
            stays.append(stay)
            starts.append(start)
            ends.append(cut)
            start = cut + 1
    begins, lengths = np.array(starts), np.array(ends) - np.array(starts)
    order = np.lexsort((begins, trace.node_index[stays]))
    of, begins, first = np.array(stays)[order], begins[order], np.cumsum(lengths) - lengths
    return replace(
        trace,
        pods=tuple(f"{trace.pods[stay]}-{start}" for stay, start in zip(of, begins, strict=True)),
        node_index=trace.node_index[of],
        start=begins,
        end=begins + lengths[order],
        requests=trace.requests[of],
        limits=trace.limits[of],
        series_index=trace.series_index[of],
        first_sample=first[order],
        usage=np.concatenate(usage),
    )


def predictions(trace: Trace, node: int, resource: int, suite: Suite, *, known: bool) -> FloatArray:
    """Peaks of one node at the scored steps, (q, risks), in the unit of requests."""
    horizon = Horizon(suite.horizon_steps(trace), trace.step_seconds)
    pool = CalibratedPool(horizon, RISKS, single_node=True, most_departed=_HELD * known)
    unit = (1.0, MEBIBYTE)[resource]
    at = {step: column for column, step in enumerate(suite.at(trace).tolist())}
    result = np.full((len(at), len(RISKS)), np.nan)
    own = np.flatnonzero((trace.node_index == node) & (trace.limits[:, resource] > 0.0))
    for step in range(trace.steps):
        pods: IntArray = own[(trace.start[own] <= step) & (step < trace.end[own])]
        usage = trace.usage[trace.first_sample[pods] + step - trace.start[pods], resource] / unit
        requests = trace.requests[pods, resource] / unit
        limits = np.fmax(4.0 * requests, usage)
        workloads = trace.series_index[pods] if known else None
        nodes = np.zeros(len(pods), np.int64)
        pool.observe(step, PodUsage(pods, nodes, usage, requests, limits, workloads))
        if step % _EVERY and step not in at:
            continue
        peaks = pool.predict()
        if step in at and len(peaks.nodes):
            result[at[step]] = peaks.peaks[0] * unit
    return result


def scores(
    trace: Trace, judged: Outcomes, suite: Suite, *, known: bool
) -> tuple[FloatArray, FloatArray]:
    """Mean violation and savings over the nodes, (risks,) each."""
    resource = RESOURCES.index(suite.resource)
    tolerance = (1.0, MEBIBYTE)[resource]
    violations, savings = [], []
    for node in range(len(trace.nodes)):
        peaks = predictions(trace, node, resource, suite, known=known)
        requests = judged.requests[node, :, resource, None]
        oracle = judged.oracle[node, :, resource, None]
        counts = (requests[:, 0] > 0.0) & ~np.isnan(oracle[:, 0]) & ~np.isnan(peaks[:, 0])
        peaks = np.minimum(peaks, requests)[counts]
        violations.append((oracle[counts] > peaks + tolerance).mean(axis=0))
        savings.append((1.0 - peaks / requests[counts]).mean(axis=0))
    return np.mean(violations, axis=0), np.mean(savings, axis=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", required=True, choices=[suite.name for suite in PUBLIC])
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--releases", type=float, default=0.0)
    parser.add_argument("--nodes", type=int, default=1000, help="only so many nodes")
    given = parser.parse_args(arguments)
    (suite,) = (suite for suite in PUBLIC if suite.name == given.suite)
    traces = read_dataset(given.folder, suite.dataset)
    (trace,) = (trace for trace in traces if trace.scenario == suite.scenario)
    kept = trace.nodes[: given.nodes]
    trace = replace(with_rollouts(trace, given.days, given.releases), nodes=kept)
    judged = outcomes(trace, suite.at(trace), suite.horizon_steps(trace))
    for known in (False, True):
        violation, savings = scores(trace, judged, suite, known=known)
        cells = (f"{v:.1%} / {s:.1%}" for v, s in zip(violation, savings, strict=True))
        print("workloads known" if known else "strangers", *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
