"""The evictor's policy from a DeschedulerConfiguration: protections, limits, skipped checks."""

from typing import Final

from pipeline.processors.descheduling.descheduler_config import MIGRATION_CONTROLLER, Descheduling
from pipeline.processors.descheduling.field_types import CountOrPercent
from pipeline.processors.descheduling.migration_args import (
    DeleteOptions,
    MigrationControllerArgs,
)
from pipeline.processors.descheduling.migration_args import ObjectLimiter as LimiterArgs
from pipeline.processors.eviction.migration_policy import (
    EvictionOptions,
    IntOrPercent,
    MigrationLimits,
    MigrationPolicy,
    ObjectLimiter,
    Protections,
)

_LONGEST_TTL_SECONDS: Final = 3600.0
_DEFAULT_ARGS: Final = MigrationControllerArgs()


def migration_policy(descheduling: Descheduling) -> MigrationPolicy:
    """The policy of the first profile that configures the MigrationController."""
    profiles = [p for p in descheduling.profiles if MIGRATION_CONTROLLER in p.args]
    args, keys = profiles[0].migration if profiles else _DEFAULT_ARGS, descheduling.keys
    options = args.default_delete_options or DeleteOptions()
    return MigrationPolicy(
        protections=protections(args),
        limits=MigrationLimits(
            max_migrating_globally=args.max_migrating_globally,
            max_migrating_per_node=args.max_migrating_per_node,
            max_migrating_per_namespace=args.max_migrating_per_namespace,
            max_migrating_per_workload=_number(args.max_migrating_per_workload),
            max_unavailable_per_workload=_number(args.max_unavailable_per_workload),
            skip_check_expected_replicas=args.skip_check_expected_replicas,
            workload_limiter=_limiter(args.object_limiters.get("workload")),
            namespace_limiter=_limiter(args.object_limiters.get("namespace")),
            cycle_seconds=keys.interval_seconds,
            cycle_per_node=keys.most_evictions_per_node,
            cycle_per_namespace=keys.most_evictions_per_namespace,
            cycle_total=keys.most_evictions,
            evict_qps=args.evict_per_second,
            evict_burst=args.evict_burst,
            # 0 is no end for Koordinator; here it must not mean that nothing counts.
            ttl_seconds=args.default_job_ttl_seconds or _LONGEST_TTL_SECONDS,
        ),
        skipped_gates=frozenset(args.skip_eviction_gates),
        mode="SoftEviction" if args.eviction_policy == "SoftEviction" else "Eviction",
        is_dry=keys.dry_run or args.dry_run or bool(options.dry_run),
        delete_options=EvictionOptions(
            grace_period_seconds=options.grace_period_seconds,
            orphan_dependents=options.orphan_dependents,
            propagation_policy=options.propagation_policy,
        ),
        node_fit=args.node_fit,
        node_selector=args.node_selector,
    )


def protections(args: MigrationControllerArgs) -> Protections:
    """Which pods a MigrationController may evict."""
    namespaces, schedulers = args.namespaces, args.scheduler_names
    # Koordinator's default serves its reservations, which are not made here.
    is_restricted = schedulers is not None and args.default_job_mode == "ReservationFirst"
    return Protections(
        evict_failed_bare_pods=args.evict_failed_bare_pods,
        evict_all_bare_pods=args.evict_all_bare_pods,
        evict_local_storage_pods=args.evict_local_storage_pods,
        evict_system_critical_pods=args.evict_system_critical_pods,
        ignore_pvc_pods=args.ignore_pvc_pods,
        priority_threshold=args.threshold,
        label_selector=args.label_selector,
        namespaces_included=frozenset(namespaces.include) or None if namespaces else None,
        namespaces_excluded=frozenset(namespaces.exclude) or None if namespaces else None,
        scheduler_names=frozenset(schedulers or ()) if is_restricted else None,
    )


def _number(value: CountOrPercent | None) -> IntOrPercent | None:
    if value is None:
        return None
    return value.count if value.percent is None else f"{value.percent}%"


def _limiter(args: LimiterArgs | None) -> ObjectLimiter:
    if args is None:
        return ObjectLimiter(duration_seconds=0.0)
    return ObjectLimiter(
        duration_seconds=args.duration_seconds,
        max_migrating=_number(args.max_migrating),
        burst=max(args.burst, 1),
    )
