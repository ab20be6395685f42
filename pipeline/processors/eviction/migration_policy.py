"""What operators allow the evictor: protections of pods, and limits of evictions.

Names and defaults are those of Koordinator's `MigrationControllerArgs` and of the caps of
`DeschedulerConfiguration`. A number of a limit may also be text with a percentage of replicas.
"""

from typing import Final, Literal

import msgspec

from pipeline.processors.policy.selectors import Selector

Gate = Literal[
    "MaxUnavailablePerWorkload", "MaxMigratingPerWorkload", "MaxMigratingPerNode",
    "MaxMigratingPerNamespace", "MaxMigratingGlobally", "ExpectedReplicas", "PVC", "BarePods",
    "LocalStorage", "SystemCritical", "PriorityThreshold", "LabelSelector", "Namespaces", "NodeFit",
]  # fmt: skip
"""A check that `skipEvictionGates` may skip."""
IntOrPercent = int | str
EvictionMode = Literal["Eviction", "SoftEviction"]
"""How a pod is evicted: by the Eviction API, or by an annotation for another agent."""

SYSTEM_CRITICAL: Final = 2_000_000_000
"""The priority from which a pod is critical for the system."""
_SHORTEST_HISTORY_SECONDS: Final = 3600.0


class ObjectLimiter(msgspec.Struct, frozen=True, kw_only=True):
    """A token bucket for each workload or namespace: `max_migrating` evictions per
    `duration_seconds`, up to `burst` at once. A duration of 0 turns it off."""

    duration_seconds: float
    max_migrating: IntOrPercent | None = None
    burst: int = 1


class EvictionOptions(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """DeleteOptions of each eviction, as far as a policy may set them. None leaves the pod's grace
    period, and the API server's defaults."""

    grace_period_seconds: int | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None


class Protections(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods a relief plan may evict.

    `namespaces_included` and `namespaces_excluded` are exclusive; None does not restrict. Pods of
    other schedulers than `scheduler_names` stay; None allows every scheduler. `priority_threshold`
    holds also with `evict_system_critical_pods`, which drops it in Koordinator.
    """

    evict_failed_bare_pods: bool = False
    evict_all_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: int | None = None
    label_selector: Selector | None = None
    namespaces_included: frozenset[str] | None = None
    namespaces_excluded: frozenset[str] | None = None
    scheduler_names: frozenset[str] | None = None


class MigrationLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many pods may be on the move. None is no limit, unless a comment says otherwise.

    `cycle_*` are caps within any `cycle_seconds`, the descheduling interval of upstream.
    """

    max_migrating_globally: int | None = None
    max_migrating_per_node: int | None = 2
    max_migrating_per_namespace: int | None = None
    # None: by the number of replicas.
    max_migrating_per_workload: IntOrPercent | None = None
    max_unavailable_per_workload: IntOrPercent | None = None
    skip_check_expected_replicas: bool = False
    workload_limiter: ObjectLimiter = ObjectLimiter(duration_seconds=300.0)
    namespace_limiter: ObjectLimiter = ObjectLimiter(duration_seconds=0.0)
    cycle_seconds: float = 120.0
    cycle_per_node: int | None = None
    cycle_per_namespace: int | None = None
    cycle_total: int | None = None
    evict_qps: float = 10.0
    evict_burst: int = 1
    ttl_seconds: float = 300.0

    @property
    def history_seconds(self) -> float:
        """How far back evictions matter: until every bucket is full again, and for as long as a
        replacement may take."""
        durations = [
            limiter.duration_seconds * max(limiter.burst, 1)
            for limiter in (self.workload_limiter, self.namespace_limiter)
        ]
        return max(_SHORTEST_HISTORY_SECONDS, self.cycle_seconds, self.ttl_seconds, *durations)


class MigrationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Protections and limits, the checks that are skipped, and how pods are evicted.

    With `is_dry` no plan that relieves a node evicts a pod; with `node_fit` only pods leave that
    another node could run, one that `node_selector` selects. Each eviction has `delete_options`.
    """

    protections: Protections = Protections()
    limits: MigrationLimits = MigrationLimits()
    skipped_gates: frozenset[Gate] = frozenset()
    mode: EvictionMode = "Eviction"
    delete_options: EvictionOptions = EvictionOptions()
    is_dry: bool = False
    node_fit: bool = False
    node_selector: Selector | None = None
