"""`springtide.checkpoints`: exact model state, and who claims and who completed a round.

Three kinds of record share the topic; the partition is always given explicitly, because the key
carries the writer's epoch: a paused worker that wakes up overwrites nobody.

- `<node>@<epoch>`: a node's models, covering `windows` below `covers`;
- `@marker@<epoch>`: all checkpoints of a round are in; replay may begin at `resume`;
- `@claim@<member>`: a worker took the partition; the record's own offset becomes its epoch.
"""

import re
from typing import Final, Literal

import msgspec

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.topics.codec import Record
from pipeline.topics.node_state import Counters

IMPORT: Final = "import"
"""The member that claims a partition to put models into it."""


class NodeCheckpoint(Record, frozen=True, kw_only=True):
    """Models of one node: `state` is the exact snapshot, `prediction` and `node_state` the last
    reported results as they were written, without `prediction` where the record would be too large;
    `covers` is the first `windows` offset not in it."""

    node: str
    epoch: int
    round: int
    generation: int
    covers: int
    state: bytes
    counters: Counters = Counters()
    prediction: bytes | None = None
    node_state: bytes | None = None
    resources: bytes | None = None


class RoundMarker(Record, frozen=True, kw_only=True):
    """A round of `epoch` is complete: every node's checkpoint covers at least `resume`.

    `joined` is the highest sample offset that the join was done with, -1 if none: its window is in
    the log, or it was refused. `left_out` are nodes whose state no record takes, with what had
    happened to their windows at `resume`: all that is lost if the round is needed.
    """

    epoch: int
    round: int
    generation: int
    resume: int
    joined: int
    nodes: int
    left_out: dict[str, Counters] = msgspec.field(default_factory=dict)


class Claim(Record, frozen=True, kw_only=True):
    """A worker (process `member`, of the consumer group `group`) took this partition at
    `claimed_at`."""

    member: str
    claimed_at: str
    group: str = ""


KeyKind = Literal["node", "marker", "claim"]

_MARKER = "@marker@"
_CLAIM = "@claim@"
_EPOCH = "(0|[1-9][0-9]{0,18})"
_NODE_KEY = re.compile(f"([^@]+)@{_EPOCH}", re.DOTALL)
_MARKER_KEY = re.compile(f"{_MARKER}{_EPOCH}")


def node_key(node: str, epoch: int) -> bytes:
    return f"{node}@{epoch}".encode()


def marker_key(epoch: int) -> bytes:
    return f"{_MARKER}{epoch}".encode()


def claim_key(member: str) -> bytes:
    return f"{_CLAIM}{member}".encode()


def parse_key(key: bytes) -> tuple[KeyKind, str, int]:
    """Kind, node or member, and epoch (-1 for a claim) of a checkpoint key.

    >>> parse_key(b"node-1@42")
    ('node', 'node-1', 42)

    Raises `InvalidRecordError` for any other key.
    """
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"checkpoint key {key[:80]!r} is not UTF-8") from error
    if match := _NODE_KEY.fullmatch(text):
        return "node", match[1], int(match[2])
    if match := _MARKER_KEY.fullmatch(text):
        return "marker", "", int(match[1])
    if len(text) > len(_CLAIM) and text.startswith(_CLAIM):
        return "claim", text.removeprefix(_CLAIM), -1
    raise InvalidRecordError(f"checkpoint key {key[:80]!r} is none of node, marker and claim")


def check_payload(key: bytes, node: str, epoch: int, key_node: str, key_epoch: int) -> None:
    """Raise `KeyMismatchError` unless a record of `checkpoints` is what its key says."""
    if (node, epoch) != (key_node, key_epoch):
        raise KeyMismatchError(
            f"record of {node!r:.80} and epoch {epoch} has the key {key[:100]!r}"
        )
