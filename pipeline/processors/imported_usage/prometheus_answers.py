"""Turn answers of Prometheus' `/api/v1/query` into usage.

An invalid answer loses its column. A series without the name of a node or pod is skipped, an
invalid value becomes null; both are counted. If two series name the same entity, neither is used.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import (
    FetchedUsage,
    PodName,
    SampleColumns,
    TimedValues,
    TimeWindow,
    largest,
    plausible,
    points,
    statistics,
)
from pipeline.processors.imported_usage.promql import Query, QueryGrid
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
    """The series of one answer, and Prometheus' warnings."""

    series: list[_Series]
    warnings: tuple[str, ...] = ()


_answers: Final = msgspec.json.Decoder(_Answer)
_series: Final = msgspec.json.Decoder(list[_Series])


def read_matrix(body: bytes) -> Matrix:
    """Read the series of an answer. Raises `SampleSourceError` for an error, a truncated body, and
    any other kind of answer."""
    try:
        answer = _answers.decode(body)
        if answer.status == "success" and answer.data is not None:
            if answer.data.result_type != "matrix":
                raise SampleSourceError(
                    f"the answer is a {answer.data.result_type:.40}, not a matrix"
                )
            return Matrix(_series.decode(answer.data.result), tuple(answer.warnings))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SampleSourceError(f"the answer cannot be read: {str(error)[:200]}") from error
    raise SampleSourceError(f"{answer.error_type or answer.status}: {answer.error}"[:300])


def error_text(body: bytes) -> str:
    """The error in an answer of Prometheus; the beginning of any other body."""
    try:
        answer = _answers.decode(body)
        return f"{answer.error_type}: {answer.error}"[:300]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body[:200].decode(errors="replace").strip()


def gather(answers: Mapping[Query, Matrix], window: TimeWindow, grid: QueryGrid) -> FetchedUsage:
    """The usage of nodes and pods in `window` by these answers."""
    fetched = FetchedUsage(knows_pods=any(query.entity == "pod" for query in answers))
    measured: dict[str, dict[str, TimedValues]] = {}

    def read_node(metric: Mapping[str, str]) -> str | None:
        return node_name(metric.get(grid.node_label, ""))

    read_pod = _pod_reader(grid.pod_node_label)
    for query, matrix in answers.items():
        if query.entity == "pod":
            pods = _values_by_entity(matrix, window, query, fetched, read_pod)
            for pod, values in pods.items():
                fetched.pods.setdefault(pod, {}).update(_columns(query.column, values, grid))
        else:
            nodes = _values_by_entity(matrix, window, query, fetched, read_node)
            for node, values in nodes.items():
                fetched.nodes.setdefault(node, {}).update(_columns(query.column, values, grid))
                measured.setdefault(node, {})[query.column] = values
    for node, usages in measured.items():
        cpu, memory = usages.get("cpu_cores", {}), usages.get("memory_bytes", {})
        fetched.nodes[node] |= points(window, cpu, memory)
    return fetched


def _columns(column: str, values: TimedValues, grid: QueryGrid) -> SampleColumns:
    if not values:
        return {}
    if column not in USAGES:
        return {column: sum(values.values()) / len(values)}
    columns = statistics(column, list(values.values()))
    if column == "cpu_cores":
        columns["coverage"] = min(1.0, len(values) * grid.step_seconds / grid.window_seconds)
    return columns


def _values_by_entity(
    matrix: Matrix,
    window: TimeWindow,
    query: Query,
    fetched: FetchedUsage,
    name_of: Callable[[Mapping[str, str]], _Named | None],
) -> dict[_Named, TimedValues]:
    """The values of each named node or pod; unused series are counted in `fetched`."""
    series: dict[_Named, TimedValues] = {}
    twice: set[_Named] = set()
    for each in matrix.series:
        name = name_of(each.metric)
        if name is None:
            fetched.left_out["names nobody"] += 1
        elif name in series:
            twice.add(name)
        else:
            series[name] = _values(each, window, query, fetched.bad_values)
    for name in twice:
        del series[name]
        fetched.left_out["two series"] += 1
    return series


def _values(
    series: _Series, window: TimeWindow, query: Query, bad_values: Counter[str]
) -> TimedValues:
    most, values = largest(query.column), {}
    for seconds, text in series.values:
        milliseconds = seconds * 1000  # may be infinite where seconds are not
        if not math.isfinite(milliseconds) or not window.has(time_ms := round(milliseconds)):
            continue
        value = plausible(_number(text), most)
        if value is None:
            bad_values[query.key] += 1
        else:
            values[time_ms] = value
    return dict(sorted(values.items()))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def node_name(text: str) -> str | None:
    """The node that a label names, without the port of an address; None if the name is invalid.

    >>> node_name("n1:9100"), node_name("n1"), node_name("[::1]:9100"), node_name("")
    ('n1', 'n1', None, None)
    """
    name = text.partition(":")[0]
    try:
        check_node_name(name)
    except InvalidRecordError:
        return None
    return name


def _pod_reader(label: str) -> Callable[[Mapping[str, str]], PodName | None]:
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
