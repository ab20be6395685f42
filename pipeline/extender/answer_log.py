"""Count the verdicts of filter, add answers to spans, and log them, few of them."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal

from pipeline import tracing
from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.extender.decisions import FilterResult
from pipeline.extender.scheduler_messages import Question
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.spans import Value

VERDICTS = counter(
    "extender_verdicts",
    "Nodes judged by filter: passed, refused, estimated (passed by estimates where usage of a "
    "resource is unknown), unknown (passed for lack of a young window), not_ready, exempt (the "
    "pod's kind passes everywhere). In mode observe: what act would answer.",
    ["mode", "verdict"],
)
REFUSALS = counter(
    "extender_refusals",
    "Nodes refused by filter, by the reason that the scheduler gets. In mode observe: what act "
    "would answer.",
    ["mode", "reason"],
)

# The lookup of a metric by its labels takes longer than the increment.
_verdicts, _refusals = cache(VERDICTS.labels), cache(REFUSALS.labels)

_LOGGED_REFUSALS: Final = 3

_log = get_logger(__name__)


class AnswerLog:
    """The answers of an extender in this mode."""

    def __init__(self, mode: Literal["observe", "act"], clock: Clock) -> None:
        self._mode, self._clock = mode, clock
        self._logged: dict[str, tuple[float, int]] = {}  # verb -> time, suppressed lines since

    def judged(
        self, question: Question, counts: Mapping[str, int], result: FilterResult | None = None
    ) -> None:
        """Count verdicts and refusals, and log them with the numbers of a few refused nodes."""
        for verdict, count in counts.items():
            _verdicts(self._mode, verdict).inc(count)
        reasons = {} if result is None else result.refusals.counts()
        for reason, count in reasons.items():
            _refusals(self._mode, reason).inc(count)
        self.describe(
            question.pod.title, len(question.names),
            lambda: {**counts, "reasons": [f"{reasons[text]} {text}" for text in reasons]},
        )  # fmt: skip

        def answer() -> dict[str, Any]:
            details = {} if result is None else result.details(_LOGGED_REFUSALS)
            shown = [f"{name}: {text}"[:500] for name, text in details.items()]
            return {"reasons": reasons, "answer": shown}

        self.log("filter", question, counts, answer)

    def describe(self, pod: str, nodes: int, answer: Callable[[], Mapping[str, Value]]) -> None:
        """Add an answer about a pod and so many nodes to the current span; without one `answer` is
        not called."""
        if (span := tracing.current()) is not None:
            fields = {"mode": self._mode, "pod": pod, "nodes": nodes, **answer()}
            span.attributes.update((f"springtide.{name}", fields[name]) for name in fields)

    def log(
        self, verb: str, question: Question, counts: Mapping[str, Any],
        answer: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Log an answer, at most one in `LOG_PERIOD_SECONDS`; only then `answer` is called."""
        now = self._clock.monotonic()
        logged_at, suppressed = self._logged.get(verb, (-math.inf, 0))
        if now - logged_at < limits.LOG_PERIOD_SECONDS:
            self._logged[verb] = (logged_at, suppressed + 1)
            return
        _log.info(
            "answer" if self._mode == "act" else "would-be answer",
            verb=verb,
            mode=self._mode,
            pod=question.pod.title,
            nodes=len(question.names),
            **counts,
            **answer(),
            suppressed=suppressed,
        )
        self._logged[verb] = (now, 0)
