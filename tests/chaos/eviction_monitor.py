"""Whether evictions kept within every limit, by the API server's audit log.

Written from docs/reference/evictor.md and docs/reference/descheduler.md, and from no code of the
product: the monitor has its own count of every limit. It judges requests at the moment at which the
server received them, when the evictor had decided. A plan that makes room counts once for the
limiter of a workload, which this monitor does not know: give it such plans of bare pods only.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pipeline.times import parse_time
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord
from tests.chaos.audit_log import OURS, AuditedPod, AuditEvent, Cluster, Deletion, Eviction, replay

_TOLERANCE_SECONDS: Final = 0.05
"""The broker, the evictor and the API server read the same clock, and not at the same moment."""
_WAY_SECONDS: Final = 5.0
"""A call that began before the end of its plan may be under way for so long."""
_LONGEST_PLAN_SECONDS: Final = 300.0
_REST_SECONDS: Final = 1800.0
"""For so long no other pod of a workload is planned, and none is bound to the node that it left."""
_KNOWN_SECONDS: Final = 10.0
"""Within this time an extender knows of an alert or an eviction, and a pod is bound."""
_WAITING_SECONDS: Final = 300.0
"""A pod that waits for so long may be bound to a hot node."""

Number = int | str
"""A number, or a percentage of replicas."""


class Bucket(NamedTuple):
    """`objectLimiters`: evictions of one object per duration, and at once."""

    seconds: float
    most: Number | None
    burst: int


_DEFAULT_BUCKET: Final = Bucket(300.0, None, 1)


@dataclass
class Limits:
    """The limits of a configuration; None is no limit, of a workload that by its replicas."""

    per_minute: float
    globally: int | None = None
    per_node: int | None = 2
    per_namespace: int | None = None
    per_workload: Number | None = None
    unavailable: Number | None = None
    ttl_seconds: float = 300.0
    workload_bucket: Bucket = _DEFAULT_BUCKET
    namespace_bucket: Bucket | None = None
    cycle_seconds: float = 10.0
    cycle_per_node: int | None = None
    cycle_per_namespace: int | None = None
    cycle_total: int | None = None
    per_second: float = 10.0
    burst: int = 1


class PublishedPlan(NamedTuple):
    """A plan, and when the broker appended it (Unix time)."""

    plan: EvictionPlanRecord
    appended_at: float


class PublishedAlert(NamedTuple):
    """A change of an alert, and when the broker appended it (Unix time)."""

    alert: AlertRecord
    appended_at: float


@dataclass
class Observed:
    """What the monitor judges. `intended` has the times at which the broker appended the records of
    intended evictions, by UID. `alerts` are given only where the planner makes all plans, and the
    scheduler asks an extender: then the loop that they close is judged, too."""

    events: Sequence[AuditEvent]
    limits: Limits
    plans: Sequence[PublishedPlan]
    intended: Mapping[str, Sequence[float]]
    alerts: Sequence[PublishedAlert] = ()


class Violation(NamedTuple):
    """What was exceeded, and how."""

    limit: str
    text: str

    def __str__(self) -> str:
        return f"{self.limit}: {self.text}"


def read_limits(configuration: Mapping[str, Any], per_minute: float) -> Limits:
    """The limits of a DeschedulerConfiguration with one profile, with the defaults of the
    documentation, for an evictor with so many evictions per minute."""
    profiles = configuration["profiles"]
    args: dict[str, Any] = {}
    for plugin in profiles[0]["pluginConfig"]:
        if plugin["name"] == "MigrationController":
            args = plugin["args"]
    limiters = args.get("objectLimiters", {})
    return Limits(
        per_minute=per_minute,
        globally=args.get("maxMigratingGlobally") or None,
        per_node=args.get("maxMigratingPerNode", 2) or None,
        per_namespace=args.get("maxMigratingPerNamespace") or None,
        per_workload=args.get("maxMigratingPerWorkload"),
        unavailable=args.get("maxUnavailablePerWorkload"),
        ttl_seconds=_seconds(args.get("defaultJobTTL", "300s")),
        workload_bucket=_bucket(limiters.get("workload")) or _DEFAULT_BUCKET,
        namespace_bucket=_bucket(limiters.get("namespace")),
        cycle_seconds=_seconds(configuration.get("deschedulingInterval", "0s")) or 10.0,
        cycle_per_node=configuration.get("maxNoOfPodsToEvictPerNode"),
        cycle_per_namespace=configuration.get("maxNoOfPodsToEvictPerNamespace"),
        cycle_total=configuration.get("maxNoOfPodsToEvictTotal"),
        per_second=float(args.get("evictQPS", 10)),
        burst=args.get("evictBurst", 1),
    )


def _bucket(args: Mapping[str, Any] | None) -> Bucket | None:
    if args is None:
        return None
    return Bucket(_seconds(args["duration"]), args.get("maxMigrating"), args.get("burst", 1))


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def violations(observed: Observed) -> list[Violation]:
    """Everything that the evictions of our roles exceed, in their order."""
    found = [*_Monitor(observed).judge()]
    return [*found, *_loop_violations(observed)] if observed.alerts else found


def accepted(events: Sequence[AuditEvent]) -> list[Eviction]:
    """The evictions of our roles that the API server accepted."""
    return [
        request
        for _, request in replay(events)
        if isinstance(request, Eviction) and _is_ours(request) and request.is_accepted
    ]


def _is_ours(request: Eviction | Deletion) -> bool:
    return request.agent.startswith(OURS)


def share_of(replicas: int, setting: Number | None) -> int:
    """How many of so many pods a setting allows: without one 1 up to 3, 2 up to 10, then 10%.
    Percentages are rounded down, but never to 0."""
    if setting is None:
        return 1 if replicas <= 3 else 2 if replicas <= 10 else replicas // 10
    if isinstance(setting, str):
        return max(1, replicas * int(setting.rstrip("%")) // 100)
    return setting


@dataclass
class _Monitor:
    observed: Observed
    past: list[Eviction] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    of_workload: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    of_namespace: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def judge(self) -> Iterator[Violation]:
        for cluster, request in replay(self.observed.events):
            if not _is_ours(request):
                continue
            if isinstance(request, Deletion):
                yield Violation("DELETE", f"{request.agent} deletes {request.path}")
                continue
            if not request.is_dry and not request.uid:
                yield Violation("UID", f"{request.namespace}/{request.name} is named alone")
            if request.is_accepted and request.pod is None:
                yield Violation("plan", f"{request.namespace}/{request.name} is not known")
            elif request.is_accepted and request.pod is not None:
                yield from self._of_plan(request, request.pod)
                yield from self._at_once(cluster, request.pod)
                yield from self._of_its_workload(cluster, request.pod, request.at)
                yield from self._in_time(cluster, request, request.pod)
                self.past.append(request)

    def _of_plan(self, request: Eviction, pod: AuditedPod) -> Iterator[Violation]:
        """A valid plan names the pod; its record comes first; and it is evicted once."""
        plans = [plan for plan in self.observed.plans if _names(plan.plan, pod)]
        if not any(_is_valid(plan, request.at) for plan in plans):
            ends = [f"{request.at - _end_of(plan):.1f} s after the end of a plan" for plan in plans]
            yield Violation(
                "plan", f"{pod.name} ({pod.uid}) leaves {', '.join(ends) or 'unplanned'}"
            )
        recorded = self.observed.intended.get(pod.uid, ())
        if not any(at <= request.at + _TOLERANCE_SECONDS for at in recorded):
            yield Violation("record", f"{pod.name} is evicted without a record")
        if pod.evicted_at is not None:
            yield Violation("twice", f"{pod.name} ({pod.uid}) is evicted again")

    def _at_once(self, cluster: Cluster, pod: AuditedPod) -> Iterator[Violation]:
        limits, leaving = self.observed.limits, _leaving(cluster, pod)
        on_node = sum(other.node == pod.node for other in leaving)
        in_namespace = sum(other.namespace == pod.namespace for other in leaving)
        yield from _above("global", len(leaving) + 1, limits.globally, "the cluster")
        yield from _above("node", on_node + 1, limits.per_node, pod.node)
        yield from _above("namespace", in_namespace + 1, limits.per_namespace, pod.namespace)

    def _of_its_workload(self, cluster: Cluster, pod: AuditedPod, at: float) -> Iterator[Violation]:
        limits, workload = self.observed.limits, pod.workload
        if not workload:
            return
        replicas = cluster.replicas.get(workload, 1)
        siblings = [p for p in cluster.pods.values() if p.workload == workload and p is not pod]
        ready = sum(p.is_ready and p.deleted_at is None for p in siblings)
        # The place of the pod itself does not count.
        lacking = max(replicas - 1 - ready, 0)
        leaving = [p for p in _leaving(cluster, pod) if p.workload == workload]
        gone = sum(
            p.evicted_at is not None and p.gone_at is not None
            and at - p.evicted_at < limits.ttl_seconds
            for p in siblings
        )  # fmt: skip
        moving = len(leaving) + min(gone, max(lacking - len(leaving), 0))
        most = share_of(replicas, limits.per_workload)
        yield from _above("workload", moving + 1, most, workload)
        most = share_of(replicas, limits.unavailable)
        yield from _above("unavailable", lacking + 1, most, workload)

    def _in_time(self, cluster: Cluster, request: Eviction, pod: AuditedPod) -> Iterator[Violation]:
        limits, at = self.observed.limits, request.at
        if self.past and at - self.past[-1].at < 60.0 / limits.per_minute - _TOLERANCE_SECONDS:
            between = at - self.past[-1].at
            yield Violation("rate", f"{between:.2f} s apart, {limits.per_minute:g} a minute")
        each = Bucket(1.0 / limits.per_second, 1, limits.burst)
        yield from _above_bucket("evictQPS", self.times, at, each, 1, "the cluster")
        since = at - limits.cycle_seconds + _TOLERANCE_SECONDS
        recent = [e.pod for e in self.past if e.at > since and e.pod is not None]
        on_node = sum(other.node == pod.node for other in recent)
        in_namespace = sum(other.namespace == pod.namespace for other in recent)
        yield from _above("cycle of a node", on_node + 1, limits.cycle_per_node, pod.node)
        most, where = limits.cycle_per_namespace, pod.namespace
        yield from _above("cycle of a namespace", in_namespace + 1, most, where)
        yield from _above("cycle", len(recent) + 1, limits.cycle_total, "the cluster")
        if pod.workload:
            bucket = limits.workload_bucket
            setting = limits.per_workload if bucket.most is None else bucket.most
            count = share_of(cluster.replicas.get(pod.workload, 1), setting)
            times = self.of_workload[pod.workload]
            yield from _above_bucket("workload limiter", times, at, bucket, count, pod.workload)
        if (of_all := limits.namespace_bucket) is not None and isinstance(of_all.most, int):
            times = self.of_namespace[where]
            yield from _above_bucket("namespace limiter", times, at, of_all, of_all.most, where)


def _loop_violations(observed: Observed) -> Iterator[Violation]:
    """What a closed loop of planner, evictor, scheduler and extender must not do."""
    cluster = Cluster({}, {})
    evictions: list[Eviction] = []
    for _, request in replay(observed.events, cluster):
        if isinstance(request, Eviction) and _is_ours(request) and request.is_accepted:
            yield from _too_early(observed.plans, evictions, request)
            evictions.append(request)
    for pod in cluster.pods.values():
        yield from _returned(observed, evictions, pod)
    yield from _heated(observed, evictions)


def _too_early(
    plans: Sequence[PublishedPlan], evictions: Sequence[Eviction], request: Eviction
) -> Iterator[Violation]:
    """Planned by the planner after another pod of the workload was evicted. Pods that were planned
    before may leave, too."""
    pod = request.pod
    planned = [each.appended_at for each in plans if pod is not None and _names(each.plan, pod)]
    for other in evictions:
        is_sibling = pod and other.pod and pod.workload and pod.workload == other.pod.workload
        if is_sibling and planned and 0 < min(planned) - other.at < _REST_SECONDS:
            seconds = min(planned) - other.at
            yield Violation(
                "rest", f"{request.name} was planned {seconds:.0f} s after {other.name} left"
            )
            return


def _returned(
    observed: Observed, evictions: Sequence[Eviction], pod: AuditedPod
) -> Iterator[Violation]:
    """Bound to the node that a pod of its workload had left for a target that is not hot. The alert
    of the node is still open, or the extender had the time to read of the eviction."""
    at = pod.bound_at
    if at is None or not pod.workload or at - pod.created_at >= _WAITING_SECONDS:
        return
    for other in (each for each in evictions if each.pod and each.pod.workload == pod.workload):
        seconds = at - other.at
        if other.pod is None or other.pod.node != pod.node or not 0 < seconds < _REST_SECONDS:
            continue
        if seconds < _KNOWN_SECONDS and not _was_hot(observed.alerts, pod.node, at):
            continue
        for target in _targets(observed.plans, other.pod.uid):
            if target != pod.node and not _may_be_hot(observed.alerts, target, at):
                text = f"{pod.name} of {pod.workload} is back on {pod.node} after {seconds:.0f} s"
                yield Violation("return", f"{text}, not on {target}")
                return


def _heated(observed: Observed, evictions: Sequence[Eviction]) -> Iterator[Violation]:
    """An alert of a node was opened after a pod was evicted that a plan expected there."""
    for request in evictions:
        for target in _targets(observed.plans, request.pod.uid if request.pod else ""):
            for since, _ in _spans(observed.alerts, target):
                if 0 < since - request.at < _REST_SECONDS:
                    seconds = since - request.at
                    text = f"{target} is hot {seconds:.0f} s after {request.name} left for it"
                    yield Violation("target", text)


def _targets(plans: Sequence[PublishedPlan], uid: str) -> Iterator[str]:
    """Where plans expected the replacement of a pod."""
    for published in plans:
        for leaving in published.plan.pods:
            if leaving.uid == uid and leaving.target:
                yield leaving.target


def _spans(alerts: Sequence[PublishedAlert], node: str) -> Iterator[tuple[float, float]]:
    """When each alert of the node was open, by the broker's clock."""
    opened: dict[str, float] = {}
    closed: dict[str, float] = {}
    for alert, appended_at in alerts:
        if alert.node == node:
            opened[alert.id] = min(appended_at, opened.get(alert.id, appended_at))
            if alert.transition == "closed":
                closed[alert.id] = min(appended_at, closed.get(alert.id, appended_at))
    for name, since in opened.items():
        yield since, closed.get(name, float("inf"))


