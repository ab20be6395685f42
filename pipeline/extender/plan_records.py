"""Records of `springtide.eviction-plans` from a plan of strategies."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pipeline.extender.plan_documents import Percents, PlannedMove, PlannedNode, ReliefPlan
from pipeline.processors.descheduling.cluster_columns import MoveCaps
from pipeline.processors.descheduling.move_memory import PLANNER, PlannedPod
from pipeline.times import format_time
from pipeline.topics.eviction_plans import (
    LONGEST_VALID_SECONDS,
    EvictionPlanRecord,
    LeavingPod,
)

_MOST_TEXT: Final = 1_000
_MOST_REASON: Final = 200
_SHOWN: Final = ("cpu", "memory")


class CapCounts:
    """Pods that were planned within a descheduling interval, against the caps. `of_strategy` has
    the most pods of strategies that have a limit of their own."""

    def __init__(
        self, caps: MoveCaps, planned: Iterable[PlannedPod], of_strategy: Mapping[str, int] = {}
    ) -> None:
        self._caps, self._of_strategy = caps, of_strategy
        self._total = 0
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._strategies: Counter[str] = Counter()
        for pod in planned:
            self.count(pod)

    @property
    def are_used_up(self) -> bool:
        """Whether no pod at all may be planned."""
        return self._caps.total is not None and self._total >= self._caps.total

    def allow(self, pod: PlannedPod) -> bool:
        """Whether one more pod may leave."""
        per_node, per_namespace = self._caps.per_node, self._caps.per_namespace
        of_strategy = self._of_strategy.get(pod.strategy)
        return not (
            self.are_used_up
            or (per_node is not None and self._nodes[pod.node] >= per_node)
            or (per_namespace is not None and self._namespaces[pod.namespace] >= per_namespace)
            or (of_strategy is not None and self._strategies[pod.strategy] >= of_strategy)
        )

    def count(self, pod: PlannedPod, count: int = 1) -> None:
        """Count a pod that leaves its node; with -1 count it no longer."""
        self._total += count
        self._nodes[pod.node] += count
        self._namespaces[pod.namespace] += count
        self._strategies[pod.strategy] += count


def plan_records(
    plan: ReliefPlan,
    counts: CapCounts,
    plan_id: Callable[[PlannedNode], str],
    workloads: Mapping[str, str],
    now: float,
    valid_seconds: float,
) -> Iterator[EvictionPlanRecord]:
    """Yield a record for each node that pods leave, in the order of relief, within the caps. Of
    moves that help only together a cap lets all pass, or none.

    `workloads` has the workload of each pod by UID, as kind/namespace/name. Plans are valid for
    `valid_seconds`, but for `LONGEST_VALID_SECONDS` at most. Pods above a cap stay: projected usage
    of their targets is then too high, never too low.
    """
    for node in plan.items:
        moves, pods = [], []
        for move in node.moves:
            pod = PlannedPod(node.node, move.namespace, now, node.strategy)
            if counts.allow(pod):
                counts.count(pod)
                pods.append(pod)
                moves.append(move)
        if node.all_or_none and len(moves) < len(node.moves):
            for pod in pods:
                counts.count(pod, -1)
            continue
        if moves:
            yield EvictionPlanRecord(
                node=node.node,
                id=plan_id(node),
                at=format_time(now),
                valid_until=format_time(now + min(valid_seconds, LONGEST_VALID_SECONDS)),
                planner=PLANNER,
                why=_why(node, len(moves)),
                pods=tuple(_leaving(move, workloads.get(move.uid, "")) for move in moves),
                strategy=node.strategy,
            )


def _leaving(move: PlannedMove, workload: str) -> LeavingPod:
    return LeavingPod(
        uid=move.uid,
        pod_class=move.pod_class,
        namespace=move.namespace,
        name=move.name,
        cpu_millicores=round(move.usage.get("cpu", 0.0)),
        memory_bytes=round(move.usage.get("memory", 0.0)),
        workload=workload,
        target=move.target or "",
        target_usage=_shown(move.target_usage),
        target_peak=_shown(move.target_peak),
        why_not=tuple(f"{each.node}: {each.reason}"[:_MOST_REASON] for each in move.rejected),
    )


def _why(node: PlannedNode, moves: int) -> str:
    planned = len(node.moves)
    after = _text(node.projected_usage)
    if node.pool:
        after += ", relieved" if node.relieved else ", not relieved"
    if moves < planned:
        after = f"{planned - moves} more stay, because a cap is reached"
    pool = f"pool {node.pool}: " if node.pool else ""
    pods = "1 pod leaves" if moves == 1 else f"{moves} pods leave"
    return f"{pool}{node.why}; {pods}, then {after}"[:_MOST_TEXT]


def _shown(percents: Percents) -> Percents:
    return {name: percents[name] for name in _SHOWN if name in percents}


def _text(percents: Percents) -> str:
    return ", ".join(f"{name} {percent:.1f}%" for name, percent in _shown(percents).items())
