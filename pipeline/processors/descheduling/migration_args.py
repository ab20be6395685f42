"""The arguments of MigrationController: who may be evicted, and how many at once. Koordinator's
names, defaults and checks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.processors.descheduling.field_types import (
    MOST_COUNT,
    Count,
    CountOrPercent,
    DryRun,
    EvictableNamespaces,
    NodeFit,
    PluginArgs,
    PositiveCount,
    Problem,
    Rate,
    Seconds,
    namespace_problems,
    read_count_or_percent,
)
from pipeline.processors.eviction.migration_policy import SYSTEM_CRITICAL, Gate
from pipeline.processors.policy.selectors import Selector, check_selector

NAME: Final = "MigrationController"
PRIORITY_CLASSES: Final[Mapping[str, int]] = {
    "system-node-critical": SYSTEM_CRITICAL + 1000,
    "system-cluster-critical": SYSTEM_CRITICAL,
    "koord-prod": 9000,
    "koord-mid": 7000,
    "koord-batch": 5000,
    "koord-free": 3000,
}
"""The classes that Kubernetes and Koordinator install."""

_LimitedObject = Literal["workload", "namespace"]
_PerWorkload = Annotated[
    CountOrPercent | None,
    Meta(
        title="a whole number from 0, or a percentage as 10%",
        extra={"read": read_count_or_percent},
    ),
]


def _selector(value: Any) -> Any:
    """A selector as kubectl's option takes it, `a=b,c=d`, as an object."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part]
    selector = Selector(
        match_labels={key.strip(): text.removeprefix("=").strip() for key, _, text in pairs}
    )
    if not all(equals for _, equals, _ in pairs):
        raise InvalidPolicyError("is not a list of labels as a=b,c=d")
    check_selector(selector)
    return selector


class PriorityThreshold(msgspec.Struct, frozen=True, kw_only=True):
    value: Annotated[int, Meta(ge=-(2**31), le=MOST_COUNT)] | None = None
    name: str = ""


