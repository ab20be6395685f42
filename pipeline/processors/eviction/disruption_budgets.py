"""Predict the API server's answer to evictions from the disruption budgets.

The API server checks one eviction at a time, so a plan for several pods could fail half way. The
rules are those of the eviction handler of kube-apiserver.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from pipeline.processors.eviction.live_pods import LivePod
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.pods import PodRecord

_MOST_UNCONFIRMED: Final = 2000
_NEVER_ASKED: Final = frozenset({"Succeeded", "Failed", "Pending"})
"""Phases of pods that are deleted without asking their budgets."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    generation: int = 0


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    selector: Selector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, str] | None = None


class DisruptionBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget (policy/v1). Without a selector it covers no pod."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def covers(self, pod: PodRecord) -> bool:
        """Whether the budget selects the pod."""
        return (
            self.metadata.namespace == pod.namespace
            and self.spec.selector is not None
            and self.spec.selector.matches(pod.labels)
        )

    def __str__(self) -> str:
        return f"the disruption budget {self.metadata.namespace}/{self.metadata.name}"


class Answer(NamedTuple):
    """A predicted answer: its HTTP status, the reason unless it is 201, and whether the eviction
    uses up one disruption of its budget."""

    status: int
    reason: str = ""
    is_counted: bool = False


_ACCEPTED: Final = Answer(201)


def expected_answer(
    pod: LivePod | None, uid: str, budgets: Sequence[DisruptionBudget], used: int = 0
) -> Answer:
    """Predict the answer to the eviction of the pod with this UID. `pod` has its name; `budgets`
    are all of its namespace, and `used` disruptions of its budget are used up since they were
    read."""
    if pod is None:
        return Answer(404, "the pod is already gone")
    answer = _answer_of_budgets(pod, [b for b in budgets if b.covers(pod.record)], used)
    if answer.status == 201 and uid != pod.record.uid:
        return Answer(409, "another pod has the name now")
    return answer


def _answer_of_budgets(pod: LivePod, budgets: Sequence[DisruptionBudget], used: int) -> Answer:
    if pod.record.phase in _NEVER_ASKED or pod.is_deleted or not budgets:
        return _ACCEPTED
    if len(budgets) > 1:
        names = " and ".join(str(budget) for budget in budgets[:2])
        return Answer(500, f"{len(budgets)} budgets cover the pod, among them {names}")
    (budget,) = budgets
    status = budget.status
    if not pod.is_ready:
        if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return _ACCEPTED
        if status.current_healthy >= status.desired_healthy > 0:
            return _ACCEPTED
    if status.observed_generation < budget.metadata.generation:
        return Answer(429, f"{budget} has a status older than its spec")
    if status.disruptions_allowed < 0:
        return Answer(403, f"{budget} allows a negative number of evictions")
    if len(status.disrupted_pods or ()) > _MOST_UNCONFIRMED:
        return Answer(403, f"{budget} has too many evictions that are not confirmed")
    if status.disruptions_allowed <= used:
        allowed = status.disruptions_allowed
        return Answer(429, f"{budget} allows {allowed} evictions now, not {used + 1}")
    return Answer(201, is_counted=True)


def refused_by_budgets(pods: Iterable[LivePod], budgets: Sequence[DisruptionBudget]) -> str | None:
    """Why the API server would not evict all of the pods now; None if it would."""
    used: dict[int, int] = {}
    for pod in pods:
        covering = [number for number, b in enumerate(budgets) if b.covers(pod.record)]
        number = covering[0] if covering else -1
        answer = expected_answer(pod, pod.record.uid, budgets, used.get(number, 0))
        if answer.status != 201:
            return answer.reason
        used[number] = used.get(number, 0) + answer.is_counted
    return None
