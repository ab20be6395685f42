"""Usage of a node or pod over a recent range: a point per window, and statistics of them.

A missing window is no point, an unknown amount is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from aiohttp import web

from pipeline import API_VERSION
from pipeline.clock import Clock
from pipeline.errors import BadRequestError
from pipeline.extender.http_responses import error_response, struct_response
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import NODE, Parameter, Route
from pipeline.processors.explain.usage_series import SeriesStatistics, statistics_of
from pipeline.table import FeedState
from pipeline.table.pod_history import PodHistory
from pipeline.table.usage_history import History, Series
from pipeline.times import format_time, parse_time

RESOURCES: Final = {"cpu": "cpu_cores", "memory": "memory_bytes"}
_TIME: Final = {"type": "string", "format": "date-time"}
RANGE: Final = (
    Parameter("from", "begin of the range", _TIME, "2023-11-14T22:00:00Z"),
    Parameter("to", "end of the range", _TIME),
    Parameter("last", "instead of both: seconds up to now", {"type": "number"}),
    Parameter("resource", "may be repeated", {"enum": [*RESOURCES]}, "cpu"),
)

_HINT: Final = (
    "from and to are times such as 2023-11-14T22:13:30Z, or last is seconds up to now; resource is "
    "cpu or memory"
)


class NodeSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of a node, or of a pod on it, in a range.

    node: Name of the node.
    pod: Namespace and name of the pod; null for the node itself.
    now: Time of the answer.
    held_from: End of the oldest window in memory, in the range or not.
    as_of: End of each window, the oldest first.
    usage: Average of each window by column; null is unknown.
    statistics: Statistics of the averages by column.
    """

    apiVersion: str = API_VERSION
    kind: str = "NodeSeries"
    node: str
    pod: str | None = None
    now: str
    held_from: str | None
    as_of: list[str]
    usage: dict[str, list[float | None]]
    statistics: dict[str, SeriesStatistics]


@dataclass(frozen=True, slots=True)
class NodeSeriesHandler:
    """The routes over the histories that feeds fill. Without `pods` the series of pods are off."""

    history: History
    feed_state: FeedState
    clock: Clock
    pods: PodHistory | None = None
    pod_feed_state: FeedState | None = None

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        of_pod = (
            Parameter("namespace", "namespace of the pod", {"type": "string"}, "shop", "path"),
            Parameter("pod", "name of the pod", {"type": "string"}, "web-0", "path"),
        )
        return [
            Route(
                "GET", "/v1/nodes/{node}/series", self.series,
                "The recent windows of a node over a range, and statistics of them.",
                NodeSeries, parameters=(NODE, *RANGE), errors=(400, 404, 503),
            ),
            Route(
                "GET", "/v1/nodes/{node}/pods/{namespace}/{pod}/series", self.pod_series,
                "The recent windows of a pod over a range, and statistics of them.",
                NodeSeries, parameters=(NODE, *of_pod, *RANGE), errors=(400, 404, 503),
            ),
        ]  # fmt: skip

    async def series(self, request: web.Request) -> web.Response:
        node, now = request.match_info["node"], self.clock.now()
        first, last = range_of(request, now)
        columns = columns_of(request)
        require_caught_up(self.feed_state)
        series = self.history.get(node)
        if series is None:
            message = f"node {node[:253]!r} has no window in memory"
            return error_response(404, message, "GET /v1/nodes lists the known nodes")
        return struct_response(node_series(node, series, first, last, columns, now))

    async def pod_series(self, request: web.Request) -> web.Response:
        node, now = request.match_info["node"], self.clock.now()
        pod = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        first, last = range_of(request, now)
        columns = columns_of(request)
        if self.pods is None or self.pod_feed_state is None:
            hint = "set extender.pod_history_windows, or use `springtide series NODE --pod`"
            return error_response(404, "this extender has no history of pods", hint)
        require_caught_up(self.pod_feed_state)
        series = self.pods.get(node, pod)
        if series is None:
            message = f"pod {pod[:320]!r} has no window on node {node[:253]!r} in memory"
            return error_response(404, message, "GET /v1/nodes/{node}/view lists its pods")
        return struct_response(node_series(node, series, first, last, columns, now, pod))


def node_series(
    node: str,
    series: Series,
    first: float,
    last: float,
    columns: Sequence[str],
    now: float,
    pod: str | None = None,
) -> NodeSeries:
    """The document of the windows that ended from `first` to `last`."""
    values = series.between(first, last)._asdict()
    ends = series.end_seconds.tolist()
    return NodeSeries(
        node=node,
        pod=pod,
        now=format_time(now),
        held_from=format_time(ends[0]) if ends else None,
        as_of=[format_time(end) for end in values["end_seconds"].tolist()],
        # NaN becomes null.
        usage={column: values[column].tolist() for column in columns},
        statistics={column: statistics_of(values[column]) for column in columns},
    )


def range_of(request: web.Request, now: float) -> tuple[float, float]:
    """The range that a request is about, in seconds since 1970. Raises `BadRequestError`."""
    names = [parameter.name for parameter in RANGE]
    given = {name: request.query[name] for name in names if name in request.query}
    if unknown := sorted(set(request.query) - set(names)):
        raise BadRequestError(f"there is no parameter {unknown[0][:80]!r}", hint=_HINT)
    if "last" in given and ("from" in given or "to" in given):
        raise BadRequestError("last goes with neither from nor to", hint=_HINT)
    try:
        if "last" in given:
            seconds = float(given["last"])
            if not 0 < seconds < np.inf:
                raise ValueError(f"last is {given['last'][:80]!r}")
            return now - seconds, now
        first = parse_time(given["from"]) if "from" in given else 0.0
        last = parse_time(given["to"]) if "to" in given else np.inf
    except (ValueError, OverflowError) as error:
        raise BadRequestError(f"invalid range: {error}", hint=_HINT) from error
    if first > last:
        raise BadRequestError("the range ends before it begins", hint=_HINT)
    return first, last


def columns_of(request: web.Request) -> list[str]:
    """The columns of usage that a request is about. Raises `BadRequestError`."""
    wanted = request.query.getall("resource", list(RESOURCES))
    for resource in wanted:
        if resource not in RESOURCES:
            raise BadRequestError(f"there is no resource {resource[:80]!r}", hint=_HINT)
    return [RESOURCES[resource] for resource in dict.fromkeys(wanted)]
