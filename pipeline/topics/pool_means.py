"""`springtide.fleet`: the mean usage of each node pool, keyed by `pool/<name>`; compacted.

The planner writes it from the node states of a pool. The join reads it, and writes the means into
the windows of nodes whose thresholds are distances from the mean of their pool. The topic has one
partition, which every worker reads. Readers ignore keys of kinds that they do not know. Another
kind is in `pipeline.topics.pool_outcomes`.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.times import parse_time
from pipeline.topics.codec import Record
from pipeline.topics.hot_node_policy import DEFAULT_POOL, Percent, SpanSeconds, UsageKind

MEANS: Final = b"pool/"
"""How keys of the means of a pool begin."""

Nodes = Annotated[int, Meta(ge=0)]


class RuleMean(msgspec.Struct, frozen=True, kw_only=True):
    """The mean over the nodes of a pool of the usage that one rule compares.

    percent: Mean in percent of allocatable, every node with the same weight; null if the usage of
      fewer than half of the pool's nodes is known.
    known_nodes: Nodes whose usage is known.
    """

    percent: Percent | None = None
    known_nodes: Nodes = 0


class PoolMeansRecord(Record, frozen=True, kw_only=True):
    """The means of a node pool.

    pool: The node pool.
    at: End of the newest window of its nodes, RFC 3339, UTC. Readers order records by it.
    nodes: All nodes of the pool.
    usage: The usage that the pool compares: average, p50, p90, p95, p99 or peak.
    span_seconds: Span of the average or percentile.
    means: By rule: node_cpu, node_memory, prod_cpu, prod_memory. Rules without a threshold are
      missing.
    """

    pool: str = DEFAULT_POOL
    at: str
    nodes: Nodes
    usage: UsageKind = "average"
    span_seconds: SpanSeconds = 300
    means: dict[str, RuleMean] = msgspec.field(default_factory=dict)

    @property
    def at_ms(self) -> int:
        """`at` in milliseconds since 1970. Raises ValueError if it is no time."""
        return round(1000 * parse_time(self.at))


def pool_key(pool: str, kind: bytes = MEANS) -> bytes:
    """The key of the record of a pool; keys of a `kind` begin with it."""
    return kind + pool.encode()


def pool_of_key(key: bytes | None, kind: bytes = MEANS) -> str | None:
    """The pool whose record has this key; None if the key is not of this `kind`. Raises
    `KeyMismatchError` if the name is not UTF-8."""
    if key is None or not key.startswith(kind):
        return None
    try:
        return key.removeprefix(kind).decode()
    except UnicodeDecodeError as error:
        raise KeyMismatchError("name of a pool is not UTF-8") from error


def check_pool_means(record: PoolMeansRecord, appended_ms: int, ahead_seconds: float) -> None:
    """Raise `InvalidRecordError` if the record contradicts itself, or as `check_date`."""
    check_date(record.pool, record.at, appended_ms, ahead_seconds)
    for rule, mean in record.means.items():
        known = mean.known_nodes
        if known > record.nodes or (mean.percent is not None and 2 * known < record.nodes):
            raise InvalidRecordError(
                f"pool {record.pool!r:.80} has a mean of {rule!r:.40} of {known} of "
                f"{record.nodes} nodes"
            )


def check_date(pool: str, at: str, appended_ms: int, ahead_seconds: float) -> None:
    """Raise `InvalidRecordError` if a record of a pool is dated more than `ahead_seconds` after the
    broker received it: no later record could replace it."""
    try:
        ahead = parse_time(at) - appended_ms / 1000
    except (ValueError, OverflowError) as error:
        raise InvalidRecordError(f"pool {pool!r:.80}: {error}") from error
    if ahead > ahead_seconds:
        raise InvalidRecordError(
            f"pool {pool!r:.80} is dated {ahead:.3f} s after the broker received the "
            f"record, more than the {ahead_seconds:g} s allowed"
        )
