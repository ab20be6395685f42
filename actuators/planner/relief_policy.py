"""What the DeschedulerConfiguration of the cluster says about moving pods."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pipeline.processors.descheduling.cluster_columns import NO_CAPS, MoveCaps
from pipeline.processors.descheduling.configured_strategies import why_off
from pipeline.processors.descheduling.descheduler_config import (
    LOW_NODE_LOAD,
    NO_DESCHEDULING,
    Descheduling,
    Profile,
)
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.descheduling.field_types import StrategyArgs
from pipeline.processors.descheduling.low_node_load import LowNodeLoad, NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.strategy_args import ScaleDownBinPackArgs
from pipeline.processors.eviction.migration_policy import MigrationPolicy


class ReliefPolicy(NamedTuple):
    """How pods are planned. Hot nodes are relieved by LowNodeLoad with these `args`, and weights of
    `pools`; `why_not` says why they are not, empty if they are. `others` has the strategies beside
    it: of those with a name in `others_on` some may move pods. Plans of the strategies in `dry` are
    logged, and not published. `most_pods` limits what a strategy moves in an interval."""

    why_not: str = ""
    args: LowNodeLoadArgs = LowNodeLoadArgs()
    pools: tuple[NodePool, ...] = ()
    caps: MoveCaps = NO_CAPS
    interval_seconds: float = NO_DESCHEDULING.keys.interval_seconds
    dry: frozenset[str] = frozenset()
    migration: MigrationPolicy = MigrationPolicy()
    others: Descheduling = NO_DESCHEDULING
    others_on: tuple[str, ...] = ()
    most_pods: Mapping[str, int] = {}

    @property
    def strategies(self) -> tuple[str, ...]:
        """The names of the strategies that may move pods."""
        return self.others_on if self.why_not else (LOW_NODE_LOAD, *self.others_on)


def relief_policy(descheduling: Descheduling) -> ReliefPolicy:
    """The policy of a configuration. Hot nodes are those of the first profile with LowNodeLoad."""
    keys, profile = descheduling.keys, descheduling.detecting
    low = None if profile is None else profile.low_node_load
    args = LowNodeLoadArgs() if low is None else low.args
    others = [*_others(descheduling)]
    dry = {name for name, own in [(LOW_NODE_LOAD, args), *others] if getattr(own, "dry_run", False)}
    names = dict.fromkeys(name for name, _ in others)
    most_pods = Counter[str]()
    for name, own in others:
        if isinstance(own, ScaleDownBinPackArgs):
            most_pods[name] += own.max_pods_to_evict or 0
    return ReliefPolicy(
        why_not=_why_not(profile, low),
        args=args,
        pools=() if low is None else low.pools,
        caps=MoveCaps(
            keys.most_evictions, keys.most_evictions_per_node, keys.most_evictions_per_namespace
        ),
        interval_seconds=keys.interval_seconds,
        dry=frozenset({LOW_NODE_LOAD, *names} if keys.dry_run else dry),
        migration=migration_policy(descheduling),
        others=descheduling,
        others_on=tuple(names),
        most_pods=dict(most_pods),
    )


def _why_not(profile: Profile | None, low: LowNodeLoad | None) -> str:
    if profile is None or low is None:
        return f"{LOW_NODE_LOAD} is not configured"
    return f"{LOW_NODE_LOAD} is paused" if low.args.paused else why_off(profile, LOW_NODE_LOAD)


def _others(descheduling: Descheduling) -> Iterator[tuple[str, StrategyArgs]]:
    """Yield the names and arguments of the strategies beside LowNodeLoad that may move pods."""
    for profile in descheduling.profiles:
        for name in profile.enabled.get("balance", ()):
            args = profile.args.get(name)
            if isinstance(args, StrategyArgs) and not why_off(profile, name):
                yield name, args
