"""Hot nodes that a plan does not relieve, and pools without any target."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pipeline.extender.plan_documents import PlannedNode, ReliefPlan, StrategyOutcome
from pipeline.processors.descheduling.move_counts import CAP
from pipeline.processors.descheduling.relief_alerts import Hopeless, Subject

_MOST_STAYS: Final = 3


def hopeless_nodes(
    plan: ReliefPlan, sources: Mapping[str, str], held_back: Collection[str]
) -> Iterator[Hopeless]:
    """Yield what the plan can do nothing about: nodes among `sources`, which have the name of
    their pool, or pools as a whole, each once. Nodes that are `held_back` have a pod that may move
    after its cool-down; others wait because a cap is reached."""
    items = {node.node: node for node in plan.items}
    outcomes = {outcome.pool: outcome for outcome in plan.strategies}
    for pool in sorted({*sources.values()} & outcomes.keys()):
        outcome = outcomes[pool]
        if not outcome.targets:
            yield Hopeless(Subject("all_nodes_hot", "", pool), pool, _pool_text(outcome))
            continue
        for name in sorted(node for node, of in sources.items() if of == pool):
            item = items.get(name)
            if name in held_back or (item is not None and (item.moves or _is_capped(item))):
                continue
            why = outcome.reason if item is None else _node_text(item)
            yield Hopeless(Subject("nothing_can_be_done", name), pool, why)


def _is_capped(node: PlannedNode) -> bool:
    return any(stay.reason.startswith(CAP) for stay in node.stays)


def _pool_text(outcome: StrategyOutcome) -> str:
    text = f"{outcome.reason}: none of {outcome.nodes} nodes may take pods"
    unknown = outcome.nodes - outcome.known
    return f"{text}, usage of {unknown} is unknown" if unknown else text


def _node_text(node: PlannedNode) -> str:
    stays = [f"{stay.namespace}/{stay.name} stays: {stay.reason}" for stay in node.stays]
    return "; ".join([node.why, *stays[:_MOST_STAYS]] if stays else [node.why, "no pod uses it"])
