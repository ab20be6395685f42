"""Limits of evictions: how many pods may be on the move, and how often an object loses pods.

`LIMITS` has one check for each limit; an eviction needs the consent of all of them. Each takes a
candidate, what is known about evictions and about the candidate's workload, and the limits of the
operator. Source of the numbers: Koordinator's migration controller.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pipeline.processors.eviction.migration_policy import (
    Gate,
    IntOrPercent,
    MigrationLimits,
    ObjectLimiter,
)
from pipeline.processors.eviction.refusals import Refusal
from pipeline.topics.workloads import Workload

GRACE_SECONDS: Final = 30.0
"""Kubernetes' default of `terminationGracePeriodSeconds`."""


class Candidate(NamedTuple):
    """A pod that may be evicted, or that is being evicted. `workload` is None for a bare pod."""

    uid: str
    node: str
    namespace: str
    name: str = ""
    workload: Workload | None = None


class Eviction(NamedTuple):
    """An eviction of the past: its pod, when it was asked for (monotonic seconds), and how long the
    pod may take to end."""

    pod: Candidate
    at: float
    grace_seconds: float = GRACE_SECONDS

    @property
    def ends_at(self) -> float:
        """When the pod is killed at the latest."""
        return self.at + self.grace_seconds


class WorkloadState(NamedTuple):
    """The pods of a workload. `replicas` is None if unknown. `unavailable` are the UIDs of pods
    that are not Ready, `missing` is how many pods its controller has still to create. `present` are
    all pods that are not being deleted; None if only the rest is known. Jobs have no scale: an
    eviction loses their work."""

    replicas: int | None = None
    unavailable: frozenset[str] = frozenset()
    missing: int = 0
    present: frozenset[str] | None = None
    has_scale: bool = True


class Situation(NamedTuple):
    """What limits depend on at the time `now` (monotonic seconds).

    `leaving`: evicted pods that still exist. `replaced`: pods of the candidate's workload that were
    evicted within the TTL and are gone. `history`: evictions of the past, with those that are
    leaving, in any order; `of_workload` and `of_namespace` are those of the candidate's. They are
    complete for the last `known_seconds`.
    """

    now: float
    leaving: Sequence[Candidate] = ()
    replaced: int = 0
    history: Sequence[Eviction] = ()
    of_workload: Sequence[Eviction] = ()
    of_namespace: Sequence[Eviction] = ()
    state: WorkloadState | None = None
    known_seconds: float = math.inf


Check = Callable[[Candidate, Situation, MigrationLimits], Refusal | None]


def workload_limit(replicas: int | None, setting: IntOrPercent | None) -> int:
    """How many pods of a workload with so many replicas may be on the move, or unavailable.

    Percentages are rounded down, but never to 0; no limit exceeds the replicas. Of a workload with
    unknown replicas it is one.

    >>> [workload_limit(n, None) for n in (1, 4, 10, 11, 25)], workload_limit(50, "0%")
    ([1, 2, 2, 1, 2], 1)
    """
    if replicas is None:
        return 1
    if setting is None:
        limit = replicas // 10 if replicas > 10 else 2 if replicas >= 4 else 1
    elif isinstance(setting, str):
        limit = replicas * int(setting.removesuffix("%")) // 100
    else:
        limit = setting
    return min(max(limit, 1), replicas)


def replica_guard(state: WorkloadState | None, limits: MigrationLimits) -> Iterator[Refusal]:
    """Yield the reason why a workload has too few replicas to lose one. Bare pods have none."""
    if state is None or limits.skip_check_expected_replicas:
        return
    replicas = (state.replicas or 0) if state.has_scale else 0
    migrating = workload_limit(replicas, limits.max_migrating_per_workload)
    unavailable = workload_limit(replicas, limits.max_unavailable_per_workload)
    if replicas == 0:
        text = "the controller is a Job, or its number of replicas is unknown or 0"
    elif replicas in (1, migrating, unavailable):
        text = f"{replicas} replicas, of which {migrating} may move and {unavailable} be missing"
    else:
        return
    yield Refusal("ExpectedReplicas", text, "ExpectedReplicas")


