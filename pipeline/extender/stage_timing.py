"""Measure the stages of an answer, so that a slow answer shows which stage is slow.

One histogram over verbs and stages; a measurement takes about a microsecond.
"""

import asyncio
from functools import cache
from time import perf_counter
from typing import Final, Literal

from pipeline import tracing
from pipeline.metrics import histogram

Verb = Literal["filter", "prioritize", "preempt", "v1/explain"]
Stage = Literal["receive", "read", "decide", "write"]

BUCKETS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
SECONDS = histogram(
    "extender_stage_seconds",
    "Seconds per stage of an answer: receive (the body, as fast as its sender sends), read (parse "
    "it), decide (judge or score nodes), write (encode the answer).",
    ["verb", "stage"],
    buckets=BUCKETS,
)
# The lookup of a metric by its labels takes longer than the observation.
_seconds = cache(SECONDS.labels)


class StageTimer:
    """Times the stages of one answer, from now on, also for its span. A stage that raises is not
    observed."""

    __slots__ = ("_since", "_span", "_verb")

    def __init__(self, verb: Verb) -> None:
        self._verb = verb
        self._span = tracing.current()
        self._since = perf_counter()

    def done(self, stage: Stage) -> None:
        """Observe the time since the previous stage as this stage."""
        now = perf_counter()
        _seconds(self._verb, stage).observe(now - self._since)
        if self._span is not None:
            self._span.attributes[f"springtide.{stage}_seconds"] = now - self._since
        self._since = now

    async def end_turn(self, stage: Stage) -> None:
        """Observe the stage, and let other work of the event loop go on before the next. The table
        may change meanwhile."""
        self.done(stage)
        await asyncio.sleep(0)
        self._since = perf_counter()
