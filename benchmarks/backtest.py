"""Measure how fast a backtest runs, beside a plain program with Python objects and loops.

    python -m benchmarks.backtest [--nodes 100] [--pods 16] [--days 30] [--plain-nodes 2] \\
        [--plain-days 3]

A made trace, with a daily rhythm and noise, at a step of five minutes: usage of cpu and memory, no
pod moves. The predictor `percentile` is judged on both resources, a day ahead after the first day,
once an hour. The plain program does the same on a part of the trace: one object per histogram, and
a loop over pods and steps for each oracle. Both must find the same violations. Times are CPU
seconds of this process; a node-hour is an hour of one node of the trace.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from benchmarks.model import FRACTIONS, LAYOUTS, Model, cpu_seconds
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.judge import Judgement, judge
from pipeline.processors.backtest.protocol import TOLERANCE
from pipeline.processors.backtest.replay import Variant
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.model.histogram import decay_factor, nearest_reference_ms
from pipeline.processors.model.model_config import KOORDINATOR, ModelConfig
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.topics.nodes import Strategy

STEP_SECONDS: Final = 300
STEPS_PER_DAY: Final = 288
START_SECONDS: Final = 1_700_000_100
SUITES: Final = tuple(
    Suite(name=resource, dataset="made", resource=resource, burn_in_hours=24)
    for resource in ("cpu", "memory")
)
VARIANT: Final = Variant(
    name="percentile",
    counts="pods",
    config=ModelConfig(
        strategy=Strategy(safety_margin_percent=0.0, cold_start_seconds=0.0, cold_start_samples=0)
    ),
)


def made_trace(nodes: int, pods: int, days: int) -> Trace:
    """A trace of as many pods on each node, none of which moves."""
    random = np.random.default_rng(1)
    count, steps = nodes * pods, days * STEPS_PER_DAY
    level = np.exp(random.normal(5.0, 1.0, count))
    usage = np.empty((count, steps, 2))
    hours = 2 * np.pi * np.arange(steps) / STEPS_PER_DAY
    for pod in range(count):
        rhythm = 1 + 0.5 * np.sin(hours + random.uniform(0, 6))
        noise = np.exp(0.3 * random.standard_normal((steps, 2)))
        usage[pod] = level[pod] * rhythm[:, None] * noise * [1.0, 2.0**20]
    requests = np.rint(level[:, None] * [2.0, 2.0 * 2**20])
    return Trace(
        dataset="made",
        scenario="std",
        step_seconds=STEP_SECONDS,
        start_seconds=START_SECONDS,
        steps=steps,
        nodes=tuple(f"node-{node:05d}" for node in range(nodes)),
        allocatable=np.full((nodes, 2), np.nan),
        pods=tuple(f"pod-{pod:06d}" for pod in range(count)),
        node_index=np.arange(nodes).repeat(pods),
        start=np.zeros(count, np.int64),
        end=np.full(count, steps),
        requests=requests,
        limits=requests * 100,
        series=tuple(f"series-{pod}" for pod in range(count)),
        series_index=np.arange(count),
        first_sample=np.arange(count) * steps,
        usage=usage.reshape(-1, 2),
    )


class Cost(NamedTuple):
    """CPU seconds, the node-hours of the trace, and the rate of violations by resource and node."""

    seconds: float
    node_hours: float
    violations: FloatArray

    @property
    def rate(self) -> float:
        """Node-hours per second."""
        return self.node_hours / self.seconds


def backtest_cost(trace: Trace) -> Cost:
    """The cost of `judge`."""
    judged: list[Judgement] = []
    seconds = cpu_seconds(lambda: judged.extend(judge(trace, SUITES, [VARIANT])))
    return Cost(
        seconds,
        _node_hours(trace),
        np.array([judgement.machines.violation for judgement in judged]),
    )


def plain_cost(trace: Trace) -> Cost:
    """The cost of the same in Python objects and loops."""
    values = (trace.usage / TO_KUBERNETES).reshape(-1, trace.steps, 2).tolist()
    used = trace.usage.reshape(-1, trace.steps, 2).tolist()
    requests = trace.requests.tolist()
    pods = len(trace.pods) // len(trace.nodes)
    violations: list[list[float]] = [[], []]

    def run() -> None:
        for node in range(len(trace.nodes)):
            own = range(node * pods, (node + 1) * pods)
            for resource, rates in enumerate(violations):
                rates.append(
                    _plain_violation(
                        [[sample[resource] for sample in values[pod]] for pod in own],
                        [[sample[resource] for sample in used[pod]] for pod in own],
                        sum(requests[pod][resource] for pod in own),
                        resource,
                        SUITES[resource].at(trace).tolist(),
                    )
                )

    return Cost(cpu_seconds(run), _node_hours(trace), np.array(violations))


def _plain_violation(
    values: Sequence[Sequence[float]],
    used: Sequence[Sequence[float]],
    requests: float,
    resource: int,
    at: Sequence[int],
) -> float:
    """The rate of violations of one node; `values` are in cores or bytes, `used` in millicores."""
    models = [Model(LAYOUTS[resource], FRACTIONS[resource]) for _ in values]
    half_life_ms = KOORDINATOR.half_life_ms[resource]
    first_ms = (START_SECONDS + STEP_SECONDS) * 1000
    reference_ms = nearest_reference_ms(first_ms, half_life_ms)
    scored, missed = set(at), 0
    for step in range(len(values[0])):
        by = decay_factor(first_ms + step * STEP_SECONDS * 1000, reference_ms, half_life_ms)
        for model, series in zip(models, values, strict=True):
            model.add(series[step], by, step)
        if step in scored:
            unit = float(TO_KUBERNETES[resource])
            peak = min(sum(int(model.peaks()[0] * unit) for model in models), requests)
            horizon = range(step + 1, step + STEPS_PER_DAY + 1)
            oracle = max(sum(series[later] for series in used) for later in horizon)
            missed += peak < min(oracle, requests) - TOLERANCE[resource]
    return missed / len(at)


def _node_hours(trace: Trace) -> float:
    return len(trace.nodes) * trace.steps * trace.step_seconds / 3600


def part_of(trace: Trace, nodes: int, days: int) -> Trace:
    """The first nodes and days of a made trace."""
    pods = len(trace.pods) // len(trace.nodes) * nodes
    steps = days * STEPS_PER_DAY
    usage = trace.usage.reshape(len(trace.pods), trace.steps, 2)[:pods, :steps].reshape(-1, 2)
    return replace(
        trace,
        steps=steps,
        nodes=trace.nodes[:nodes],
        allocatable=trace.allocatable[:nodes],
        pods=trace.pods[:pods],
        node_index=trace.node_index[:pods],
        start=trace.start[:pods],
        end=np.full(pods, steps),
        requests=trace.requests[:pods],
        limits=trace.limits[:pods],
        series=trace.series[:pods],
        series_index=trace.series_index[:pods],
        first_sample=np.arange(pods) * steps,
        usage=usage,
    )


def report(nodes: int, pods: int, days: int, plain_nodes: int, plain_days: int) -> None:
    """Print the cost of the whole trace, and of a part beside the plain program."""
    trace = made_trace(nodes, pods, days)
    part = part_of(trace, plain_nodes, plain_days)
    rows = [
        (f"backtest, {nodes} nodes, {days} days", backtest_cost(trace)),
        (f"backtest, {plain_nodes} nodes, {plain_days} days", backtest_cost(part)),
        (f"plain Python, {plain_nodes} nodes, {plain_days} days", plain_cost(part)),
    ]
    if not np.array_equal(rows[1][1].violations, rows[2][1].violations):
        raise SystemExit("the plain program finds other violations")
    print(f"{pods} pods on each node, steps of {STEP_SECONDS} s, one predictor, two resources")
    for name, cost in rows:
        ratio = rows[0][1].rate / cost.rate
        print(f"{name:36} {cost.seconds:8.1f} s {cost.rate:10.0f} node-hours/s {ratio:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    count = partial(parser.add_argument, type=int)
    count("--nodes", default=100)
    count("--pods", default=16)
    count("--days", default=30)
    count("--plain-nodes", default=2)
    count("--plain-days", default=3)
    given = parser.parse_args()
    report(given.nodes, given.pods, given.days, given.plain_nodes, given.plain_days)


if __name__ == "__main__":
    main()
