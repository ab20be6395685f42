"""Nodes that nobody names and that send nothing any more: they depart as deleted ones do.

Owes the rest: a departure in the log for each, so that models and whoever reads the results learn
of it in the same way. A node that a record of `springtide.nodes` names stays as long as that does.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS: Final = 3600.0

Ends = Callable[[], Awaitable[Mapping[int, int]]]
"""The end of `samples` by partition."""


class Silent(NamedTuple):
    """A node that sends nothing: where its models are, and the end of its last window."""

    node: str
    shard: Shard
    end_ms: int

    def is_still(self) -> bool:
        """Whether nothing was heard of it since."""
        named = self.node in self.shard.join.inventory.nodes
        return not named and self.shard.model.bank.end_ms(self.node) == self.end_ms


async def depart_silent(
    shards: Collection[Shard], silence_seconds: float, ends: Ends, clock: Clock
) -> None:
    """Have nodes depart whose last window ended so long before the newest of any node. Until
    cancelled.

    They must be silent at two looks, an hour apart, with no window in between: after an outage not
    all begin to send in the same moment. A partition whose join is not past what lay in `samples`
    an hour ago is left alone: what is missing of its nodes may wait there.
    """
    suspects: set[tuple[str, int]] = set()
    lay: Mapping[int, int] = {}
    while True:
        await clock.sleep(LOOK_SECONDS)
        current = [s for s in shards if s.join.next_offset >= lay.get(s.ownership.partition, 0)]
        found = list(_silent(current, silence_seconds)) if lay else []
        for silent in found:
            if (silent.node, silent.end_ms) in suspects and silent.is_still():
                log.warning("a node that no record names sends nothing any more: it departs",
                            node=silent.node, silence_seconds=silence_seconds)  # fmt: skip
                await silent.shard.join.depart(silent.node, round(clock.now() * 1000))
        suspects = {(silent.node, silent.end_ms) for silent in found}
        try:
            lay = await ends()
        except KafkaError as error:
            log.debug("the end of the samples is not known", error=repr(error))
            lay = {}


def _silent(shards: Iterable[Shard], silence_seconds: float) -> Iterator[Silent]:
    known = [
        Silent(node, shard, shard.model.bank.end_ms(node) or 0)
        for shard in shards
        for node in shard.model.bank.nodes
    ]
    newest = max((silent.end_ms for silent in known), default=0)
    for silent in known:
        if newest - silent.end_ms > 1000 * silence_seconds and silent.is_still():
            yield silent
