"""Check disruption budgets for all evictions of a plan at once.

The API server checks one eviction at a time, so a plan could fail half way.
"""

from collections.abc import Iterable, Sequence

import msgspec

from pipeline.processors.policy.selectors import Selector
from pipeline.topics.pods import PodRecord


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Spec(msgspec.Struct, frozen=True):
    selector: Selector | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    disruptions_allowed: int = 0


class DisruptionBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget (policy/v1). Without a selector it covers no pod."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def counts(self, pod: PodRecord) -> bool:
        """Whether an eviction of the pod counts against it: only if the pod is running."""
        return (
            self.metadata.namespace == pod.namespace
            and pod.phase == "Running"
            and self.spec.selector is not None
            and self.spec.selector.matches(pod.labels)
        )


def exceeded_budget(budgets: Iterable[DisruptionBudget], pods: Sequence[PodRecord]) -> str | None:
    """The problem with the first budget that allows fewer evictions now than `pods` need; None if
    all allow them."""
    for budget in budgets:
        count, allowed = sum(map(budget.counts, pods)), budget.status.disruptions_allowed
        if count > allowed:
            name = f"{budget.metadata.namespace}/{budget.metadata.name}"
            return f"the disruption budget {name} allows {allowed} evictions now, not {count}"
    return None
