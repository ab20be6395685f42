"""What the DeschedulerConfiguration of the cluster says about relieving hot nodes."""

from typing import Final, NamedTuple

from pipeline.processors.descheduling.cluster_columns import NO_CAPS, MoveCaps
from pipeline.processors.descheduling.configured_strategies import why_off
from pipeline.processors.descheduling.descheduler_config import LOW_NODE_LOAD, Descheduling
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.eviction.migration_policy import MigrationPolicy

INTERVAL_SECONDS: Final = 120.0
"""Between two plans for a node that stays hot, if the configuration has no interval."""


class ReliefPolicy(NamedTuple):
    """How hot nodes are relieved. `why_not` says why none is; empty if they are. If it `is_dry`,
    plans are logged and not published."""

    why_not: str = ""
    args: LowNodeLoadArgs = LowNodeLoadArgs()
    caps: MoveCaps = NO_CAPS
    interval_seconds: float = INTERVAL_SECONDS
    is_dry: bool = False
    migration: MigrationPolicy = MigrationPolicy()


def relief_policy(descheduling: Descheduling) -> ReliefPolicy:
    """The policy of the first profile with LowNodeLoad, whose thresholds detect hot nodes."""
    keys, profile = descheduling.keys, descheduling.detecting
    if profile is None or profile.low_node_load is None:
        return ReliefPolicy(f"{LOW_NODE_LOAD} is not configured")
    args = profile.low_node_load.args
    return ReliefPolicy(
        why_not=f"{LOW_NODE_LOAD} is paused" if args.paused else why_off(profile, LOW_NODE_LOAD),
        args=args,
        caps=MoveCaps(
            keys.most_evictions, keys.most_evictions_per_node, keys.most_evictions_per_namespace
        ),
        interval_seconds=keys.descheduling_interval_seconds or INTERVAL_SECONDS,
        is_dry=keys.dry_run or args.dry_run,
        migration=migration_policy(descheduling),
    )
