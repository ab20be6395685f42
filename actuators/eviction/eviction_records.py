"""Records of evictions: an action on springtide.actions for each pod, and upstream's metric."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from actuators.eviction.plan_limits import EVICTOR
from pipeline.metrics import foreign_gauge
from pipeline.processors.descheduling.descheduler_config import STRATEGIES
from pipeline.processors.eviction.live_pods import LivePod
from pipeline.processors.eviction.migration_policy import Gate
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import LONGEST_NAME, EvictionPlanRecord

EVICTED = foreign_gauge(
    "descheduler_pods_evicted",
    "Evictions by result (success, error, refused, marked), as the descheduler counts them.",
    ["result", "strategy", "namespace", "node"],
)
MOST_PLACES: Final = 1_000
"""Namespaces on nodes with series of their own: autoscalers create new names for ever."""
_places: Final[set[tuple[str, str]]] = set()
_RESULTS: Final = {"done": "success", "failed": "error"}
SHOWN_CHARACTERS: Final = 500
"""Characters of a plan's `why` that each of its actions, or an annotation, repeats."""


class ActionLog(Protocol):
    """Takes the actions of the evictor."""

    def put(self, action: ActionRecord) -> None:
        """Write an action at some time."""

    def write(self, action: ActionRecord) -> Awaitable[float | None]:
        """Write an action and await its delivery; returns when the broker appended it (Unix time),
        if that is known. Raises `KafkaError` if that fails."""


class ObservedActions:
    """An `ActionLog` that also shows each action to `observe`."""

    def __init__(self, actions: ActionLog, observe: Callable[[ActionRecord], None]) -> None:
        self._actions = actions
        self._observe = observe

    def put(self, action: ActionRecord) -> None:
        self._observe(action)
        self._actions.put(action)

    async def write(self, action: ActionRecord) -> float | None:
        appended_at = await self._actions.write(action)
        self._observe(action)
        return appended_at


def eviction_action(
    plan: EvictionPlanRecord, pod: LivePod | None, outcome: Outcome, at: float, error: str = "",
    skipped: tuple[Gate, ...] = (),
) -> ActionRecord:  # fmt: skip
    """The action about a pod of a plan, or about the whole plan, at this time (Unix time)."""
    names, workload = {}, ""
    if pod is not None:
        names = {f"{pod.record.namespace}/{pod.record.name}": pod.record.uid}
        workload = str(pod.workload or "")
    return ActionRecord(
        node=plan.node,
        at=format_time(at),
        actuator=EVICTOR,
        action="evict",
        outcome=outcome,
        why=f"plan {plan.id:.{LONGEST_NAME}}: {plan.why:.{SHOWN_CHARACTERS}}",
        before=dict(names),
        after=dict.fromkeys(names),
        error=error,
        plan=plan.id[:LONGEST_NAME],
        waiting=plan.waiting.uid if plan.waiting else "",
        strategy=plan.strategy[:LONGEST_NAME],
        workload=workload,
        skipped=skipped,
    )


def count_eviction(action: ActionRecord, namespace: str) -> None:
    """Count the outcome of an eviction."""
    result = _RESULTS.get(action.outcome, action.outcome)
    strategy = action.strategy if action.strategy in ("", *STRATEGIES) else "other"
    place = namespace, action.node
    if place not in _places and len(_places) >= MOST_PLACES:
        place = "other", "other"
    _places.add(place)
    EVICTED.labels(result, strategy, *place).inc()
