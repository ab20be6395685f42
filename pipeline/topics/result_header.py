"""What every result record shares: which log position it speaks for and who wrote it.

Readers order the results of a node by (generation, offset) and drop the older: so replays,
duplicates and paused workers that wake up cannot turn back what is known.
"""

from functools import lru_cache

from pipeline.times import parse_time
from pipeline.topics.codec import Record


class Result(Record, frozen=True, kw_only=True):
    """A pure function of `springtide.windows` up to and including `offset`.

    `as_of` is the end of the window (RFC 3339, UTC); `generation` that of the windows topic;
    `epoch` that of the worker that wrote it, the one field that may differ between two runs. An
    `as_of` that is no time is a ValueError, and breaks the schema where it is read.
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
        raise ValueError(f"as_of is not readable: {error}") from error


def supersedes(new: Result, old: Result | None) -> bool:
    """Whether `new` replaces `old`: later in the log, or the same position written again."""
    return old is None or (new.generation, new.offset) >= (old.generation, old.offset)
