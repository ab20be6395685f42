"""Whether all pods of a plan that makes room can leave before it expires."""

from typing import Any

import pytest

from pipeline.processors.eviction.departure_schedule import (
    LATER_SECONDS,
    Departure,
    Terms,
    objection_to_schedule,
)
from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.migration_limits import Candidate
from pipeline.processors.eviction.migration_policy import MigrationLimits

NOW = 1000.0


def objection(
    graces: list[float], seconds: float, history: EvictionHistory | None = None,
    pause: float = 1.0, **limits: Any,
) -> str | None:  # fmt: skip
    """Why pods with these grace periods may not leave a node within some seconds."""
    departures = [
        Departure(Candidate(f"p{number}", "n", "d"), grace, None)
        for number, grace in enumerate(graces)
    ]
    terms = Terms(MigrationLimits(**limits), (), pause, NOW)
    history = history or EvictionHistory(3600.0, 300.0)
    return objection_to_schedule(departures, history, terms, NOW + seconds)


@pytest.mark.parametrize(
    ("graces", "needed"),
    [
        ([600], 0), ([600, 600], 1), ([30, 600, 0], 30 + LATER_SECONDS),
        # The second pod leaves a second later, and is the first to be gone.
        ([600, 30, 30, 600], 61 + 2 * LATER_SECONDS),
    ],
)  # fmt: skip
def test_the_last_pod_leaves_when_earlier_ones_are_gone(graces: list[float], needed: float) -> None:
    assert objection(graces, needed + 0.1) is None
    too_late = objection(graces, needed)
    assert too_late is not None
    assert f"{len(graces) - 1} of {len(graces)} pods may leave" in too_late


def test_a_slow_rate_alone_may_take_too_long() -> None:
    assert objection([0, 0, 0], 12.5, pause=6.0) is None
    reason = objection([0, 0, 0], 12.0, pause=6.0)
    assert reason == (
        "Expired: at the rate of evictions 2 of 3 pods may leave before the plan expires"
    )


def test_a_cap_lets_pods_leave_in_the_next_cycle() -> None:
    assert objection([0, 0], 11.0, cycle_per_node=1, cycle_seconds=10.0) is None
    assert "CycleCap" in (objection([0, 0], 9.0, cycle_per_node=1, cycle_seconds=10.0) or "")
    assert "CycleCap" in (objection([0], 9000.0, cycle_per_node=0) or "")


def test_pods_that_leave_already_count_until_they_are_gone() -> None:
    def leaving(at: float) -> EvictionHistory:
        history = EvictionHistory(3600.0, 300.0)
        for uid in ("a", "b"):
            history.note(Candidate(uid, "n", "d"), at, 30.0)
        return history

    assert objection([0], 40.0, leaving(NOW)) is None
    assert "MaxMigratingPerNode" in (objection([0], 30.0, leaving(NOW)) or "")
    # Nobody knows when a pod goes that should be gone.
    assert "MaxMigratingPerNode" in (objection([0], 9000.0, leaving(NOW - 100)) or "")
