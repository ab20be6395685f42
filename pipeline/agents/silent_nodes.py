"""Expire the models of deleted nodes, and of nodes without a record that stopped sending samples.

A deleted node may return within minutes: the API server lied, or an autoscaler uses the name again.
Its results are withdrawn at once, its models stay for an hour.

Nothing announces that a node without a record has gone, and its models would stay for ever. Each
expired node gets a departure in the log. A node with a record in `nodes` never expires: its record
will be deleted with it.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.logs import get_logger

log = get_logger(__name__)

CHECK_SECONDS: Final = 3600.0
"""Time between two checks."""

RETAINED_SECONDS: Final = 3600.0
"""How long the models of a deleted node stay."""
MAX_RETAINED: Final = 2000
"""Deleted nodes of a partition whose models stay: autoscalers create new names for ever."""
_EXPIRY_SECONDS: Final = 60.0

ReadEnds = Callable[[], Awaitable[Mapping[int, int]]]
"""Returns the end offset of `samples` by partition."""


class SilentNode(NamedTuple):
    """A node without new samples; `appended_ms` is when its last sample was appended."""

    node: str
    shard: Shard
    appended_ms: int

    def is_silent(self) -> bool:
        """Return whether the node still has no record and no newer window."""
        has_record = self.node in self.shard.join.cluster_state.nodes
        newest = self.shard.model.bank.appended_ms(self.node)
        return not has_record and newest == self.appended_ms


async def expire_silent_nodes(
    shards: Collection[Shard], silence_seconds: float, read_ends: ReadEnds, clock: Clock
) -> None:
    """Write departures of silent nodes, until cancelled.

    A node is silent if its last sample was appended more than `silence_seconds` before the newest
    sample of any node. It departs after two consecutive silent checks, because after an outage
    nodes do not resume at the same moment. A partition is skipped while its join has not passed the
    end of `samples` at the previous check: the missing samples may wait there.
    """
    suspects: set[tuple[str, int]] = set()
    previous_ends: Mapping[int, int] = {}
    while True:
        await clock.sleep(CHECK_SECONDS)
        current = [
            shard
            for shard in shards
            if shard.join.next_offset >= previous_ends.get(shard.ownership.partition, 0)
        ]
        silent_nodes = list(_silent(current, silence_seconds)) if previous_ends else []
        for silent in silent_nodes:
            if (silent.node, silent.appended_ms) in suspects and silent.is_silent():
                log.warning("node without a record stopped sending samples, expiring it",
                            node=silent.node, silence_seconds=silence_seconds)  # fmt: skip
                await silent.shard.join.depart(silent.node, silent.appended_ms)
        suspects = {(silent.node, silent.appended_ms) for silent in silent_nodes}
        try:
            previous_ends = await read_ends()
        except KafkaError as error:
            log.debug("cannot read the end of the samples", error=repr(error))
            previous_ends = {}


async def expire_deleted_nodes(shards: Collection[Shard], clock: Clock) -> None:
    """Write departures of nodes that were deleted an hour ago and did not return, until cancelled.

    Beyond `MAX_RETAINED` nodes of a partition, the first deleted depart earlier.
    """
    while True:
        await clock.sleep(_EXPIRY_SECONDS)
        now_ms = round(clock.now() * 1000)
        for shard in shards:
            nodes = sorted(shard.model.retracted.items(), key=lambda node: node[1])
            surplus = len(nodes) - MAX_RETAINED
            for number, (node, deleted_ms) in enumerate(nodes):
                is_old = now_ms - deleted_ms >= 1000 * RETAINED_SECONDS
                is_deleted = node not in shard.join.cluster_state.nodes
                if is_deleted and node in shard.model.retracted and (is_old or number < surplus):
                    await shard.join.depart(node, deleted_ms)


def _silent(shards: Iterable[Shard], silence_seconds: float) -> Iterator[SilentNode]:
    nodes = [
        SilentNode(node, shard, shard.model.bank.appended_ms(node) or 0)
        for shard in shards
        for node in shard.model.bank.nodes
    ]
    newest = max((node.appended_ms for node in nodes), default=0)
    for node in nodes:
        if newest - node.appended_ms > 1000 * silence_seconds and node.is_silent():
            yield node
