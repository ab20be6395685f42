"""The protocol once more, slowly: from the tables of a trace, sample by sample, in exact fractions.

Nothing here shares code with the product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")
Row = Mapping[str, Any]
Predict = Callable[[str, int], Fraction | None]
"""The prediction for a node at a step; None is unknown."""

NAMES = {"cpu": ("cpu_m", "cpu_request_m", "cpu_limit_m"),
         "memory": ("mem_mi", "mem_request_mi", "mem_limit_mi")}  # fmt: skip


@dataclass
class Machine:
    """The scores of one machine; None where there is nothing to average."""

    points: int
    violation: Fraction | None
    severity: Fraction | None
    savings: Fraction | None
    oracle_savings: Fraction | None


def requests_at(series: Mapping[str, Row], stays: Sequence[Row], resource: str, at: int) -> int:
    _, request, _ = NAMES[resource]
    running = [stay for stay in stays if stay["start"] <= at < stay["end"]]
    return sum(series[stay["series"]][request] for stay in running)


def held(samples: Sequence[T | None], most: int) -> list[T | None]:
    """The samples, with the last one before each gap in the first `most` steps of the gap."""
    result: list[T | None] = []
    for step, value in enumerate(samples):
        earlier = [n for n in range(step) if samples[n] is not None]
        is_held = value is None and earlier and step - earlier[-1] <= most
        result.append(samples[earlier[-1]] if is_held else value)
    return result


def running_and_later(stays: Sequence[Row], at: int, step_seconds: int) -> list[Row]:
    """The stays on a node that run, and each one in which their pod is back within half an hour."""
    cohort = []
    for pod in {stay["pod"] for stay in stays}:
        ends = None
        for stay in sorted(stays, key=lambda stay: int(stay["start"])):
            if stay["pod"] != pod:
                continue
            is_back = ends is not None and (stay["start"] - ends) * step_seconds <= 1800
            ends = None
            if is_back or stay["start"] <= at < stay["end"]:
                cohort.append(stay)
                ends = stay["end"]
    return cohort


def oracle_at(
    series: Mapping[str, Row],
    stays: Sequence[Row],
    resource: str,
    at: int,
    horizon: int,
    step_seconds: int,
) -> int | None:
    """The highest total, in the steps after `at`, of the pods that run at `at`; None if it is
    unknown."""
    samples, _, limit = NAMES[resource]
    highest = 0
    cohort = {id(stay) for stay in running_and_later(stays, at, step_seconds)}
    for step in range(at + 1, at + horizon + 1):
        total = 0
        for stay in stays:
            row = series[stay["series"]]
            if id(stay) in cohort and stay["start"] <= step < stay["end"] and row[samples]:
                used = row[samples][step - row["start"]]
                if used is None:
                    return None
                total += min(used, row[limit])
        highest = max(highest, total)
    return min(highest, requests_at(series, stays, resource, at))


def judge(
    series_table: pa.Table,
    placement: pa.Table,
    resource: str,
    steps: Sequence[int],
    horizon: int,
    predict: Predict,
) -> dict[str, Machine]:
    """The scores of each node of one scenario. One millicore or MiB too low is no violation."""
    series = {row["series"]: row for row in series_table.to_pylist()}
    step_seconds = int(series_table.schema.metadata[b"step_s"])
    most = 3600 // step_seconds
    for row in series.values():
        for column in ("cpu_m", "mem_mi"):
            row[column] = held(row[column], most) if row[column] else None
    stays = placement.to_pylist()
    machines = {}
    for node in sorted({stay["node"] for stay in stays}):
        own = [stay for stay in stays if stay["node"] == node]
        saved, oracle_saved, shortfalls, points = [], [], [], 0
        for at in steps:
            requests = requests_at(series, own, resource, at)
            if requests == 0:
                continue
            oracle = oracle_at(series, own, resource, at, horizon, step_seconds)
            if oracle is None:
                continue
            points += 1
            predicted = predict(node, at)
            peak = Fraction(requests) if predicted is None else min(predicted, Fraction(requests))
            saved.append((requests - peak) / requests)
            oracle_saved.append(Fraction(requests - oracle, requests))
            if peak < oracle - 1:
                shortfalls.append((oracle - peak) / oracle)
        machines[node] = Machine(
            points,
            Fraction(len(shortfalls), points) if points else None,
            mean(shortfalls),
            mean(saved),
            mean(oracle_saved),
        )
    return machines


def average(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def mean(values: Sequence[Fraction]) -> Fraction | None:
    return average(values) if values else None


def hindsight_savings(
    points: Mapping[str, Sequence[tuple[Fraction, int, int]]], rate: Fraction
) -> Fraction:
    """The highest savings of any factor whose mean rate of violations is at most `rate`.

    `points` are (prediction, requests, oracle) of each machine. Savings fall and violations rise
    only where a factor passes (oracle - 1) / prediction, so that only these factors are tried.
    """
    factors = {Fraction(0)} | {
        (oracle - 1) / predicted
        for machine in points.values()
        for predicted, _, oracle in machine
        if predicted > 0 and oracle > 1
    }
    best = Fraction(0)
    for factor in factors:
        rates, savings = [], []
        for machine in points.values():
            peaks = [
                min(predicted * factor, Fraction(requests)) for predicted, requests, _ in machine
            ]
            pairs = list(zip(peaks, machine, strict=True))
            missed = [peak < oracle - 1 for peak, (_, _, oracle) in pairs]
            rates.append(Fraction(sum(missed), len(missed)))
            savings.append(
                average([(requests - peak) / requests for peak, (_, requests, _) in pairs])
            )
        if average(rates) <= rate:
            best = max(best, average(savings))
    return best
