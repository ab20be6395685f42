"""Nodes that nobody names and that send nothing any more: they depart as deleted ones do.

Owes the rest: a departure in the log for each, so that models and whoever reads the results learn
of it in the same way. A node that a record of `springtide.nodes` names stays as long as that does.
"""

from collections.abc import Collection, Iterator
from typing import Final

from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS: Final = 3600.0


async def depart_silent(shards: Collection[Shard], silence_seconds: float, clock: Clock) -> None:
    """Have nodes depart whose last window ended so long before the newest of any node, and did so
    an hour ago, too: after an outage not all begin to send in the same moment. Until cancelled."""
    suspects: set[str] = set()
    while True:
        await clock.sleep(LOOK_SECONDS)
        found = dict(_silent(shards, silence_seconds))
        for node in sorted(found.keys() & suspects):
            log.warning("a node that no record names sends nothing any more: it departs", node=node,
                        silence_seconds=silence_seconds)  # fmt: skip
            await found[node].join.depart(node, round(clock.now() * 1000))
        suspects = found.keys() - suspects


def _silent(shards: Collection[Shard], silence_seconds: float) -> Iterator[tuple[str, Shard]]:
    ends = [
        (shard.model.bank.end_ms(node) or 0, node, shard)
        for shard in shards
        for node in shard.model.bank.nodes
    ]
    newest = max((end_ms for end_ms, _, _ in ends), default=0)
    for end_ms, node, shard in ends:
        if newest - end_ms > 1000 * silence_seconds and node not in shard.join.inventory.nodes:
            yield node, shard
