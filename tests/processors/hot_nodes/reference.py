"""Detection as docs/explanation/hot-nodes.md describes it: one node and rule, plain Python."""

from dataclasses import dataclass, field
from typing import Final

HOLD_SECONDS: Final = 300


@dataclass
class Level:
    """A debounced level: `above` and `below` are windows in a row."""

    mark: float
    calm: float
    above: int = 0
    below: int = 0


@dataclass
class Rule:
    """A rule of a node. `look` takes its windows in order and returns what changed."""

    high: float
    open_windows: int
    close_windows: int
    hysteresis: float
    severity: str = ""
    since: int = 0
    answered: int | None = None
    levels: list[Level] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.levels = [Level(0.0, 0.0), Level(0.0, 0.0)]
        self.set_high(self.high)

    def set_high(self, high: float) -> None:
        """Change the threshold; levels and runs stay."""
        marks = high, max(high, (high + 100) / 2)
        for level, mark in zip(self.levels, marks, strict=True):
            level.mark, level.calm = mark, max(mark - self.hysteresis, mark / 2)

    def look(self, start: int, end: int, percent: float | None) -> str:
        """The transition at a window from `start` to `end` (seconds) with this usage, else ""."""
        if percent is None:
            return ""
        if self.answered is not None and start - self.answered > HOLD_SECONDS:
            for level in self.levels:
                level.above = level.below = 0
        self.answered = end
        for level in self.levels:
            level.above = level.above + 1 if percent > level.mark else 0
            level.below = level.below + 1 if percent <= level.calm else 0
        warning, critical = self.levels
        if not self.severity:
            if warning.above < self.open_windows:
                return ""
            self.severity = "critical" if critical.above >= self.open_windows else "warning"
            self.since = end
            return "opened"
        if warning.below >= self.close_windows:
            self.severity = ""
            return "closed"
        if self.severity == "warning" and critical.above >= self.open_windows:
            self.severity = "critical"
            return "escalated"
        if self.severity == "critical" and critical.below >= self.close_windows:
            self.severity = "warning"
            return "eased"
        return ""
