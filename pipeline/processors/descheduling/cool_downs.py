"""Cool-downs of nodes, workloads and pods after the plans of the last hour.

Usage shows the effect of a move only after its whole span. Until then a second decision about the
same node, or about the same target, would rest on usage from before the first one. So

- a node gets no plan while its last one is under way, and none within a span of usage after the
  last eviction on it;
- a workload gives no pod while a former plan moves one of its pods, and none within half an hour of
  an eviction. Pods of one round are one decision: all are landed together, and the limits of the
  evictor decide how many leave at once. So a round may move several pods of a workload. The rule
  also keeps a pod from being moved back to the node that it left;
- a pod that the evictor refused, or that another agent was asked to evict, is not planned again for
  ten minutes, so that others get a chance. It rests for twice as long after each further refusal
  for a reason that lasts, such as a budget of no disruptions, which the planner does not know
  otherwise; up to an hour;
- pods that the evictor would have evicted in mode act rest as if they had left, and so does their
  node, because nothing cools it: else its whole pods would be planned one after the other;
- usage of a moved pod counts on its target until the target's own usage shows it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.processors.descheduling.move_outcomes import LANDING_SECONDS
from pipeline.processors.descheduling.remembered_moves import (
    EVICTED,
    NOT_FINAL,
    RememberedAction,
    RememberedPlan,
    RememberedPod,
)

WORKLOAD_REST_SECONDS: Final = 1800.0
REFUSED_REST_SECONDS: Final = 600.0
LONGEST_REFUSED_REST_SECONDS: Final = 3600.0
_OBSERVED: Final = frozenset({"observed", "recommended"})
"""Outcomes of modes in which nobody leaves."""
_REFUSED: Final = {
    "refused": "the evictor refused to evict it",
    "marked": "it was marked for its eviction by another agent",
}
_FORBIDDEN: Final = "Forbidden:"


class IncomingUsage(NamedTuple):
    """What a pod on its way to a node will use there: cpu in millicores, memory in bytes."""

    node: str
    cpu_millicores: float
    memory_bytes: float
    is_prod: bool


class Rests:
    """The cool-downs of one moment. Reasons are for people; None: it may be planned.
    `resting_targets` are, by node, the nodes to which none of its pods may go.

    `plans` have their name and whether they are under way; `actions` are the last ones, by plan and
    UID of the pod."""

    def __init__(
        self, plans: Iterable[tuple[str, RememberedPlan, bool]],
        actions: Mapping[tuple[str, str], RememberedAction], now: float,
    ) -> None:  # fmt: skip
        self._now = now
        self._evicted_at: dict[str, float] = {}  # by node
        self._observed_at: dict[str, float] = {}  # by node
        self._moved_at: dict[str, float] = {}  # by workload, or moved in mode act
        self._refused: dict[str, tuple[float, str]] = {}  # when and why, by UID of the pod
        self._lasting: dict[str, list[tuple[float, str]]] = {}  # likewise, each refusal
        self._planned: dict[str, str] = {}  # nodes and their plans
        self._moving: dict[str, str] = {}  # workloads and the plans that move them
        self._incoming: list[tuple[float, IncomingUsage]] = []
        # By node, those that gave pods to it.
        self.resting_targets: dict[str, set[str]] = {}
        for (_, uid), action in actions.items():
            if action.outcome in EVICTED:
                _keep_last(self._evicted_at, action.node, action.at)
                if action.workload:
                    _keep_last(self._moved_at, action.workload, action.at)
            elif action.outcome in _OBSERVED:
                _keep_last(self._observed_at, action.node, action.at)
                if action.workload:
                    _keep_last(self._moved_at, action.workload, action.at)
            elif (why := _REFUSED.get(action.outcome)) is not None:
                refused = action.at, why
                self._refused[uid] = max(refused, self._refused.get(uid, refused))
                if action.lasting:
                    self._lasting.setdefault(uid, []).append((action.at, action.lasting))
        for plan_id, plan, is_under_way in plans:
            if is_under_way:
                self._planned[plan.node] = plan_id
            for pod in plan.pods:
                self._take_pod(actions.get((plan_id, pod.uid)), plan, pod, is_under_way)
                if is_under_way and pod.workload:
                    self._moving[pod.workload] = plan_id

    def _take_pod(
        self,
        action: RememberedAction | None,
        plan: RememberedPlan,
        pod: RememberedPod,
        is_under_way: bool,
    ) -> None:
        left_at = action.at if action is not None and action.outcome in EVICTED else None
        if left_at is not None and pod.workload:
            _keep_last(self._moved_at, pod.workload, left_at)
        is_waiting = is_under_way and (action is None or action.outcome in NOT_FINAL)
        if pod.target and (is_waiting or left_at is not None):
            if left_at is None or self._now - left_at < WORKLOAD_REST_SECONDS:
                self.resting_targets.setdefault(pod.target, set()).add(plan.node)
            usage = IncomingUsage(pod.target, pod.cpu_millicores, pod.memory_bytes, pod.is_prod)
            self._incoming.append((self._now if left_at is None else left_at, usage))

    def of_node(self, node: str, span_seconds: float) -> str | None:
        """Why the node gets no plan; its usage is compared over `span_seconds`."""
        if node in self._planned:
            return f"plan {self._planned[node]} is under way"
        seconds = self._now - self._evicted_at.get(node, float("-inf"))
        if seconds < span_seconds:
            return f"usage of {span_seconds:g} s does not show the eviction {seconds:.0f} s ago"
        seconds = self._now - self._observed_at.get(node, float("-inf"))
        if seconds < WORKLOAD_REST_SECONDS:
            return f"its last plan was only observed, {seconds / 60:.0f} minutes ago"
        return None

    def of_pod(self, uid: str, workload: str) -> str | None:
        """Why the pod of this workload (kind/namespace/name, empty: none) stays."""
        if self.is_unmovable(uid):
            return f"the evictor refused to evict it: {max(self._lasting[uid])[1]}"
        if workload in self._moving:
            return f"plan {self._moving[workload]} moves pods of {workload}"
        seconds = self._now - self._moved_at.get(workload, float("-inf"))
        if seconds < WORKLOAD_REST_SECONDS:
            minutes = f"{seconds / 60:.0f} minutes ago"
            return f"a pod of {workload} was evicted, or observed to be, {minutes}"
        refused_at, why = self._refused.get(uid, (float("-inf"), ""))
        seconds = self._now - refused_at
        if seconds < REFUSED_REST_SECONDS:
            return f"{why} {seconds / 60:.0f} minutes ago"
        return None

    def was_refused(self, uid: str) -> bool:
        """Whether the evictor refused the pod within `LASTING_SECONDS` for a reason that lasts, in
        two plans if it was forbidden: the budget of a rollout that is under way allows nothing."""
        refusals = self._lasting.get(uid, ())
        return len(refusals) > 1 or not all(why.startswith(_FORBIDDEN) for _, why in refusals)

    def is_unmovable(self, uid: str) -> bool:
        """Whether the pod was refused so, and it is not yet time to ask again."""
        if not self.was_refused(uid):
            return False
        refusals = self._lasting[uid]
        rest = REFUSED_REST_SECONDS * 2.0 ** (len(refusals) - 1)
        return self._now - max(refusals)[0] < min(rest, LONGEST_REFUSED_REST_SECONDS)

    def incoming(self, span_seconds: float) -> list[IncomingUsage]:
        """Moved pods that usage over `span_seconds` does not show on their targets yet."""
        since = self._now - span_seconds - LANDING_SECONDS
        return [usage for at, usage in self._incoming if at > since]


def _keep_last(times: dict[str, float], key: str, at: float) -> None:
    times[key] = max(at, times.get(key, at))
