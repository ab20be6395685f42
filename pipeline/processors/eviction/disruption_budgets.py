"""Disruption budgets that several evictions share: tried one by one, each alone may pass.

Owes the rest: a plan is refused before its first pod leaves, not half way.
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


class Budget(msgspec.Struct, frozen=True):
    """What is read of a PodDisruptionBudget (policy/v1); without a selector it is of no pod."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def is_of(self, pod: PodRecord) -> bool:
        """Whether an eviction of the pod is held against it: that of one that does not run is
        not."""
        return (
            self.metadata.namespace == pod.namespace
            and pod.phase == "Running"
            and self.spec.selector is not None
            and self.spec.selector.matches(pod.labels)
        )


def overdrawn(budgets: Iterable[Budget], pods: Sequence[PodRecord]) -> str | None:
    """Which budget allows fewer evictions at present than there would be of its pods; None for
    none."""
    for budget in budgets:
        count, allowed = sum(map(budget.is_of, pods)), budget.status.disruptions_allowed
        if count > allowed:
            of = f"{budget.metadata.namespace}/{budget.metadata.name}"
            return f"the disruption budget {of} allows {allowed} evictions now, not {count}"
    return None
