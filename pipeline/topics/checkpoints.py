"""`springtide.checkpoints`: exact model state, round markers, claims and skipped windows.

Five kinds of record share the topic. Keys carry the writer's epoch, so that a paused worker that
wakes up overwrites no record of its successor; the partition is therefore given explicitly.

- `<node>@<epoch>`: models of a node, after all `windows` below the offset `covers`;
- `@marker@<epoch>`: all checkpoints of a round are written; replay may start at `resume`;
- `@claim@<member>`: a worker took the partition; the offset of this record is its epoch;
- `@skip@<epoch>@<offset>`: every replay skips the record of `windows` at this offset;
- `@departed@<end>@<node>`: models of workloads of a node that departed after a window that ended
  at this time. Its workloads may run elsewhere, or again.
"""

import re
from typing import Final, Literal

import msgspec

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.topics.codec import Record
from pipeline.topics.node_state import Counters

FIRST_GENERATION: Final = 1
"""Generation of the results of a log of windows that was never truncated."""

IMPORT: Final = "import"
"""The member name in the claim of a model import."""


class NodeCheckpoint(Record, frozen=True, kw_only=True):
    """Models of a node after all `windows` below the offset `covers`.

    `state` is the exact snapshot. `prediction`, `node_state` and `resources` are the values last
    published; `prediction` is None if the record would be too large with it. `retracted_ms` is the
    time of the node's deletion, None while it exists.
    """

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
    retracted_ms: int | None = None


class RoundMarker(Record, frozen=True, kw_only=True):
    """The end of a round of `epoch`: every node's checkpoint covers at least `resume`.

    `nodes` is the number of checkpoints in the round; a reader that finds fewer has lost some.
    `joined` is the highest sample offset that the join has finished, -1 if none: its window is in
    the log, or the sample was refused. `left_out` are nodes whose state is too large for a record,
    or was not readable and has had no window since, with their counters at `resume`: their models
    are lost if the round is restored. `generation` grows when `windows` is truncated. Samples were
    truncated when `windows` ended at `rejoined_from`: sample offsets in windows below it are those
    of lost samples.
    """

    epoch: int
    round: int
    generation: int
    resume: int
    joined: int
    nodes: int
    rejoined_from: int = 0
    left_out: dict[str, Counters] = msgspec.field(default_factory=dict)


class Claim(Record, frozen=True, kw_only=True):
    """The worker process `member` of the consumer group `group` took this partition at
    `claimed_at` (RFC 3339, UTC)."""

    member: str
    claimed_at: str
    group: str = ""
    topic_ids: dict[str, str] = msgspec.field(default_factory=dict)


class SkippedWindow(Record, frozen=True, kw_only=True):
    """Every replay skips the record of `windows` at `offset`, a window of `node`, because it could
    not be applied; `error` is the reason."""

    node: str
    epoch: int
    offset: int
    error: str


class DepartedNode(Record, frozen=True, kw_only=True):
    """The `state` of a departed node, without pods, after its last window, which ended at `end_ms`.
    No worker restores it: recommendations count its models of workloads."""

    node: str
    end_ms: int
    state: bytes


KeyKind = Literal["node", "marker", "claim", "skip", "departed"]

_MARKER = "@marker@"
_CLAIM = "@claim@"
_SKIP = "@skip@"
_DEPARTED = "@departed@"
_EPOCH = "(0|[1-9][0-9]{0,18})"
_NODE_KEY = re.compile(f"([^@]+)@{_EPOCH}", re.DOTALL)
_MARKER_KEY = re.compile(f"{_MARKER}{_EPOCH}")
_SKIP_KEY = re.compile(f"{_SKIP}{_EPOCH}@{_EPOCH}")
_DEPARTED_KEY = re.compile(f"{_DEPARTED}{_EPOCH}@([^@]+)", re.DOTALL)


def node_key(node: str, epoch: int) -> bytes:
    """The record key of a node's checkpoint."""
    return f"{node}@{epoch}".encode()


def marker_key(epoch: int) -> bytes:
    """The record key of a round marker."""
    return f"{_MARKER}{epoch}".encode()


def claim_key(member: str) -> bytes:
    """The record key of a claim."""
    return f"{_CLAIM}{member}".encode()


def skip_key(epoch: int, offset: int) -> bytes:
    """The record key of a skipped window."""
    return f"{_SKIP}{epoch}@{offset}".encode()


def departed_key(node: str, end_ms: int) -> bytes:
    """The record key of a departed node."""
    return f"{_DEPARTED}{end_ms}@{node}".encode()


def parse_key(key: bytes) -> tuple[KeyKind, str, int]:
    """Kind, node, member or offset, and epoch of a checkpoint key: -1 for a claim, the end of the
    last window for a departed node.

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
    if match := _SKIP_KEY.fullmatch(text):
        return "skip", match[2], int(match[1])
    if match := _DEPARTED_KEY.fullmatch(text):
        return "departed", match[2], int(match[1])
    if len(text) > len(_CLAIM) and text.startswith(_CLAIM):
        return "claim", text.removeprefix(_CLAIM), -1
    raise InvalidRecordError(f"checkpoint key {key[:80]!r} is of no kind of record")


def check_payload(key: bytes, node: str, epoch: int, key_node: str, key_epoch: int) -> None:
    """Raise `KeyMismatchError` unless node and epoch of a record equal those of its key."""
    if (node, epoch) != (key_node, key_epoch):
        raise KeyMismatchError(
            f"record of {node!r:.80} and epoch {epoch} has the key {key[:100]!r}"
        )
