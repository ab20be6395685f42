"""What is remembered of plans and of the actions about their pods."""

from typing import Final, NamedTuple

from pipeline.topics.actions import Outcome

EVICTED: Final = frozenset({"intended", "done", "failed"})
"""Outcomes after which the pod left, or may have left."""
NOT_FINAL: Final = frozenset({"intended", "marked"})
"""Outcomes that another one follows, within the time of the plan if nothing goes wrong."""


class RememberedPod(NamedTuple):
    """What is remembered of a pod of a plan: not the texts, which are most of the record."""

    uid: str
    namespace: str
    workload: str
    target: str
    cpu_millicores: int
    memory_bytes: int
    is_prod: bool


class RememberedPlan(NamedTuple):
    """A plan, made `at` and valid `until` these Unix times."""

    node: str
    strategy: str
    at: float
    until: float
    pods: tuple[RememberedPod, ...]


class RememberedAction(NamedTuple):
    """The last action about a pod of a plan. `lasting` is the reason of a refusal that will be
    repeated, empty for others."""

    node: str
    workload: str
    outcome: Outcome
    at: float
    lasting: str = ""
