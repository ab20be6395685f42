"""Answers of Prometheus' `/api/v1/query` as usage.

Owes the rest: an answer that is not what it should be costs its column, a series that names nobody
costs itself, and a value that is none is null; all are counted. Two series of one entity say two
things of it: neither is taken.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, ProviderError
from pipeline.processors.provided.fetched_usage import (
    Columns,
    Fetched,
    PodName,
    Points,
    Window,
    believed,
    largest,
    points,
    statistics,
)
from pipeline.processors.provided.promql import Grid, Query
from pipeline.topics.nodes import check_node_name
from pipeline.topics.samples import USAGES

_UID: Final = re.compile(r"[0-9a-z-]{1,253}")
_Named = TypeVar("_Named", bound=Hashable)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []


class Matrix(NamedTuple):
    """The series of one answer, and what Prometheus warns of."""

    series: list[_Series]
    warnings: tuple[str, ...] = ()


_answers: Final = msgspec.json.Decoder(_Answer)
_series: Final = msgspec.json.Decoder(list[_Series])


def read_matrix(body: bytes) -> Matrix:
    """The series of an answer. Raises `ProviderError` for one that says an error, that is cut off,
    or that is something else."""
    try:
        answer = _answers.decode(body)
        if answer.status == "success" and answer.data is not None:
            if answer.data.result_type != "matrix":
                raise ProviderError(f"the answer is a {answer.data.result_type:.40}, not a matrix")
            return Matrix(_series.decode(answer.data.result), tuple(answer.warnings))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProviderError(f"the answer cannot be read: {str(error)[:200]}") from error
    raise ProviderError(f"{answer.error_type or answer.status}: {answer.error}"[:300])


def said_error(body: bytes) -> str:
    """What an answer says is wrong; its beginning, if it is none of Prometheus'."""
    try:
        answer = _answers.decode(body)
        return f"{answer.error_type}: {answer.error}"[:300]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body[:200].decode(errors="replace").strip()


def gather(answers: Mapping[Query, Matrix], window: Window, grid: Grid) -> Fetched:
    """What these answers say of nodes and pods in `window`."""
    found = Fetched(knows_pods=any(query.entity == "pod" for query in answers))
    measured: dict[str, dict[str, Points]] = {}
    node_of, pod_of = _node_of(grid.node_label), _pod_of(grid.pod_node_label)
    for query, matrix in answers.items():
        if query.entity == "pod":
            for pod, values in _by_entity(matrix, window, query, found, pod_of).items():
                found.pods.setdefault(pod, {}).update(_columns(query.column, values, grid))
        else:
            for node, values in _by_entity(matrix, window, query, found, node_of).items():
                found.nodes.setdefault(node, {}).update(_columns(query.column, values, grid))
                measured.setdefault(node, {})[query.column] = values
    for node, of in measured.items():
        found.nodes[node] |= points(window, of.get("cpu_cores", {}), of.get("memory_bytes", {}))
    return found


def _columns(column: str, values: Points, grid: Grid) -> Columns:
    if not values:
        return {}
    if column not in USAGES:
        return {column: sum(values.values()) / len(values)}
    found = statistics(column, list(values.values()))
    if column == "cpu_cores":
        found["coverage"] = min(1.0, len(values) * grid.step_seconds / grid.window_seconds)
    return found


def _by_entity(
    matrix: Matrix,
    window: Window,
    query: Query,
    found: Fetched,
    name_of: Callable[[Mapping[str, str]], _Named | None],
) -> dict[_Named, Points]:
    """The points of each node or pod that is named; what is not used is counted in `found`."""
    series: dict[_Named, Points] = {}
    twice: set[_Named] = set()
    for one in matrix.series:
        name = name_of(one.metric)
        if name is None:
            found.left_out["names nobody"] += 1
        elif name in series:
            twice.add(name)
        else:
            series[name] = _points(one, window, query, found.bad_values)
    for name in twice:
        del series[name]
        found.left_out["two series"] += 1
    return series


def _points(series: _Series, window: Window, query: Query, bad_values: Counter[str]) -> Points:
    most, points = largest(query.column), {}
    for at_seconds, text in series.values:
        at_ms = round(at_seconds * 1000) if math.isfinite(at_seconds) else -1
        if not window.has(at_ms):
            continue
        value = believed(_number(text), most)
        if value is None:
            bad_values[query.key] += 1
        else:
            points[at_ms] = value
    return dict(sorted(points.items()))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def node_name(text: str) -> str | None:
    """The node that a label names, without the port that an address has; None for none.

    >>> node_name("n1:9100"), node_name("n1"), node_name("[::1]:9100"), node_name("")
    ('n1', 'n1', None, None)
    """
    name = text.partition(":")[0]
    try:
        check_node_name(name)
    except InvalidRecordError:
        return None
    return name


def _node_of(label: str) -> Callable[[Mapping[str, str]], str | None]:
    return lambda metric: node_name(metric.get(label, ""))


def _pod_of(label: str) -> Callable[[Mapping[str, str]], PodName | None]:
    def name_of(metric: Mapping[str, str]) -> PodName | None:
        # systemd writes the dashes of a uid as underscores.
        uid = metric.get("uid", "").replace("_", "-")
        pod = PodName(
            namespace=metric.get("namespace", ""),
            name=metric.get("pod", ""),
            uid=uid if _UID.fullmatch(uid) else "",
            node=node_name(metric.get(label, "")) or "",
        )
        return pod if pod.uid or (pod.name and pod.namespace) else None

    return name_of