class ObjectLimiter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A bucket of evictions per workload or namespace; 0 s: off."""

    duration_seconds: Seconds = msgspec.field(default=0.0, name="duration")
    max_migrating: _PerWorkload = None
    burst: Count = 0


class ArbitrationArgs(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    interval_seconds: Seconds = msgspec.field(default=0.5, name="interval")


class Preconditions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    grace_period_seconds: Count | None = None
    orphan_dependents: bool | None = None
    propagation_policy: Literal["Orphan", "Background", "Foreground"] | None = None
    preconditions: Preconditions | None = None
    dry_run: tuple[Literal["All"], ...] = ()


class MigrationControllerArgs(PluginArgs, frozen=True, kw_only=True, rename="camel"):
    """The arguments; a limit of None or 0 is none, except per workload, where None is computed from
    the replicas."""

    dry_run: DryRun = False
    max_concurrent_reconciles: Annotated[
        PositiveCount, Meta(description="accepted: evictions are executed one by one")
    ] = 1
    evict_failed_bare_pods: Annotated[
        bool, Meta(description="failed pods without an owner may be evicted")
    ] = False
    evict_all_bare_pods: Annotated[
        bool, Meta(description="pods without an owner may be evicted")
    ] = False
    evict_local_storage_pods: Annotated[
        bool, Meta(description="pods with local volumes may be evicted")
    ] = False
    evict_system_critical_pods: Annotated[
        bool,
        Meta(description="pods of system priority may be evicted; `priorityThreshold` holds"),
    ] = False
    ignore_pvc_pods: Annotated[bool, Meta(description="pods with a PVC are not evicted")] = False
    priority_threshold: Annotated[
        PriorityThreshold | None,
        Meta(
            title="`value`, a whole number, or `name`, a class",
            description="pods of this priority and above are not evicted",
        ),
    ] = None
    label_selector: Annotated[
        Selector | None, Meta(title="a label selector", description="pods that may be evicted")
    ] = None
    namespaces: EvictableNamespaces = None
    node_fit: NodeFit = False
    node_selector: Annotated[
        Selector | None,
        Meta(
            title="a label selector, or labels as a=b,c=d",
            description="the nodes that count",
            extra={"read": _selector},
        ),
    ] = None
    skip_eviction_gates: Annotated[
        tuple[Gate, ...],
        Meta(title="a list of gates", description="checks that are left out"),
    ] = ()
    max_migrating_globally: Annotated[
        Count | None, Meta(description="pods on the move in the cluster; 0: no limit")
    ] = None
    max_migrating_per_node: Annotated[
        Count, Meta(description="pods on the move per node; 0: no limit")
    ] = 2
    max_migrating_per_namespace: Annotated[
        Count | None, Meta(description="pods on the move per namespace; 0: no limit")
    ] = None
    max_migrating_per_workload: Annotated[
        _PerWorkload,
        Meta(description="pods on the move per workload. Default: computed from its replicas"),
    ] = None
    max_unavailable_per_workload: Annotated[
        _PerWorkload,
        Meta(description="unavailable pods per workload. Default: computed from its replicas"),
    ] = None
    skip_check_expected_replicas: Annotated[
        bool, Meta(description="also evict the only replica of a workload")
    ] = False
    object_limiters: Annotated[
        dict[_LimitedObject, ObjectLimiter],
        Meta(
            title="`workload` and `namespace`: `duration`, `maxMigrating`, `burst`",
            description="evictions per time. Default, also of {}: workload with 5m",
            extra={"unset": {}},
        ),
    ] = msgspec.field(default_factory=lambda: {"workload": ObjectLimiter(duration_seconds=300.0)})
    default_job_mode: Annotated[
        Literal["ReservationFirst", "EvictDirectly"],
        Meta(
            description="accepted: the landing is simulated, and the pod evicted",
            extra={"unset": ""},
        ),
    ] = "ReservationFirst"
    default_job_ttl_seconds: Annotated[
        Seconds,
        Meta(
            description="an eviction that is not done by then has failed; a plan is valid for as "
            "long, and for 5m at most"
        ),
    ] = msgspec.field(default=300.0, name="defaultJobTTL")
    scheduler_names: Annotated[
        tuple[str, ...] | None,
        Meta(
            title="a list of names",
            description="only pods of these schedulers are evicted, unless `defaultJobMode` is "
            "EvictDirectly. Default, also of []: pods of all",
            extra={"unset": []},
        ),
    ] = None
    evict_per_second: Annotated[
        Rate,
        Meta(title="a number above 0, also as a text", description="evictions per second"),
    ] = msgspec.field(default=10.0, name="evictQPS")
    evict_burst: Annotated[
        PositiveCount,
        Meta(description="evictions at once, if `evictor.evictions_per_minute` allows them"),
    ] = 1
    eviction_policy: Annotated[
        Literal["Eviction", "Delete", "SoftEviction"],
        Meta(description="how a pod is removed; Delete evicts, too", extra={"unset": ""}),
    ] = "Eviction"
    default_delete_options: Annotated[
        DeleteOptions | None,
        Meta(
            title="DeleteOptions",
            description="`gracePeriodSeconds`, `orphanDependents` and `propagationPolicy` of each "
            "eviction; with `dryRun` nothing is evicted",
        ),
    ] = None
    arbitration_args: Annotated[
        ArbitrationArgs | None,
        Meta(
            title="`enabled` (true), `interval` (500ms)",
            description="accepted: plans are ordered as a whole",
        ),
    ] = None

    @property
    def threshold(self) -> int | None:
        """The priority of `priorityThreshold`, also of one that names a class."""
        given = self.priority_threshold or PriorityThreshold()
        return PRIORITY_CLASSES.get(given.name) if given.value is None else given.value

    @property
    def protected_priority(self) -> int | None:
        """The priority from which pods are not evicted; None: no pod is protected by priority.

        Koordinator drops `priorityThreshold` with `evictSystemCriticalPods`, and ignores its name.
        """
        limits = [] if self.evict_system_critical_pods else [SYSTEM_CRITICAL]
        return min([*limits, *([] if self.threshold is None else [self.threshold])], default=None)

    def problems(self) -> Iterator[Problem]:
        yield from namespace_problems("namespaces", self.namespaces)
        options = self.default_delete_options or DeleteOptions()
        if options.preconditions not in (None, Preconditions()):
            text = "are those of one pod: each eviction has the UID of its own"
            yield "defaultDeleteOptions.preconditions", text
        if options.orphan_dependents is not None and options.propagation_policy is not None:
            text = "and orphanDependents are both set, and only one of them may be"
            yield "defaultDeleteOptions.propagationPolicy", text
        threshold = self.priority_threshold
        if threshold is None:
            return
        if threshold.name and threshold.value is not None:
            yield "priorityThreshold", "has value and name, and only one of them may be set"
        elif threshold.name and threshold.name not in PRIORITY_CLASSES:
            known = ", ".join(PRIORITY_CLASSES)
            text = f"{threshold.name!r:.60} is not one of {known}: set its value instead"
            yield "priorityThreshold.name", text
        elif not threshold.name and threshold.value is None:
            yield "priorityThreshold", "has neither value nor name"
