"""Log what became of each pod of a plan, and why: one line per pod and outcome."""

from typing import Final

from pipeline.clock import Clock
from pipeline.logs import get_logger
from pipeline.topics.actions import ActionRecord

log = get_logger(__name__)

LINES_PER_MINUTE: Final = 300
"""Plans and pods are as many as their writers like; springtide.actions has every action."""
REMEMBERED: Final = 10_000
"""The newest lines that are not repeated."""
_PERIOD_SECONDS: Final = 60.0
_SHOWN_CHARACTERS: Final = 500


class OutcomeLog:
    """Logs actions about pods, or about whole plans, at a bounded rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, ...], None] = {}
        self._period_began_at = clock.monotonic()
        self._lines = 0
        self._dropped = 0

    def note(self, action: ActionRecord) -> None:
        """Log an action, unless the outcome of its pod was logged. An intention is not: its outcome
        follows."""
        pods = ", ".join(action.before)
        line = (action.plan, pods, *action.before.values(), action.outcome)
        key = tuple(text or "" for text in line)
        if action.outcome == "intended" or not action.plan or key in self._logged:
            return
        if not self._may_log():
            self._dropped += 1
            return
        if len(self._logged) >= REMEMBERED:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = None
        if self._dropped:
            log.warning("lines about evictions were dropped", lines=self._dropped)
            self._dropped = 0
        log.info(
            "eviction", pod=pods or "all pods of the plan", node=action.node,
            outcome=action.outcome, why=(action.error or action.why)[:_SHOWN_CHARACTERS],
            plan=action.plan,
        )  # fmt: skip

    def _may_log(self) -> bool:
        now = self._clock.monotonic()
        if now - self._period_began_at >= _PERIOD_SECONDS:
            self._period_began_at, self._lines = now, 0
        self._lines += 1
        return self._lines <= LINES_PER_MINUTE
