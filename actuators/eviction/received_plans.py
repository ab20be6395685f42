"""Plans with their times by the evictor's monotonic clock.

Three wall clocks are involved: the planner's in the plan, the broker's in its record, and the
evictor's. Each of them may be wrong, or may jump. They are compared once, when the plan is read.
Before each eviction the broker's times of the plan and of the eviction's record are compared, too:
an evictor whose clock is behind takes an old plan for a young one.
"""

import math
from typing import NamedTuple

from pipeline.clock import Clock
from pipeline.times import parse_time
from pipeline.topics.eviction_plans import LONGEST_VALID_SECONDS, EvictionPlanRecord


class ReceivedPlan(NamedTuple):
    """A plan, when it was made at the latest, and when it expires (monotonic seconds). `ends_at` is
    when it expires by the broker's clock (Unix time), infinite if that is not known."""

    plan: EvictionPlanRecord
    made_at: float
    expires_at: float
    ends_at: float = math.inf


def receive(
    plan: EvictionPlanRecord, clock: Clock, appended_at: float | None = None
) -> ReceivedPlan:
    """A plan that was just read, and that the broker appended at this time (Unix time).

    It is valid for as long as it says from the moment at which it was appended, and never after its
    own end. A plan that is further in the future than any is valid has expired. Raises ValueError
    if its times are invalid.
    """
    now, monotonic = clock.now(), clock.monotonic()
    made_at, valid_until = parse_time(plan.at), parse_time(plan.valid_until)
    seconds = min(valid_until - made_at, LONGEST_VALID_SECONDS)
    age = max(now - made_at, 0.0)
    # A planner's clock that is ahead makes its plans valid for longer.
    left, ends_at = [seconds, made_at + seconds - now], math.inf
    if appended_at is not None:
        age = max(age, now - appended_at)
        ends_at = appended_at + seconds
        left.append(ends_at - now)
    is_ahead = made_at - now > LONGEST_VALID_SECONDS
    left_seconds = 0.0 if is_ahead else min(left)
    return ReceivedPlan(plan, monotonic - age, monotonic + left_seconds, ends_at)
