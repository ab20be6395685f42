"""The strategies that a DeschedulerConfiguration enables, and the pods that each may move."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.descheduler_config import (
    LOW_NODE_LOAD,
    MIGRATION_CONTROLLER,
    Descheduling,
    Profile,
)
from pipeline.processors.descheduling.field_types import Namespaces, PodSelector, StrategyArgs
from pipeline.processors.descheduling.fragmentation import FragmentationStrategy
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.load_balancing import NO_ALERT, LowNodeLoadStrategy
from pipeline.processors.descheduling.low_node_load import DETECTED, LowNodeLoad, NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.requested_relief import RequestStrategy
from pipeline.processors.descheduling.reserved_cpus import ReservationStrategy
from pipeline.processors.descheduling.scale_down import ScaleDownStrategy
from pipeline.processors.descheduling.strategy import Plan, Strategy, unchanged
from pipeline.processors.descheduling.strategy_args import (
    CustomPriorityArgs,
    FragmentationAwareArgs,
    NodeRequestsArgs,
    NodeReservationArgs,
    ScaleDownBinPackArgs,
)
from pipeline.processors.descheduling.tier_moves import TierStrategy
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.pods import PodRecord

_OTHER_ARGS: Final = (
    CustomPriorityArgs | FragmentationAwareArgs | ScaleDownBinPackArgs | NodeReservationArgs
)
_USUAL: Final = LowNodeLoadArgs()
_UNCONFIGURED: Final = NodePool()
_THRESHOLDS: Final = ("high_percent", "low_percent", "prod_high_percent", "prod_low_percent")


class PodFilter(NamedTuple):
    """Which pods a strategy may move: of these namespaces, and selected by any of the selectors."""

    namespaces: Namespaces | None = None
    selectors: tuple[PodSelector, ...] = ()

    def objection(self, pod: PodRecord) -> str | None:
        """Why the strategy may not move the pod; None if it may."""
        if self.namespaces is not None:
            include, exclude = self.namespaces.include, self.namespaces.exclude
            if (include and pod.namespace not in include) or pod.namespace in exclude:
                return f"the strategy moves no pods of namespace {pod.namespace}"
        # An entry without a selector is dropped.
        selectors = [each.selector for each in self.selectors if each.selector is not None]
        if selectors and not any(each.matches(pod.labels) for each in selectors):
            return "none of the strategy's podSelectors selects the pod"
        return None

    def apply(self, pods: ClusterPods) -> ClusterPods:
        """The pods with the objections of the strategy."""
        if self == PodFilter():
            return pods
        own = {
            pod: reason
            for pod in np.flatnonzero(pods.may_move).tolist()
            if (reason := self.objection(pods.records[pod])) is not None
        }
        may_move = pods.may_move.copy()
        may_move[[*own]] = False
        return replace(pods, may_move=may_move, objections={**pods.objections, **own})


class ConfiguredStrategy(NamedTuple):
    """A strategy, the pods that it may move, its nodes, and the name of its pool (empty: none).
    `off` says why it does not run; empty if it does."""

    strategy: Strategy
    pods: PodFilter
    is_member: BoolArray
    pool: str = ""
    off: str = ""

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        """The plan of the strategy for these of its `pods`."""
        if self.off:
            return unchanged(self.strategy.name, nodes, self.off)
        return self.strategy.plan(nodes, pods, landing)


_WITH_FIT: Final = (
    LowNodeLoadStrategy
    | TierStrategy
    | FragmentationStrategy
    | ReservationStrategy
    | RequestStrategy
)


def with_node_fit(configured: ConfiguredStrategy) -> ConfiguredStrategy:
    """The strategy, whose pods move only to nodes that could run them."""
    strategy = configured.strategy
    if isinstance(strategy, _WITH_FIT):
        strategy = replace(strategy, node_fit=True)
    return configured._replace(strategy=strategy)


def why_off(profile: Profile, plugin: str) -> str:
    """Why a strategy of a profile moves nothing; empty if it may."""
    if plugin not in profile.enabled.get("balance", ()):
        return f"{plugin} is not enabled in plugins.balance of its profile"
    args = profile.args.get(plugin)
    if isinstance(args, StrategyArgs) and args.paused:
        return f"{plugin} is paused"
    if isinstance(args, ScaleDownBinPackArgs) and args.strategy == "CalculateOnly":
        return f"{args.strategy} evicts nothing"
    if MIGRATION_CONTROLLER not in profile.enabled.get("evict", ()):
        return f"{MIGRATION_CONTROLLER} is disabled in plugins.evict of the profile"
    return ""


def selected_nodes(labels: Sequence[Mapping[str, str]], selector: Selector | None) -> BoolArray:
    """The nodes that a selector selects, (nodes,); None selects all."""
    if selector is None:
        return np.ones(len(labels), np.bool_)
    return np.fromiter(map(selector.matches, labels), np.bool_, len(labels))


class PoolNodes(NamedTuple):
    """A pool and its nodes, (nodes,)."""

    pool: NodePool
    is_member: BoolArray


def pools_of_configuration(
    low: LowNodeLoad, labels: Sequence[Mapping[str, str]], selectors: Sequence[Selector] = ()
) -> list[PoolNodes]:
    """The pools that have nodes: a node belongs to the first that selects it, if all `selectors` of
    configuration and profile do."""
    left = selected_nodes(labels, None)
    for selector in selectors:
        left &= selected_nodes(labels, selector)
    pools = []
    for pool in low.pools:
        is_member = left & selected_nodes(labels, pool.node_selector)
        left &= ~is_member
        if is_member.any():
            pools.append(PoolNodes(pool, is_member))
    return pools


def pools_of_policies(
    policies: Sequence[HotNodePolicy | None], configured: Sequence[NodePool] = ()
) -> list[PoolNodes]:
    """The pools by the thresholds that the records of the nodes carry; nodes without any are in no
    pool.

    Records of one pool differ while an edit is under way, or if two pools have one name: those of
    most nodes hold for the pool. Records have thresholds of cpu and memory. Weights, and thresholds
    of other resources, are those of the `configured` pool of the same name.
    """
    members: dict[str, list[int]] = {}
    texts: dict[str, Counter[bytes]] = {}
    for index, policy in enumerate(policies):
        if policy is not None:
            members.setdefault(policy.pool, []).append(index)
            text = msgspec.json.encode(policy, order="deterministic")
            texts.setdefault(policy.pool, Counter())[text] += 1
    # The first of one name applies.
    configured_by_name = {pool.name: pool for pool in reversed(configured) if pool.is_certain}
    pools = []
    for name in sorted(members):
        # Of equally many, the same one each time.
        text = max(texts[name], key=lambda each: (texts[name][each], each))
        values = msgspec.structs.asdict(msgspec.json.decode(text, type=HotNodePolicy))
        del values["mean_percent"], values["pool"]
        own = configured_by_name.get(name, _UNCONFIGURED)
        for threshold in _THRESHOLDS:
            values[threshold] = _not_recorded(getattr(own, threshold)) | values[threshold]
        named = [*values["low_percent"], *values["high_percent"]]
        weights = dict.fromkeys((*DETECTED, *named), 1) | own.resource_weights
        is_member = np.zeros(len(policies), np.bool_)
        is_member[members[name]] = True
        pools.append(PoolNodes(NodePool(name=name, resource_weights=weights, **values), is_member))
    return pools


def _not_recorded(percent: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in percent.items() if name not in DETECTED}


def measured_pools(
    pools: Sequence[PoolNodes], measured: Collection[str]
) -> tuple[list[PoolNodes], list[str]]:
    """The pools without thresholds of resources whose usage is not measured, and the names of
    these resources. Such a threshold could neither be met nor missed."""
    ignored: dict[str, None] = {}
    kept = []
    for pool, is_member in pools:
        values = {}
        for name in _THRESHOLDS:
            percents = getattr(pool, name)
            ignored.update(dict.fromkeys(each for each in percents if each not in measured))
            values[name] = {n: percent for n, percent in percents.items() if n in measured}
        kept.append(PoolNodes(msgspec.structs.replace(pool, **values), is_member))
    return kept, sorted(ignored)


def low_node_load_strategies(
    pools: Sequence[PoolNodes],
    args: LowNodeLoadArgs = _USUAL,
    *,
    confirmed: BoolArray | None = None,
    why_unconfirmed: str = NO_ALERT,
    off: str = "",
) -> list[ConfiguredStrategy]:
    """One strategy for each pool."""
    return [
        ConfiguredStrategy(
            LowNodeLoadStrategy(
                pool=pool,
                is_member=is_member,
                confirmed=confirmed,
                why_unconfirmed=why_unconfirmed,
                node_fit=args.node_fit,
                number_of_nodes=args.number_of_nodes,
            ),
            PodFilter(args.evictable_namespaces, args.pod_selectors),
            is_member,
            pool.name,
            off or _why_pool_off(pool, args),
        )
        for pool, is_member in pools
    ]


def _why_pool_off(pool: NodePool, args: LowNodeLoadArgs) -> str:
    """Why LowNodeLoad moves nothing in a pool; empty if it may."""
    if args.paused:
        return f"{LOW_NODE_LOAD} is paused"
    return "" if pool.is_certain else "the pool has an invalid value"


def other_strategies(
    descheduling: Descheduling, labels: Sequence[Mapping[str, str]], counted: Collection[str]
) -> Iterator[ConfiguredStrategy]:
    """The strategies beside LowNodeLoad that profiles enable, in their order. One that goes by
    requests of a resource that is not `counted` does not run."""
    for profile in descheduling.profiles:
        of_profile = selected_nodes(labels, descheduling.keys.node_selector)
        of_profile &= selected_nodes(labels, profile.node_selector)
        for name in profile.enabled.get("balance", ()):
            args = profile.args.get(name)
            if not isinstance(args, _OTHER_ARGS):
                continue
            is_member = of_profile & selected_nodes(labels, args.node_selector)
            pods = PodFilter(args.evictable_namespaces, args.pod_selectors)
            strategy: Strategy
            if isinstance(args, CustomPriorityArgs):
                strategy = TierStrategy(
                    selectors=tuple(tier.node_selector for tier in args.eviction_order),
                    mode=args.mode,
                    node_fit=args.node_fit,
                    is_member=is_member,
                )
            elif isinstance(args, ScaleDownBinPackArgs):
                strategy = ScaleDownStrategy(
                    most_pods=args.max_pods_to_evict or 0,
                    resources=args.resources,
                    weights=args.resource_weights,
                    is_member=is_member,
                )
            elif isinstance(args, NodeReservationArgs):
                own = RequestStrategy if isinstance(args, NodeRequestsArgs) else ReservationStrategy
                strategy = own(node_fit=args.node_fit, is_member=is_member)
            else:
                strategy = FragmentationStrategy(
                    resources=args.resources,
                    imbalance_threshold=args.imbalance_threshold,
                    min_improvement=args.min_improvement_threshold,
                    node_fit=args.node_fit,
                    is_member=is_member,
                )
            off = why_off(profile, name) or _why_not_counted(args, counted)
            yield ConfiguredStrategy(strategy, pods, is_member, off=off)


def strategies_off(descheduling: Descheduling, counted: Collection[str]) -> dict[str, str]:
    """Why strategies beside LowNodeLoad move nothing although a profile enables them, by name; not
    of those that another profile runs. Requests of the resources `counted` are known."""
    reasons: dict[str, str] = {}
    running = set[str]()
    for profile in descheduling.profiles:
        for name in profile.enabled.get("balance", ()):
            args = profile.args.get(name)
            if isinstance(args, StrategyArgs):
                reason = why_off(profile, name) or _why_not_counted(args, counted)
            else:
                reason = f"{name} has no arguments in pluginConfig"
            if reason and name != LOW_NODE_LOAD:
                reasons.setdefault(name, reason)
            else:
                running.add(name)
    return {name: reason for name, reason in reasons.items() if name not in running}


def _why_not_counted(args: StrategyArgs, counted: Collection[str]) -> str:
    if isinstance(args, FragmentationAwareArgs | ScaleDownBinPackArgs):
        for name in args.resources:
            if name not in counted:
                return f"requests of {name} are not counted: no rule of the extender names it"
    return ""
