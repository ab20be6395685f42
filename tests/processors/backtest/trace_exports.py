"""Traces written in the forms that users bring, and traces compared regardless of layout."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.processors.backtest.csv_tables import LONG_PLACEMENT_TYPES, LONG_SERIES_TYPES
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest.reference_protocol import held
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    random_tables,
    series_row,
    stay_row,
    table_of,
)

Row = dict[str, Any]


def random_trace(
    random: np.random.Generator, steps: int, step_seconds: int, *, mixed: bool
) -> Trace:
    """A trace with gaps whose grid its samples state: a pod is there from the first step to the
    last, with two successive samples. Only a `mixed` trace has pods with and without memory, and
    workloads."""
    tables = random_tables(random, steps, 3, 5, step_seconds)
    series, placement = (table.to_pylist() for table in tables)
    has_memory = bool(random.random() < 0.5)
    memory = {"mem_mi": random.integers(0, 99, steps).tolist(), "mem_limit_mi": 50}
    whole = series_row("whole", random.integers(0, 999, steps).tolist())
    series = [row for row in series if mixed or bool(row["mem_mi"]) == has_memory]
    series.append(whole | (memory if has_memory else {}))
    names = [row["series"] for row in series]
    # A pod that returns at once is one that stayed in these forms: each stay is a pod here.
    placement = [
        row | {"pod": f"{row['pod']}.{number}"}
        for number, row in enumerate(placement)
        if row["series"] in names
    ]
    placement.append(stay_row("whole", "whole", 0, steps))
    metadata = METADATA | {"steps": str(steps), "step_s": str(step_seconds)}
    (trace,) = read_traces(
        "made", table_of(series, SERIES, metadata), table_of(placement, PLACEMENT, metadata)
    )
    if mixed:
        names = random.choice(["", "shop/cart", "jobs/night"], len(trace.pods)).tolist()
        trace = replace(trace, workloads=tuple(names))
    return _with_gaps(random, trace)


def long_series_rows(trace: Trace) -> list[Row]:
    """A row per stay and step: each stay has a series of its own, called as its pod."""
    rows = []
    for stay, pod in enumerate(trace.pods):
        cpu_request, memory_request = trace.requests[stay]
        cpu_limit, memory_limit = trace.limits[stay]
        for step, (cpu, memory) in enumerate(trace.stay_usage(stay), start=int(trace.start[stay])):
            rows.append(
                {
                    "series": pod,
                    "time_unix": trace.start_seconds + step * trace.step_seconds,
                    "cpu_m": None if np.isnan(cpu) else cpu,
                    "mem_mi": None if np.isnan(memory) else memory / MEBIBYTE,
                    "cpu_request_m": cpu_request,
                    "cpu_limit_m": cpu_limit,
                    "mem_request_mi": memory_request / MEBIBYTE,
                    "mem_limit_mi": memory_limit / MEBIBYTE,
                }
            )
    return rows


def long_placement_rows(trace: Trace) -> list[Row]:
    return [
        {
            "scenario": trace.scenario,
            "node": trace.nodes[trace.node_index[stay]],
            "pod": pod,
            "series": pod,
            "start_unix": trace.start_seconds + int(trace.start[stay]) * trace.step_seconds,
            "end_unix": trace.start_seconds + int(trace.end[stay]) * trace.step_seconds,
            "allocatable_m": trace.allocatable[trace.node_index[stay], 0],
            "workload": (trace.workloads[stay] if trace.workloads else "") or None,
        }
        for stay, pod in enumerate(trace.pods)
    ]


def long_tables(series: list[Row], placement: list[Row]) -> tuple[pa.Table, pa.Table]:
    return (
        pa.Table.from_pylist(series, pa.schema(LONG_SERIES_TYPES.items())),
        pa.Table.from_pylist(placement, pa.schema(LONG_PLACEMENT_TYPES.items())),
    )


Matrix = list[dict[str, Any]]


def matrix(*series: tuple[dict[str, str], dict[int, float]]) -> Matrix:
    """The result of a range query: labels, and values by Unix time."""
    return [
        {"metric": labels, "values": [[time, repr(float(value))] for time, value in values.items()]}
        for labels, values in series
    ]


def exports_of(trace: Trace) -> dict[str, Matrix]:
    """The answers of Prometheus from which this trace would have come: each pod has two containers,
    the second of which uses and requests nothing of the CPU, and half of the memory."""
    step, has_memory = trace.step_seconds, "memory" in trace.resources
    exports: dict[str, Matrix] = {name: [] for name in ("cpu", "requests", "limits")}
    if has_memory:
        exports["memory"] = []
    for stay, pod in enumerate(trace.pods):
        node = trace.nodes[trace.node_index[stay]]
        ends = trace.start_seconds + step * np.arange(trace.start[stay] + 1, trace.end[stay] + 1)
        for r, resource in enumerate(("cpu", "memory")[: 1 + has_memory]):
            unit = (1000.0, 1.0)[r]
            for container, share in (("main", 1.0 - r / 2), ("side", r / 2)):
                labels = {"namespace": "ns", "pod": pod, "node": node, "container": container}
                usage = trace.stay_usage(stay)[:, r] * share / unit
                known = {int(t): v for t, v in zip(ends, usage, strict=True) if not np.isnan(v)}
                exports[resource] += matrix((labels, known)) if known else []
                labels |= {"resource": resource}
                for name, amounts in (("requests", trace.requests), ("limits", trace.limits)):
                    amount = float(amounts[stay, r]) * share / unit
                    exports[name] += matrix((labels, dict.fromkeys(ends.tolist(), amount)))
    exports["allocatable"] = matrix(
        *(
            ({"node": node, "resource": resource}, {trace.start_seconds + step: amount})
            for node, cpu in zip(trace.nodes, trace.allocatable[:, 0] / 1000.0, strict=True)
            for resource, amount in (("cpu", cpu), ("memory", 2.0**40))
        )
    )
    return exports


def answer(result: Matrix) -> bytes:
    data = {"resultType": "matrix", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def _with_gaps(random: np.random.Generator, trace: Trace) -> Trace:
    """The trace with gaps, but with the first and the last sample of each stay, and the second of
    the pod `whole`."""
    usage = trace.usage.copy()
    for stay, pod in enumerate(trace.pods):
        first = int(trace.first_sample[stay])
        length = int(trace.end[stay] - trace.start[stay])
        for _ in range(random.integers(0, 3)):
            begin = int(random.integers(1 + (pod == "whole"), length + 2))
            end = min(begin + int(random.integers(1, 6)), length - 1)
            usage[first + begin : first + max(end, begin), random.integers(0, 2)] = np.nan
    return replace(trace, usage=usage)


def content(trace: Trace, held_steps: int = 0) -> Row:
    """What a trace says, without the order and the names of its series. Samples stand for the
    missing ones after them for `held_steps`; unknown usage is -1."""
    return {
        "grid": (trace.step_seconds, trace.start_seconds, trace.steps),
        "nodes": trace.nodes,
        "allocatable": trace.allocatable[:, 0].tolist(),
        "workloads": [*trace.workloads] or [""] * len(trace.pods),
        "stays": [
            (
                trace.nodes[trace.node_index[stay]],
                pod,
                int(trace.start[stay]),
                int(trace.end[stay]),
                trace.requests[stay].tolist(),
                trace.limits[stay].tolist(),
                [
                    [-1.0 if value is None else value for value in held(samples, held_steps)]
                    for samples in _samples(trace, stay)
                ],
            )
            for stay, pod in enumerate(trace.pods)
        ],
    }


def _samples(trace: Trace, stay: int) -> list[list[float | None]]:
    columns = trace.stay_usage(stay).T.tolist()
    return [[None if np.isnan(value) else value for value in column] for column in columns]
