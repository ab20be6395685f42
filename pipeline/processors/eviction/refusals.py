"""Why a pod is not evicted, and which checks an operator has skipped for it."""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from pipeline.processors.eviction.migration_policy import Gate

_LASTING: Final = frozenset({
    "BarePod", "DaemonSet", "EvictionCost", "ExpectedReplicas", "Forbidden", "LabelSelector",
    "LocalStorage", "MirrorPod", "Namespace", "NodeFit", "NotPreemptible", "OtherScheduler", "PVC",
    "PriorityThreshold", "StaticPod", "SystemCritical",
})  # fmt: skip
"""Reasons that do not end by waiting. `Forbidden` is a disruption budget, or what the API
server says."""


class Refusal(NamedTuple):
    """A check that a pod does not pass. `reason` is a short stable name of the check, `text` has
    the details; `gate` is the name by which operators may skip the check, None if they may not."""

    reason: str
    text: str
    gate: Gate | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"


class Verdict(NamedTuple):
    """The first check that forbids an eviction, None if it is allowed; and the checks that would
    forbid it but are skipped."""

    refusal: Refusal | None
    skipped: tuple[Gate, ...] = ()


def verdict(refusals: Iterable[Refusal], skipped_gates: Collection[Gate]) -> Verdict:
    """The verdict of checks if some of them are skipped."""
    skipped: list[Gate] = []
    for refusal in refusals:
        if refusal.gate is None or refusal.gate not in skipped_gates:
            return Verdict(refusal, tuple(skipped))
        skipped.append(refusal.gate)
    return Verdict(None, tuple(skipped))


def is_lasting(text: str) -> bool:
    """Whether a refusal with this text will be repeated until somebody changes pod, workload,
    budget or policy. Limits, time-outs and switches are no such reasons.

    >>> is_lasting("ExpectedReplicas: 1 replicas"), is_lasting("Expired: it was not the pod's turn")
    (True, False)
    """
    return text.partition(":")[0] in _LASTING
