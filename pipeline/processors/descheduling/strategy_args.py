"""The arguments of CustomPriority, FragmentationAware and ScaleDownBinPack, with Koordinator's
names, defaults and checks, and of Springtide's own strategies."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from pipeline.processors.descheduling.field_types import (
    DryRun,
    NodeFit,
    PositiveCount,
    Problem,
    StrategyArgs,
    namespace_problems,
    resource_problems,
)
from pipeline.processors.policy.selectors import Selector

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_Resources = Annotated[
    tuple[str, ...],
    Meta(title="a list of resources", description="the resources that count"),
]
_Percent = Annotated[float, Meta(ge=0, le=100)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Tier(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of `evictionOrder`."""

    name: str = ""
    node_selector: Selector | None = None
    keep_percent: dict[str, _Percent] = msgspec.field(default={}, name="keepThreshold")
    reject_percent: dict[str, _Percent] = msgspec.field(default={}, name="rejectThreshold")


class CustomPriorityArgs(StrategyArgs, frozen=True, kw_only=True, rename="camel"):
    """Tiers of nodes from expensive to cheap: pods move to cheaper ones."""

    dry_run: DryRun = False
    node_fit: NodeFit = True
    eviction_order: Annotated[
        tuple[Tier, ...],
        Meta(
            title="a list of two or more: `name` and `nodeSelector`, `keepThreshold` and "
            "`rejectThreshold` in percent from 0 to 100",
            description="tiers of nodes, from expensive to cheap",
        ),
    ] = ()
    mode: Annotated[
        Literal["BestEffort", "DrainNode"],
        Meta(
            description="evict what fits elsewhere, or only if all pods of a node do",
            extra={"unset": ""},
        ),
    ] = "BestEffort"
    auto_cordon: Annotated[bool, Meta(description="accepted: no role cordons nodes")] = False

    def warnings(self) -> Iterator[Problem]:
        if self.auto_cordon:
            yield "autoCordon", "has no effect: no role cordons nodes"

    def problems(self) -> Iterator[Problem]:
        yield from namespace_problems("evictableNamespaces", self.evictable_namespaces)
        if len(self.eviction_order) < 2:
            yield "evictionOrder", f"has {len(self.eviction_order)} tiers, not 2 or more"
        names = [tier.name for tier in self.eviction_order]
        for i, tier in enumerate(self.eviction_order):
            key = f"evictionOrder[{i}]"
            if not _NAME.fullmatch(tier.name):
                yield f"{key}.name", f"{tier.name!r:.60} is not a lower-case DNS name"
            elif tier.name in names[:i]:
                yield f"{key}.name", f"{tier.name:.60} is there twice"
            if tier.node_selector is None:
                yield key, "has no nodeSelector"
            for field, percent in (("keep", tier.keep_percent), ("reject", tier.reject_percent)):
                yield from resource_problems(f"{key}.{field}Threshold", percent)
        for i, selector in enumerate(self.pod_selectors):
            if not _NAME.fullmatch(selector.name):
                text = f"{selector.name!r:.60} is not a lower-case DNS name"
                yield f"podSelectors[{i}].name", text


class FragmentationAwareArgs(StrategyArgs, frozen=True, kw_only=True, rename="camel"):
    """Nodes whose resources are requested in unequal shares."""

    dry_run: DryRun = False
    node_fit: NodeFit = True
    resources: _Resources = ("cpu", "memory")
    imbalance_threshold: Annotated[
        _Share, Meta(description="a node counts if the deviation of its shares is above this")
    ] = 0.15
    min_improvement_threshold: Annotated[
        _Share, Meta(description="a pod is evicted if that lowers the deviation by more")
    ] = 0.02

    def problems(self) -> Iterator[Problem]:
        yield from namespace_problems("evictableNamespaces", self.evictable_namespaces)
        yield from resource_problems("resources", self.resources)
        if not self.resources:
            yield "resources", "are none"


class NodeReservationArgs(StrategyArgs, frozen=True, kw_only=True, rename="camel"):
    """Pods on CPUs that the annotation of their node reserves."""

    dry_run: DryRun = False
    node_fit: NodeFit = True

    def problems(self) -> Iterator[Problem]:
        yield from namespace_problems("evictableNamespaces", self.evictable_namespaces)


class NodeRequestsArgs(NodeReservationArgs, frozen=True, kw_only=True, rename="camel"):
    """Pods on nodes that ask for relief."""


class ScaleDownBinPackArgs(StrategyArgs, frozen=True, kw_only=True, rename="camel"):
    """An order of pods in which whole nodes become empty first."""

    strategy: Annotated[
        Literal["CalculateOnly", "EvictDirectly"],
        Meta(description="move nothing, as no order is written to pods, or evict"),
    ] = "CalculateOnly"
    max_pods_to_evict: Annotated[
        PositiveCount | None,
        Meta(description="evicted at most; EvictDirectly needs it"),
    ] = None
    resources: _Resources = ("cpu", "memory")
    resource_weights: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(title="numbers above 0 by resource", description="Default: 1 for each resource"),
    ] = msgspec.field(default_factory=dict)

    def problems(self) -> Iterator[Problem]:
        yield from namespace_problems("evictableNamespaces", self.evictable_namespaces)
        yield from resource_problems("resources", self.resources)
        yield from resource_problems("resourceWeights", self.resource_weights)
        if not self.resources:
            yield "resources", "are none"
        if self.strategy == "EvictDirectly" and self.max_pods_to_evict is None:
            yield "maxPodsToEvict", "is not set, and strategy EvictDirectly needs it"
