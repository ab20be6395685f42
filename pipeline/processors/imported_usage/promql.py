"""The queries to Prometheus: one a column, over metrics of node-exporter and cAdvisor.

A query returns a series for each node or pod. It is sent as a subquery, so that one answer has all
points of the window for the statistics. The key of a query is `node.` or `pod.`, and a usage
(`cpu_cores`), another number of samples (`capacity_cpu_cores`), or of a node a gauge
(`example.com/conntrack`). In its text `$node` and
`$pod_node` are the labels with the node's name, `$rate` is the range of rates, and `$window` the
length of the window.
"""

from collections.abc import Mapping
from string import Template
from typing import Final, NamedTuple

from pipeline.errors import SettingsError
from pipeline.topics.resource_amounts import MAX_GAUGES, is_gauge
from pipeline.topics.samples import NUMBER_COLUMNS, STATISTICS, USAGES

# The paths of containers' cgroups have the pod's uid, those of static pods its hash.
_UID: Final = '"uid", "$1", "id", ".*pod([0-9a-f]{8}[0-9a-f_-]{24,28})[./].*"'
_CONTAINERS: Final = '{container!="", container!="POD", pod!=""}'
_POD_LABELS: Final = "$pod_node, namespace, pod, uid"


def _sum_of_containers(metric: str) -> str:
    # A container may be scraped twice, by two servers or under two ids.
    labelled = f"label_replace({metric}, {_UID})"
    return f"sum by ({_POD_LABELS}) (max by ({_POD_LABELS}, container) ({labelled}))"


_MEMORY: Final = "max by ($node) (node_memory_MemTotal_bytes - node_memory_{}_bytes)"

DEFAULT_QUERIES: Final[Mapping[str, str]] = {
    "node.cpu_cores": "sum by ($node) (max by ($node, cpu, mode) "
    '(rate(node_cpu_seconds_total{mode!~"idle|iowait|steal"}[$rate])))',
    "node.memory_bytes": _MEMORY.format("MemAvailable"),
    "node.memory_with_page_cache_bytes": _MEMORY.format("MemFree"),
    "node.capacity_cpu_cores": "count by ($node) (count by ($node, cpu) "
    '(node_cpu_seconds_total{mode="idle"}))',
    "node.capacity_memory_bytes": "max by ($node) (node_memory_MemTotal_bytes)",
    "pod.cpu_cores": _sum_of_containers(
        f"rate(container_cpu_usage_seconds_total{_CONTAINERS}[$rate])"
    ),
    "pod.memory_bytes": _sum_of_containers(f"container_memory_rss{_CONTAINERS}"),
    "pod.memory_with_hot_page_cache_bytes": _sum_of_containers(
        f"container_memory_working_set_bytes{_CONTAINERS}"
    ),
}

_USAGE_COLUMNS: Final = frozenset(
    f"{usage}_{statistic}" for usage in USAGES for statistic in STATISTICS
)
_QUERYABLE: Final = (
    *USAGES,
    *(c for c in NUMBER_COLUMNS if c not in _USAGE_COLUMNS and c != "coverage"),
)


class QueryGrid(NamedTuple):
    """Length of the window, time between two points and range of rates, in seconds, and the labels
    with the node's name in series of nodes and of pods."""

    window_seconds: int
    step_seconds: int
    rate_seconds: int
    node_label: str
    pod_node_label: str


class Query(NamedTuple):
    """The query of one column of a `node` or `pod`; `text` is PromQL."""

    entity: str
    column: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.entity}.{self.column}"


def queries(own: Mapping[str, str | None], grid: QueryGrid) -> list[Query]:
    """The default queries with `own` in their places; null removes a query. Raises `SettingsError`
    for an invalid key, and for too many gauges."""
    chosen = []
    for key, text in {**DEFAULT_QUERIES, **own}.items():
        entity, _, column = key.partition(".")
        is_of_node = entity == "node" and is_gauge(column)
        if not is_of_node and (entity not in ("node", "pod") or column not in _QUERYABLE):
            raise SettingsError(
                f"provider.queries: {key!r:.100} is not a column that can be queried",
                key="provider.queries",
                hint="use node. or pod. and one of "
                + ", ".join(_QUERYABLE)
                + ", or node. and the name of an extended resource",
            )
        if text is not None:
            chosen.append(Query(entity, column, _subquery(text, grid)))
    if sum(is_gauge(query.column) for query in chosen) > MAX_GAUGES:
        raise SettingsError(
            f"provider.queries: more than {MAX_GAUGES} extended resources",
            key="provider.queries",
            hint="workers ignore further ones",
        )
    return chosen


def _subquery(text: str, grid: QueryGrid) -> str:
    # Other names, such as $1, stay.
    filled = Template(text).safe_substitute(
        node=grid.node_label,
        pod_node=grid.pod_node_label,
        rate=f"{grid.rate_seconds}s",
        window=f"{grid.window_seconds}s",
    )
    # A query may end with a comment.
    return f"({filled}\n)[{grid.window_seconds}s:{grid.step_seconds}s]"
