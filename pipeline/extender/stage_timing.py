"""How long the parts of an answer take, so that a slow one says where it is slow.

Owes the rest: a histogram for each verb and stage, for a microsecond a stage.
"""

from functools import cache
from time import perf_counter
from typing import Final, Literal

from pipeline.metrics import histogram

Verb = Literal["filter", "prioritize", "preempt", "v1/explain"]
Stage = Literal["receive", "read", "decide", "write"]

BUCKETS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
SECONDS = histogram(
    "extender_stage_seconds",
    "Time of the parts of an answer: receive (the body, as fast as its sender sends), read, decide "
    "(judge or score nodes), write.",
    ["verb", "stage"],
    buckets=BUCKETS,
)
_seconds = cache(SECONDS.labels)


class Stages:
    """The watch of one answer, which begins now; what raises has no stage."""

    __slots__ = ("_since", "_verb")

    def __init__(self, verb: Verb) -> None:
        self._verb = verb
        self._since = perf_counter()

    def done(self, stage: Stage) -> None:
        """All since the stage before was this one."""
        now = perf_counter()
        _seconds(self._verb, stage).observe(now - self._since)
        self._since = now
