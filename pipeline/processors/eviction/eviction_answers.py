"""What an answer of the Eviction API means, and when a refused eviction is tried again.

An accepted eviction means that the deletion of the pod has begun, not that the pod is gone.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

EvictionAction = Literal[
    "accepted", "done", "drop_replan", "fail_auth", "fail_bug", "fail_report", "retry_later",
    "unknown",
]  # fmt: skip

DEFAULT_WAIT_SECONDS: Final = 5.0
"""Before the next attempt if the server names no time, as `kubectl drain` waits."""
LONGEST_WAIT_SECONDS: Final = 60.0
BUDGET_CAUSE: Final = "DisruptionBudget"
"""The cause of a 429 if a disruption budget forbids the eviction."""

_MEANINGS: Final[Mapping[EvictionAction, str]] = {
    "accepted": "wait until the pod with that UID is gone",
    "done": "the pod is already gone",
    "drop_replan": "another pod has the name now; drop the step and plan again",
    "fail_auth": "renew the credential once, then fail",
    "fail_bug": "our request is wrong; do not retry",
    "fail_report": "do not retry in a loop; report (two budgets, broken budget, or no permission)",
    "retry_later": "honour Retry-After when present, else back off; give up at the plan's deadline",
    "unknown": "the answer was lost; look at the pod before another attempt",
}
_ACTIONS: Final[Mapping[int, EvictionAction]] = {
    401: "fail_auth", 403: "fail_report", 404: "done", 408: "retry_later", 409: "drop_replan",
    429: "retry_later", 500: "fail_report", 502: "retry_later", 503: "retry_later",
    504: "retry_later",
}  # fmt: skip


def action_for(status: int | None) -> EvictionAction:
    """What to do after an answer with this HTTP status; None is no answer."""
    if status is None:
        return "unknown"
    if 200 <= status < 300:
        return "accepted"
    if status in _ACTIONS:
        return _ACTIONS[status]
    return "retry_later" if status >= 500 else "fail_bug"


def meaning_of(action: EvictionAction) -> str:
    """An explanation of the action."""
    return _MEANINGS[action]


def may_have_happened(status: int | None) -> bool:
    """Whether the pod may be being deleted after this answer: a gateway may lose the answer, and a
    server may fail after it began the deletion."""
    return status is None or status < 400 or status in (404, 408, 500, 502, 504)


def wait_seconds(
    retry_after_seconds: float | None, default_seconds: float = DEFAULT_WAIT_SECONDS
) -> float:
    """The pause before the next attempt: what the server asks for, within a limit."""
    if retry_after_seconds is None:
        return default_seconds
    return min(max(retry_after_seconds, 0.0), LONGEST_WAIT_SECONDS)


class Retry(NamedTuple):
    """The next step after an answer: `wait_seconds` is None if there is no further attempt."""

    action: EvictionAction
    wait_seconds: float | None


def next_step(
    status: int | None,
    retry_after_seconds: float | None,
    *,
    waited_seconds: float = 0.0,
    deadline_seconds: float = math.inf,
    default_seconds: float = DEFAULT_WAIT_SECONDS,
) -> Retry:
    """Decide after an answer. A wait that would end after the deadline is not begun."""
    action = action_for(status)
    if action not in ("retry_later", "unknown"):
        return Retry(action, None)
    wait = wait_seconds(retry_after_seconds, default_seconds)
    return Retry(action, wait if waited_seconds + wait <= deadline_seconds else None)
