"""The queries to Prometheus for a report: metrics of kube-state-metrics, and of the kubelet's
cAdvisor.

Instant queries are evaluated at the end of the history, those of means at the end of each part of
it, range queries once an hour. Aggregation is left to the server: an answer has one value for each
pod and hour at most. `$hours` is the length of the history or part, `$rate` the span over which cpu
is averaged, `$match` further matchers of labels. A subquery spans a minute less than its hours:
then versions before 3, which count both ends of a span, have the same points in it.

The containers of a pod are summed. After a restart a container has two series, with other values of
`id`: their rates are summed, since each one has only a part of the time; of their memory the higher
one counts.

The server reads each sample of memory twice, for the highest and for the mean, but those of cpu
once: counters at both ends of a part have the mean of the pods whose containers ran throughout.
Other series it reads at the end only: names and owners of pods that ended are labels (`SERIES`),
and requests are those at the end, but of pods that ended the last ones. A pod of the same name may
have had others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from string import Template
from typing import Final, NamedTuple
from urllib.parse import quote

from pipeline.errors import UsageError
from pipeline.processors.report.cluster_usage import HOUR_SECONDS

LABELS_OF_POD: Final = ("namespace", "pod", "node", "instance")
"""Labels of the series of usage of pods."""
_POD: Final = ", ".join(LABELS_OF_POD)
_OF_CONTAINER: Final = 'container!="", container!="POD", pod!=""$match'
_CONTAINERS: Final = f"{{{_OF_CONTAINER}}}"
_CPU: Final = "container_cpu_usage_seconds_total"
_MEMORY: Final = "container_memory_working_set_bytes"
_ROOT: Final = '{id="/"$match}'
_AMOUNTS: Final = "cpu|memory"
_TIERS: Final = "kubernetes_io_(batch|mid)_(cpu|memory)"
_REQUESTS: Final = ("kube_pod_container_resource_requests", f"{_AMOUNTS}|{_TIERS}")
_INTERVALS_OF_RATE: Final = 4
_RATE_MINUTES: Final = (5, 10, 15, 20, 30, 60)
RATE_SECONDS: Final = 60 * _RATE_MINUTES[0]
"""cpu is averaged over this span, unless scrapes are too far apart."""


def _sum_of_cpu(usage: str) -> str:
    return f"sum by ({_POD}) (max by ({_POD}, container, id) ({usage}))"


def _cpu_of_pods(span: str) -> str:
    return _sum_of_cpu(f"rate({_CPU}{_CONTAINERS}[{span}])")


def _counters(matchers: str, offset: str = "") -> str:
    # An instant vector would lack those that are scraped less often than every five minutes.
    return f"last_over_time({_CPU}{{{matchers}}}[$rate]{offset})"


def _memory_of_pods(function: str) -> str:
    samples = f"{function}({_MEMORY}{_CONTAINERS}[1h])"
    return f"sum by ({_POD}) (max by ({_POD}, container) ({samples}))"


def _stated(metric: str, resources: str, span: str = "") -> str:
    series = f'{metric}{{resource=~"{resources}", node!=""$match}}'
    series = f"last_over_time({series}[{span}])" if span else series
    labels = "namespace, pod, node"
    return f"sum by ({labels}, resource) (max by ({labels}, container, resource) ({series}))"


def _of_nodes(metric: str) -> str:
    return f'max by (node, resource) ({metric}{{resource=~"{_AMOUNTS}"$match}})'


INSTANT: Final = {
    "allocatable": _of_nodes("kube_node_status_allocatable"),
    "capacity": _of_nodes("kube_node_status_capacity"),
    "node_labels": 'kube_node_labels{node!=""$match}',
    "present": 'max by (namespace, pod, node) (kube_pod_info{node!=""$match})',
    "running": 'max by (namespace, pod, node) (kube_pod_info{node!=""$match}) '
    "and on (namespace, pod) (max by (namespace, pod) "
    '(kube_pod_status_phase{phase=~"Pending|Running"$match}) == 1)',
    "requests": _stated(*_REQUESTS),
    "limits": _stated("kube_pod_container_resource_limits", _AMOUNTS),
    "cpu_last": _cpu_of_pods("1h"),
    "memory_last": _memory_of_pods("avg_over_time"),
}
"""Instant queries by name."""

ENDED_REQUESTS: Final = _stated(*_REQUESTS, "${hours}h")
"""The last requests of pods; for those that ended, which `pod_matchers` select."""


class LabelQuery(NamedTuple):
    """Series of which only these `labels` are read."""

    selector: str
    labels: tuple[str, ...]


SERIES: Final = {
    "pods": LabelQuery(
        'kube_pod_info{node!=""$match}',
        ("namespace", "pod", "node", "created_by_kind", "created_by_name"),
    ),
    "replicasets": LabelQuery(
        'kube_replicaset_owner{owner_kind!="", owner_kind!="<none>"$match}',
        ("namespace", "replicaset", "owner_kind", "owner_name"),
    ),
    "jobs": LabelQuery(
        'kube_job_owner{owner_kind!="", owner_kind!="<none>"$match}',
        ("namespace", "job_name", "owner_kind", "owner_name"),
    ),
}
"""Series of the whole history, by name."""


def _mean_of_hours(usage: str) -> str:
    return f"avg_over_time(({usage})[${{minutes}}m:1h])"


MEANS: Final = {
    "cpu": _mean_of_hours(_cpu_of_pods("1h")),
    "memory": _mean_of_hours(_memory_of_pods("avg_over_time")),
}
"""The mean over the hours of a part that each pod has usage in."""

# Without an id of the container, a counter may have begun again at 0.
_OF_RUN: Final = f'id!="", {_OF_CONTAINER}'
_CPU_BY_COUNTERS: Final = f"({_counters(_OF_RUN)} - {_counters(_OF_RUN, ' offset 1h')} >= 0) / 3600"
CHANGED_CPU: Final = _mean_of_hours(
    _sum_of_cpu(f"{_CPU_BY_COUNTERS} or rate({_CPU}{_CONTAINERS}[1h])")
)
"""The same mean of cpu by counters at both ends of each hour, where there are some: exact, and four
times the work of the server."""

COUNTERS: Final = f"max by ({_POD}, container, id) ({_counters(_OF_CONTAINER)})"
"""Seconds of cpu of containers since they started, at both ends of a part: to compare two answers
takes a server ten times as long as both. In one range query it reads all samples between them."""

NODE_RANGES: Final = {
    "node_cpu": f"max by (node, instance) (rate({_CPU}{_ROOT}[1h]))",
    "node_memory": f"max by (node, instance) (avg_over_time({_MEMORY}{_ROOT}[1h]))",
}
"""Range queries of nodes: average usage of each hour."""
POD_RANGES: Final = {
    "cpu": f"round(max_over_time(({_cpu_of_pods('$rate')})[59m:$rate]), 0.0001)",
    "memory": _memory_of_pods("max_over_time"),
}
"""Range queries of pods: the highest usage of each hour. cpu is rounded to tenths of a millicore,
because digits are most of an answer. Memory is the sum of the highest of each container."""

SCRAPES: Final = f"quantile(0.5, count_over_time({_CPU}{_CONTAINERS}[1h]))"
"""How often a container was scraped in the last hour, in the middle of all containers."""

_POD_NAME: Final = re.compile(r"[a-z0-9.-]+")
_MATCHER: Final = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"')


class Span(NamedTuple):
    """What queries ask for: hours of the history and when the last one ends, the span of rates, and
    further matchers, such as `cluster="prod"`."""

    end_seconds: int
    hours: int
    rate_seconds: int = RATE_SECONDS
    matchers: tuple[str, ...] = ()

    def parts(self, most_hours: int) -> list[Span]:
        """Parts of at most so many hours, the first one first."""
        return [
            self._replace(
                end_seconds=self.end_seconds - (self.hours - end) * HOUR_SECONDS,
                hours=end - first,
            )
            for first in range(0, self.hours, most_hours)
            for end in [min(first + most_hours, self.hours)]
        ]


def filled(query: str, span: Span) -> str:
    """The text of a query. Raises `UsageError` for a matcher that is none."""
    for matcher in span.matchers:
        if not _MATCHER.fullmatch(matcher):
            raise UsageError(
                f"{matcher!r:.100} is not a matcher of labels", hint='such as cluster="prod"'
            )
    return Template(query).substitute(
        hours=span.hours,
        minutes=60 * span.hours - 1,
        rate=f"{span.rate_seconds}s",
        match="".join(f", {matcher}" for matcher in span.matchers),
    )


def pod_matchers(names: Iterable[str], most_characters: int) -> Iterator[str]:
    """Matchers of the pods with these names, each of at most so many characters in a URL, or of one
    name. Other names than those of Kubernetes are left out."""
    own: list[str] = []
    length = 0
    for name in filter(_POD_NAME.fullmatch, names):
        # An escape of a regular expression, in a string of PromQL.
        text = name.replace(".", r"\\.")
        size = len(quote(f"{text}|", safe=""))
        if own and length + size > most_characters:
            yield _any_pod(own)
            own, length = [], 0
        own.append(text)
        length += size
    if own:
        yield _any_pod(own)


def _any_pod(names: Iterable[str]) -> str:
    return f'pod=~"{"|".join(names)}"'


def rate_seconds(scrapes_per_hour: float) -> int:
    """The span over which cpu is averaged: at least four scrapes; an hour at most."""
    interval_minutes = 60.0 / max(scrapes_per_hour, 1.0)
    least = _INTERVALS_OF_RATE * interval_minutes
    return 60 * next((m for m in _RATE_MINUTES if m >= least), _RATE_MINUTES[-1])
