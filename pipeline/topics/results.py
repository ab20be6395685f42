"""What every result record shares: which log position it speaks for and who wrote it.

Readers order the results of a node by (generation, offset) and drop the older: so replays,
duplicates and paused workers that wake up cannot turn back what is known.
"""

from pipeline.topics.codec import Record


class Result(Record, frozen=True, kw_only=True):
    """A pure function of `springtide.windows` up to and including `offset`.

    `as_of` is the end of the window (RFC 3339, UTC); `generation` that of the windows topic;
    `epoch` that of the worker that wrote it, the one field that may differ between two runs.
    """

    node: str
    as_of: str
    generation: int
    offset: int
    epoch: int


def supersedes(new: Result, old: Result | None) -> bool:
    """Whether `new` replaces `old`: later in the log, or the same position written again."""
    return old is None or (new.generation, new.offset) >= (old.generation, old.offset)
