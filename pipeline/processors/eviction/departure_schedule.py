"""Predict whether the pods of a plan that makes room can all leave before it expires.

A limit such as maxMigratingPerNode lets pods of a node leave one after the other. Then the grace
periods of the first pods decide when the last one may leave. If that is too late, none may leave:
an eviction cannot be taken back.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.migration_limits import (
    PASSING,
    Candidate,
    WorkloadState,
    limits_reached,
)
from pipeline.processors.eviction.migration_policy import Gate, MigrationLimits
from pipeline.processors.eviction.refusals import Refusal, verdict

LATER_SECONDS: Final = 5.0
"""How much later than its grace period a pod is seen to be gone."""
_MOST_STEPS: Final = 1000
_A_MOMENT: Final = 0.001
"""Times are rounded: an event is over a moment later."""


class Departure(NamedTuple):
    """A pod that is to leave, how long it may take to end, the state of its workload, and the
    reasons of limits that do not hold for it."""

    pod: Candidate
    grace_seconds: float
    state: WorkloadState | None
    ignored: Collection[str] = ()


class Terms(NamedTuple):
    """Limits, the gates that are skipped, the pause between two evictions, and when the first may
    happen (monotonic seconds)."""

    limits: MigrationLimits
    skipped_gates: Collection[Gate]
    pause_seconds: float
    first_at: float


def objection_to_schedule(
    departures: Sequence[Departure], history: EvictionHistory, terms: Terms, until: float
) -> str | None:
    """Why not all of the pods may leave in this order before the time `until` (monotonic), None if
    they may. Notes their evictions in `history`, which must be a copy."""
    at, overdue = terms.first_at, frozenset(_ended(history, terms.first_at))
    for number, departure in enumerate(departures):
        too_late = f"{number} of {len(departures)} pods may leave before the plan expires"
        for _ in range(_MOST_STEPS):
            for uid in {*_ended(history, at)} - overdue:
                history.left(uid)
            refusal = _refusal(departure, history, terms, at)
            if refusal is None:
                break
            if refusal.reason not in PASSING:
                return str(refusal)
            next_at = _next_event(history, terms.limits, overdue, at)
            if next_at is None or next_at >= until:
                return f"{refusal}; {too_late}"
            at = next_at
        else:
            return f"{refusal}; {too_late}"
        if at >= until:
            return f"Expired: at the rate of evictions {too_late}"
        history.note(departure.pod, at, departure.grace_seconds)
        at += terms.pause_seconds
    return None


def _refusal(
    departure: Departure, history: EvictionHistory, terms: Terms, at: float
) -> Refusal | None:
    situation = history.situation(departure.pod, at, departure.state)
    refusals = limits_reached(departure.pod, situation, terms.limits)
    counted = (refusal for refusal in refusals if refusal.reason not in departure.ignored)
    return verdict(counted, terms.skipped_gates).refusal


def _ended(history: EvictionHistory, at: float) -> list[str]:
    """Pods that should be gone at this time."""
    return [e.pod.uid for e in history.leaving if e.ends_at + LATER_SECONDS <= at]


def _next_event(
    history: EvictionHistory, limits: MigrationLimits, overdue: Collection[str], at: float
) -> float | None:
    """When a pod is gone next, or an eviction is no longer of this cycle. Nobody knows when a pod
    goes that is overdue."""
    gone = [e.ends_at + LATER_SECONDS for e in history.leaving if e.pod.uid not in overdue]
    cycle = limits.cycle_seconds
    cycles = [past + cycle for past in history.times_since(at - cycle)]
    cycles.append(history.known_since + cycle)
    events = (time + _A_MOMENT for time in (*gone, *cycles))
    return min((time for time in events if time > at), default=None)
