"""A trace from range exports of cAdvisor's and kube-state-metrics' series.

docs/reference/backtest.md has the queries. A value at time t covers the step that ends at t: rates
look back. Usage is in cores and bytes. The containers of a pod are summed; a pod is one on one
node. What has no node is left out, and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.prometheus_ranges import RangeSeries
from pipeline.processors.backtest.sample_grid import SampleGrid, WrongSampleError, sample_grid
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.trace_tables import AMOUNTS, read_traces
from pipeline.processors.model.model_config import RESOURCES

REQUIRED: Final = ("cpu", "requests", "limits", "allocatable")
EXPORTS: Final = (*REQUIRED, "memory", "pods")
_SCENARIO: Final = "std"
_PAUSE: Final = "POD"
_TO_TABLE: Final = (1000.0, 1 / MEBIBYTE)
"""Cores and bytes to millicores and MiB."""


class _Pod(NamedTuple):
    """A pod on a node; `node` is empty in series that do not name it."""

    namespace: str
    name: str
    node: str

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}@{self.node}"


class _Container(NamedTuple):
    """The usage of a container: what a series of the grid is."""

    resource: int
    pod: _Pod
    name: str


class _Samples(NamedTuple):
    seconds: IntArray
    values: FloatArray


_Amounts = dict[tuple[_Pod, int], dict[str, float]]
"""Amounts of the containers of a pod, by pod and resource."""


def prometheus_trace(dataset: str, exports: Mapping[str, Sequence[RangeSeries]]) -> Trace:
    """The trace of the series of each export, by its name in `EXPORTS`.

    Raises InvalidRecordError for series that are missing, that lack a label, or do not fit.
    """
    for name in REQUIRED:
        if name not in exports or not (exports[name] or name == "limits"):
            raise InvalidRecordError(
                f"the export {name} has no series", hint="docs/reference/backtest.md has the query"
            )
    resources = [0, 1] if "memory" in exports else [0]
    left_out: dict[str, set[tuple[str, str]]] = defaultdict(set)
    containers = _containers(exports, left_out)
    grid = _grid(containers)
    requests, limits = _amounts(exports["requests"]), _amounts(exports["limits"])
    allocatable = _allocatable(exports["allocatable"])
    rows: list[dict[str, Any]] = []
    is_assumed: dict[str, list[bool]] = {}
    for pod, own in _by_pod(containers, grid).items():
        stay = _usage(own, resources)
        if stay is None:
            left_out["without usage of every resource"].add(pod[:2])
        elif any((pod.node, r) not in allocatable for r in resources):
            left_out["on nodes without allocatable"].add(pod[:2])
        else:
            names = {name for _, name, _, _ in own}
            amounts, is_assumed[pod.title] = _stated(
                pod, names, requests, limits, allocatable, resources
            )
            rows.append(_row(pod, stay, amounts))
    if not rows:
        raise InvalidRecordError(
            "no pod is left", hint=f"pods {_reasons(left_out) or 'are missing'}"
        )
    (trace,) = read_traces(dataset, *_tables(rows, grid, allocatable))
    without = sum(not row["cpu_request_m"] for row in rows)
    notes = [f"left out: pods {_reasons(left_out)}"] if left_out else []
    notes += [f"{without:,} pods have no CPU request"] if without else []
    return replace(
        trace,
        has_assumed_limit=np.array([is_assumed[pod] for pod in trace.pods], np.bool_),
        notes=(*notes, *trace.notes),
    )


def _reasons(left_out: Mapping[str, set[tuple[str, str]]]) -> str:
    return ", ".join(f"{reason}: {len(pods):,}" for reason, pods in sorted(left_out.items()))


def _label(series: RangeSeries, name: str, export: str) -> str:
    if value := series.labels.get(name, ""):
        return value
    raise InvalidRecordError(
        f"{export}: a series has no label {name}: {dict(series.labels)!r:.200}",
        hint="docs/reference/backtest.md has the query",
    )


def _pod_of(series: RangeSeries, export: str) -> _Pod:
    namespace, name = _label(series, "namespace", export), _label(series, "pod", export)
    return _Pod(namespace, name, series.labels.get("node", ""))


def _containers(
    exports: Mapping[str, Sequence[RangeSeries]], left_out: dict[str, set[tuple[str, str]]]
) -> dict[_Container, list[_Samples]]:
    """The samples of each container, cut where its pod moved. Sums of a pod, without a container,
    count only if the export has no containers of the pod."""
    nodes = _nodes_by_time(exports.get("pods", ()))
    containers: dict[_Container, list[_Samples]] = defaultdict(list)
    for r, resource in enumerate(RESOURCES):
        for series in exports.get(resource, ()):
            name = series.labels.get("container", "")
            if name == _PAUSE:
                continue
            pod = _pod_of(series, resource)
            if not pod.node and pod not in nodes:
                left_out["without a node"].add(pod[:2])
            for node, samples in _on_nodes(pod, series, nodes):
                containers[_Container(r, pod._replace(node=node), name)].append(samples)
    named = {(each.resource, each.pod) for each in containers if each.name}
    return {
        each: samples
        for each, samples in containers.items()
        if each.name or (each.resource, each.pod) not in named
    }


def _nodes_by_time(infos: Sequence[RangeSeries]) -> dict[_Pod, list[tuple[int, str]]]:
    """For each pod, without its node, its nodes and the time of the first sample on each."""
    first: dict[tuple[_Pod, str], int] = {}
    for series in infos:
        node = _label(series, "node", "pods")
        key = (_pod_of(series, "pods")._replace(node=""), node)
        begin = int(series.seconds.min())
        first[key] = min(begin, first.get(key, begin))
    nodes: dict[_Pod, list[tuple[int, str]]] = defaultdict(list)
    for (pod, node), begin in first.items():
        nodes[pod].append((begin, node))
    return {pod: sorted(each) for pod, each in nodes.items()}


def _on_nodes(
    pod: _Pod, series: RangeSeries, nodes: Mapping[_Pod, list[tuple[int, str]]]
) -> Iterator[tuple[str, _Samples]]:
    """The samples on each node: on that of the label, or on the node that the pod reached last."""
    if pod.node:
        yield pod.node, _Samples(series.seconds, series.values)
        return
    reached = nodes.get(pod, [])
    begins = np.array([begin for begin, _ in reached[1:]], np.int64)
    place = np.searchsorted(begins, series.seconds, side="right")
    for number, (_, node) in enumerate(reached):
        if (own := place == number).any():
            yield node, _Samples(series.seconds[own], series.values[own])


def _grid(containers: Mapping[_Container, Sequence[_Samples]]) -> _Grid:
    if not containers:
        raise InvalidRecordError(
            "no series of usage names the node of its pod",
            hint="export pods (kube_pod_info), too: docs/reference/backtest.md",
        )
    counts = [sum(len(part.seconds) for part in parts) for parts in containers.values()]
    owner = np.arange(len(counts)).repeat(counts)
    seconds, values = (
        np.concatenate([part[column] for parts in containers.values() for part in parts])
        for column in (0, 1)
    )
    try:
        grid = sample_grid(owner, seconds, len(counts))
    except WrongSampleError as error:
        wrong = [*containers][owner[error.sample]]
        raise InvalidRecordError(
            f"{RESOURCES[wrong.resource]}: {wrong.pod.title}: container {wrong.name!r:.100}: "
            f"{seconds[error.sample]}: {error.message}",
            hint="use the queries of docs/reference/backtest.md, and one start and step",
        ) from error
    return _Grid(grid, np.split(grid.spread(values), np.cumsum(grid.lengths)[:-1]))


class _Grid(NamedTuple):
    """The grid, and the values of each of its series, NaN in gaps."""

    steps: SampleGrid
    values: list[FloatArray]


_Part = tuple[int, str, int, FloatArray]
"""Resource, name of the container, first step, and usage from it on."""


def _by_pod(containers: Mapping[_Container, Any], grid: _Grid) -> dict[_Pod, list[_Part]]:
    pods: dict[_Pod, list[_Part]] = defaultdict(list)
    firsts = grid.steps.first_step.tolist()
    for each, first, values in zip(containers, firsts, grid.values, strict=True):
        pods[each.pod].append((each.resource, each.name, first, values))
    return pods


class _Usage(NamedTuple):
    """What a pod uses from a step on: (n,) of each resource in the order of `RESOURCES`."""

    start: int
    amounts: list[FloatArray]


def _usage(parts: Sequence[_Part], resources: Sequence[int]) -> _Usage | None:
    """The sums of the containers between the first and the last step with every resource; None
    without such a step.

    A container uses nothing before its first sample and after its last. In a gap between them its
    usage is unknown, and so is the pod's.
    """
    spans = []
    for r in resources:
        own = [(first, first + len(values)) for each, _, first, values in parts if each == r]
        if not own:
            return None
        spans.append((min(first for first, _ in own), max(end for _, end in own)))
    start, end = max(first for first, _ in spans), min(end for _, end in spans)
    if start >= end:
        return None
    amounts = []
    for r in resources:
        total, covered = np.zeros(end - start), np.zeros(end - start, np.bool_)
        for each, _, first, values in parts:
            low, high = max(first, start), min(first + len(values), end)
            if each == r and low < high:
                total[low - start : high - start] += values[low - first : high - first]
                covered[low - start : high - start] = True
        amounts.append(np.where(covered, total, np.nan) * _TO_TABLE[r])
    return _Usage(start, amounts)


def _amounts(series: Sequence[RangeSeries]) -> _Amounts:
    """The highest amount of each container: amounts that change are rare."""
    amounts: _Amounts = defaultdict(dict)
    for each in series:
        resource = each.labels.get("resource", "")
        known = each.values[~np.isnan(each.values)]
        if resource in RESOURCES and len(known):
            own = amounts[_pod_of(each, "requests or limits"), RESOURCES.index(resource)]
            container = each.labels.get("container", "")
            own[container] = max(float(known.max()), own.get(container, 0.0))
    return amounts


def _allocatable(series: Sequence[RangeSeries]) -> dict[tuple[str, int], float]:
    """The highest allocatable amount by node and resource."""
    amounts: dict[tuple[str, int], float] = {}
    for each in series:
        resource = each.labels.get("resource", "")
        known = each.values[~np.isnan(each.values)]
        if resource in RESOURCES and len(known):
            key = (_label(each, "node", "allocatable"), RESOURCES.index(resource))
            amounts[key] = max(float(known.max()), amounts.get(key, 0.0))
    return amounts


def _stated(
    pod: _Pod,
    used: set[str],
    requests: _Amounts,
    limits: _Amounts,
    allocatable: Mapping[tuple[str, int], float],
    resources: Sequence[int],
) -> tuple[list[float], list[bool]]:
    """Values of `AMOUNTS`, and whether each limit is assumed. A container without a request
    requests nothing. A pod has a limit if each of its containers has; else what is allocatable on
    its node limits it."""
    amounts, is_assumed = [0.0] * len(AMOUNTS), [False] * len(RESOURCES)
    for r in resources:
        requested, limited = (
            table.get((pod, r)) or table.get((pod._replace(node=""), r)) or {}
            for table in (requests, limits)
        )
        request = sum(requested.values())
        names = (used | {*requested}) - {""}
        limit = sum(limited.values())
        if not limited or not names <= {*limited}:
            limit = max(allocatable[pod.node, r], request)
            is_assumed[r] = True
        amounts[2 * r : 2 * r + 2] = [request * _TO_TABLE[r], limit * _TO_TABLE[r]]
    return amounts, is_assumed


def _row(pod: _Pod, usage: _Usage, stated: Sequence[float]) -> dict[str, Any]:
    memory = usage.amounts[1] if len(usage.amounts) > 1 else None
    return {
        "series": pod.title, "node": pod.node, "start": usage.start,
        "cpu_m": usage.amounts[0], "mem_mi": memory, **dict(zip(AMOUNTS, stated, strict=True)),
    }  # fmt: skip


def _tables(
    rows: Sequence[Mapping[str, Any]], grid: _Grid, allocatable: Mapping[tuple[str, int], float]
) -> tuple[pa.Table, pa.Table]:
    steps = grid.steps
    metadata = {
        "step_s": str(steps.step_seconds),
        "steps": str(steps.steps),
        "t0_unix": str(steps.start_seconds - steps.step_seconds),
    }
    names = ("series", "start", *AMOUNTS, "cpu_m", "mem_mi")
    lists = {"cpu_m", "mem_mi"}
    kind = pa.large_list(pa.float64())
    series = pa.table(
        {
            name: pa.array([row[name] for row in rows], kind if name in lists else None)
            for name in names
        }
    )
    placement = pa.table(
        {
            "scenario": [_SCENARIO] * len(rows),
            "node": [row["node"] for row in rows],
            "pod": [row["series"] for row in rows],
            "series": [row["series"] for row in rows],
            "start": [row["start"] for row in rows],
            "end": [row["start"] + len(row["cpu_m"]) for row in rows],
            "allocatable_m": [allocatable[row["node"], 0] * _TO_TABLE[0] for row in rows],
        }
    )
    return series.replace_schema_metadata(metadata), placement.replace_schema_metadata(metadata)