# -- how many at once


def _global(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    others = _others(pod, situation.leaving)
    return _at_once(len(others), limits.max_migrating_globally, "", "MaxMigratingGlobally")


def _per_node(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    if not pod.node:
        return None
    others = [other for other in _others(pod, situation.leaving) if other.node == pod.node]
    where = f" from node {pod.node}"
    return _at_once(len(others), limits.max_migrating_per_node, where, "MaxMigratingPerNode")


def _per_namespace(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    others = _others(pod, situation.leaving)
    count = sum(other.namespace == pod.namespace for other in others)
    where = f" from namespace {pod.namespace}"
    return _at_once(count, limits.max_migrating_per_namespace, where, "MaxMigratingPerNamespace")


def _at_once(count: int, limit: int | None, where: str, gate: Gate) -> Refusal | None:
    if limit is None or limit <= 0 or count < limit:
        return None
    return Refusal(gate, f"{count} pods are leaving{where}, the limit is {limit}", gate)


def _migrating(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    if pod.workload is None:
        return None
    state = situation.state or WorkloadState()
    limit = workload_limit(state.replicas, limits.max_migrating_per_workload)
    # A pod that is gone counts until its replacement is Ready.
    waiting = min(situation.replaced, len(state.unavailable - {pod.uid}) + state.missing)
    count = len(_siblings(pod, situation.leaving)) + waiting
    if count == 0 or count < limit:
        return None
    text = f"{count} pods of {pod.workload} are moving, the limit is {limit}"
    return Refusal("MaxMigratingPerWorkload", text, "MaxMigratingPerWorkload")


def _unavailable(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    if pod.workload is None:
        return None
    state = situation.state or WorkloadState()
    limit = workload_limit(state.replicas, limits.max_unavailable_per_workload)
    leaving = {other.uid for other in _siblings(pod, situation.leaving)}
    if state.present is not None:
        # Pods that are being deleted already count as missing or as their replacement.
        leaving &= state.present
    # The candidate itself may be unavailable: its eviction then makes nothing worse.
    count = len((state.unavailable | leaving) - {pod.uid}) + state.missing
    if count < limit:
        return None
    text = f"{count} pods of {pod.workload} are unavailable, the limit is {limit}"
    return Refusal("MaxUnavailablePerWorkload", text, "MaxUnavailablePerWorkload")


def _others(pod: Candidate, leaving: Iterable[Candidate]) -> set[Candidate]:
    return {other for other in leaving if other.uid != pod.uid}


def _siblings(pod: Candidate, leaving: Iterable[Candidate]) -> set[Candidate]:
    return {other for other in _others(pod, leaving) if other.workload == pod.workload}


# -- how often


def _workload_limiter(
    pod: Candidate, situation: Situation, limits: MigrationLimits
) -> Refusal | None:
    if pod.workload is None:
        return None
    limiter, replicas = limits.workload_limiter, (situation.state or WorkloadState()).replicas
    setting = limiter.max_migrating
    if setting is None:
        setting = limits.max_migrating_per_workload
    count = workload_limit(replicas, setting)
    return _held_back(limiter, count, situation.of_workload, situation, str(pod.workload))


def _namespace_limiter(
    pod: Candidate, situation: Situation, limits: MigrationLimits
) -> Refusal | None:
    limiter = limits.namespace_limiter
    if not isinstance(limiter.max_migrating, int):
        return None
    where = f"namespace {pod.namespace}"
    return _held_back(limiter, limiter.max_migrating, situation.of_namespace, situation, where)


def _held_back(
    limiter: ObjectLimiter,
    count: int,
    evictions: Sequence[Eviction],
    situation: Situation,
    where: str,
) -> Refusal | None:
    duration, now = limiter.duration_seconds, situation.now
    if duration <= 0 or count <= 0:
        return None
    per_second, capacity = count / duration, max(limiter.burst, 1)
    if tokens(evictions, now, per_second, capacity, situation.known_seconds) >= 1.0:
        return None
    text = f"{where} loses at most {count} pods in {duration:g} s"
    if tokens(evictions, now, per_second, capacity) >= 1.0:
        text = f"{text}, and evictions are known for {situation.known_seconds:.0f} s"
    return Refusal("ObjectLimiter", text)


def tokens(
    evictions: Iterable[Eviction],
    now: float,
    per_second: float,
    capacity: int,
    known_seconds: float = math.inf,
) -> float:
    """Tokens in a bucket from which each of these evictions takes one, at worst from the future.

    The bucket was full before evictions are known, or empty, if that was `known_seconds` ago:
    unknown evictions may have taken all. Times ahead of `now` are those of another clock and count
    as now.
    """
    level, last = float(capacity), -math.inf
    if known_seconds < math.inf:
        level, last = 0.0, now - known_seconds
    for at in sorted(min(eviction.at, now) for eviction in evictions):
        if at >= last:
            level, last = min(level + (at - last) * per_second, capacity) - 1.0, at
    return min(level + (now - last) * per_second, capacity)


# -- how many within a cycle


def _cycle_node(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    if not pod.node:
        return None
    count = sum(eviction.pod.node == pod.node for eviction in _of_cycle(situation, limits))
    where = f" from node {pod.node}"
    return _within_cycle(count, limits.cycle_per_node, where, limits, situation)


def _cycle_namespace(
    pod: Candidate, situation: Situation, limits: MigrationLimits
) -> Refusal | None:
    recent = _of_cycle(situation, limits)
    count = sum(eviction.pod.namespace == pod.namespace for eviction in recent)
    where = f" from namespace {pod.namespace}"
    return _within_cycle(count, limits.cycle_per_namespace, where, limits, situation)


def _cycle_total(pod: Candidate, situation: Situation, limits: MigrationLimits) -> Refusal | None:
    count = len([*_of_cycle(situation, limits)])
    return _within_cycle(count, limits.cycle_total, "", limits, situation)


def _of_cycle(situation: Situation, limits: MigrationLimits) -> Iterator[Eviction]:
    since = situation.now - limits.cycle_seconds
    return (eviction for eviction in situation.history if eviction.at > since)


def _within_cycle(
    count: int, cap: int | None, where: str, limits: MigrationLimits, situation: Situation
) -> Refusal | None:
    if cap is None:
        return None
    if situation.known_seconds < limits.cycle_seconds:
        known = f"evictions are known for {situation.known_seconds:.0f} s"
        return Refusal("CycleCap", f"{known} of {limits.cycle_seconds:g} s, the cap is {cap}")
    if not is_exhausted(count, cap):
        return None
    text = f"{count} pods were evicted{where} in {limits.cycle_seconds:g} s, the cap is {cap}"
    return Refusal("CycleCap", text)


def is_exhausted(evicted: int, cap: int) -> bool:
    """Whether a cap allows no further eviction in this cycle; a cap of 0 allows none."""
    return evicted + 1 > cap


LIMITS: Final[dict[str, Check]] = {
    "global": _global,
    "node": _per_node,
    "namespace": _per_namespace,
    "workload": _migrating,
    "unavailable": _unavailable,
    "workload limiter": _workload_limiter,
    "namespace limiter": _namespace_limiter,
    "cycle of a node": _cycle_node,
    "cycle of a namespace": _cycle_namespace,
    "cycle": _cycle_total,
}
"""The check of each limit, cheap ones first. Those of a workload need its state."""
PASSING: Final = frozenset(
    {"MaxMigratingGlobally", "MaxMigratingPerNode", "MaxMigratingPerNamespace", "CycleCap"}
)
"""Reasons of limits that depend on evictions of any workload; pods that leave make room for
others."""
OF_STATE: Final = frozenset({"MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"})
"""Reasons of limits that depend on what the API server says about the workload."""
IN_TIME: Final = frozenset({"ObjectLimiter"})
"""The reason of limits that depend on former evictions of the same workload or namespace."""


def limits_reached(
    pod: Candidate, situation: Situation, limits: MigrationLimits
) -> Iterator[Refusal]:
    """Yield the limits that forbid the eviction of a pod now."""
    for check in LIMITS.values():
        refusal = check(pod, situation, limits)
        if refusal is not None:
            yield refusal
