"""Interfaces between the stream library that hosts the consumer group (Faust) and the agents.

A host runs the consumer group and calls a `GroupMember`. The member sees the group as a
`ConsumerGroup`, and the records of `samples` as a `RecordSource`. So tests drive a member without
Faust, and another library would be one module.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from pipeline.kafka.partition_log import LogRecord


class Delivery(Protocol):
    """A record that the host delivered."""

    @property
    def record(self) -> LogRecord: ...

    def acknowledge(self) -> None:
        """Allow the host to commit this record."""


class RecordSource(Protocol):
    """Records of all assigned partitions."""

    async def take(self, limit: int) -> Sequence[Delivery]:
        """Wait for the next records, up to `limit`. An empty result is the end."""


class ConsumerGroup(Protocol):
    """The consumer group, seen from its member."""

    @property
    def generation(self) -> int:
        """The generation of the newest assignment."""

    def crash(self, error: BaseException) -> None:
        """Stop the worker because of `error`."""


class GroupMember(Protocol):
    """A worker in the group. An exception from any method stops the worker."""

    async def assigned(self, partitions: AbstractSet[int]) -> None:
        """Take over `partitions`. Records are delivered after this has returned."""

    def positions(self) -> Mapping[int, int]:
        """The offset of the next record to be delivered, by loaded partition."""

    async def revoked(self) -> None:
        """Release all partitions. The rebalance waits for this."""

    async def shut_down(self) -> None:
        """Finish the batches in progress and release all resources."""

    async def consume(self, source: RecordSource) -> None:
        """Process the records of `source` until its end."""
