"""The time grid of a pool: samples (steps), blocks of steps, and the horizon of a prediction."""

import math
from dataclasses import dataclass
from typing import Final

HISTORY_DAYS: Final = 14
"""Days of usage that a pod's history covers."""
_BLOCKS: Final = 24
_DAY_SECONDS: Final = 86_400
_YOUNG_SECONDS: Final = 6 * 3600
_NEW_SECONDS: Final = 2 * 3600
_AUDITS: Final = 48


@dataclass(frozen=True, slots=True)
class Horizon:
    """A horizon of `steps` samples of `step_seconds`. Raises ValueError if a day is not a whole
    number of steps, or the horizon is longer than a day."""

    steps: int
    step_seconds: int = 300

    def __post_init__(self) -> None:
        if self.steps < 1 or self.step_seconds < 1:
            raise ValueError("a horizon has at least one step of at least one second")
        if self.steps * self.step_seconds > _DAY_SECONDS:
            raise ValueError("the horizon is longer than a day")
        if _DAY_SECONDS % self.step_seconds:
            raise ValueError(f"a step of {self.step_seconds} s does not divide a day")

    @property
    def block_steps(self) -> int:
        """Samples in a block, the longest of which a day has a whole number: histories store one
        maximum a block."""
        longest = max(1, self.steps // _BLOCKS)
        day_steps = _DAY_SECONDS // self.step_seconds
        return next(length for length in range(longest, 0, -1) if day_steps % length == 0)

    @property
    def blocks(self) -> int:
        """Blocks of a window that covers the horizon from any step within a block."""
        return math.ceil(self.steps / self.block_steps) + 1

    @property
    def day_blocks(self) -> int:
        return _DAY_SECONDS // (self.block_steps * self.step_seconds)

    @property
    def ring_blocks(self) -> int:
        """Blocks that a history stores: the days of history and the present block."""
        return HISTORY_DAYS * self.day_blocks + 1

    @property
    def ring_steps(self) -> int:
        return self.ring_blocks * self.block_steps

    @property
    def young_steps(self) -> int:
        """Younger pods are predicted from the first horizons of other pods."""
        return min(max(1, _YOUNG_SECONDS // self.step_seconds), self.steps)

    @property
    def new_steps(self) -> int:
        """The mean usage of younger pods says nothing yet."""
        return max(1, _NEW_SECONDS // self.step_seconds)

    @property
    def audit_steps(self) -> int:
        """Steps between two predictions of a node whose outcomes are counted."""
        return max(1, self.steps // _AUDITS)

    @property
    def audits(self) -> int:
        """Predictions of a node whose outcomes are pending at most."""
        return self.steps // self.audit_steps + 1

    def steps_of_days(self, days: float) -> float:
        return days * _DAY_SECONDS / self.step_seconds
