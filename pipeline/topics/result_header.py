"""The fields that all results share: the position in the log, and the epoch of the writer.

Readers order the results of a node by (generation, offset) and drop older ones: replays, duplicates
and paused workers that wake up cannot set a node back.
"""

from functools import lru_cache

from pipeline.times import parse_time
from pipeline.topics.codec import Record


class Result(Record, frozen=True, kw_only=True):
    """A result: a pure function of `springtide.windows` up to and including `offset`.

    `as_of` is the end of the window (RFC 3339, UTC), `generation` that of the windows topic,
    `epoch` that of the worker: the only field that may differ between two runs. Raises `ValueError`
    for an `as_of` that is not a time; decoding raises `InvalidRecordError`.
    """

    node: str
    as_of: str
    generation: int
    offset: int
    epoch: int

    def __post_init__(self) -> None:
        _check_time(self.as_of)


@lru_cache(maxsize=1024)  # windows of all nodes end at the same times
def _check_time(text: str) -> None:
    try:
        parse_time(text)
    except ValueError as error:
        raise ValueError(f"as_of is not a time: {error}") from error


def supersedes(new: Result, old: Result | None) -> bool:
    """Whether `new` replaces `old`: it is later in the log, or at the same position."""
    return old is None or (new.generation, new.offset) >= (old.generation, old.offset)
