"""The fields that all results share: the position in the log, and the epoch of the writer.

Readers order the results of a node by (generation, offset) and drop older ones: replays, duplicates
and paused workers that wake up cannot set a node back. A tombstone has its position in a header.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from pipeline.times import parse_time
from pipeline.topics.codec import Record

POSITION_HEADER: Final = "position"
"""The header of a tombstone of results, with `encode_position`."""

Position = tuple[int, int]
"""Generation of the log, and offset in it."""


class Result(Record, frozen=True, kw_only=True):
    """A result: a pure function of `springtide.windows` up to and including `offset`.

    Raises `ValueError` for an `as_of` that is not a time; decoding raises `InvalidRecordError`.

    node: Name of the node, which is also the key.
    as_of: End of the window that the result is about, RFC 3339, UTC.
    generation: Generation of the topic of windows; it grows when the log is truncated.
    offset: Offset of the window in its partition. Readers order results by generation and offset.
    epoch: Epoch of the worker that wrote it, the only field that may differ between two runs.
    """

    node: str
    as_of: str
    generation: int
    offset: int
    epoch: int

    def __post_init__(self) -> None:
        check_time("as_of", self.as_of)

    @property
    def position(self) -> Position:
        """The position in the log by which readers order results."""
        return self.generation, self.offset


def position_headers(position: Position) -> list[tuple[str, bytes]]:
    """The headers of a tombstone that withdraws the results up to this position."""
    generation, offset = position
    return [(POSITION_HEADER, b"%d:%d" % (generation, offset))]


def position_of(headers: Iterable[tuple[str, bytes | None]]) -> Position | None:
    """The position in the headers of a tombstone; None if they state none."""
    for name, value in headers:
        if name != POSITION_HEADER or value is None:
            continue
        generation, _, offset = value[:40].partition(b":")
        if generation.isdigit() and offset.isdigit():
            return int(generation), int(offset)
    return None


@lru_cache(maxsize=1024)  # windows of all nodes end at the same times
def check_time(field: str, text: str) -> None:
    """Raise `ValueError` if the text of a field is not a time."""
    try:
        parse_time(text)
    except ValueError as error:
        raise ValueError(f"{field} is not a time: {error}") from error


def supersedes(new: Result, old: Result | None) -> bool:
    """Whether `new` replaces `old`: it is later in the log, or at the same position."""
    return old is None or new.position >= old.position