def _was_hot(alerts: Sequence[PublishedAlert], node: str, at: float) -> bool:
    """Whether the extender knew of an open alert of the node when the pod was bound."""
    spans = _spans(alerts, node)
    return any(since + _KNOWN_SECONDS < at < until - _KNOWN_SECONDS for since, until in spans)


def _may_be_hot(alerts: Sequence[PublishedAlert], node: str, at: float) -> bool:
    """Whether the extender may have known of an open alert of the node."""
    spans = _spans(alerts, node)
    return any(since < at < until + _KNOWN_SECONDS for since, until in spans)


def _is_valid(published: PublishedPlan, at: float) -> bool:
    return published.appended_at - _TOLERANCE_SECONDS <= at <= _end_of(published) + _WAY_SECONDS


def _end_of(published: PublishedPlan) -> float:
    """When a plan is over, by its own times and by the broker's."""
    made_at, until = parse_time(published.plan.at), parse_time(published.plan.valid_until)
    return min(until, published.appended_at + min(until - made_at, _LONGEST_PLAN_SECONDS))


def _names(plan: EvictionPlanRecord, pod: AuditedPod) -> bool:
    return plan.node == pod.node and any(leaving.uid == pod.uid for leaving in plan.pods)


def _leaving(cluster: Cluster, pod: AuditedPod) -> list[AuditedPod]:
    """Other pods that were evicted and still exist."""
    return [
        other
        for other in cluster.pods.values()
        if other.evicted_at is not None and other.gone_at is None and other is not pod
    ]


def _above(limit: str, count: int, most: int | None, where: str) -> Iterator[Violation]:
    if most is not None and count > most:
        yield Violation(limit, f"{count} of {where}, the limit is {most}")


def _above_bucket(
    limit: str, times: list[float], at: float, bucket: Bucket, count: int, where: str
) -> Iterator[Violation]:
    """Within any time since an earlier eviction there are at most the burst and what that time
    allows. Adds the eviction to `times`."""
    times.append(at)
    if bucket.seconds <= 0 or count <= 0:
        return
    for number, first in enumerate(times):
        allowed = max(bucket.burst, 1) + (at - first + _TOLERANCE_SECONDS) * count / bucket.seconds
        if len(times) - number > allowed:
            text = f"{len(times) - number} of {where} in {at - first:.1f} s, {allowed:.1f} allowed"
            yield Violation(limit, text)
            return
