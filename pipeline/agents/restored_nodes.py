"""Restore the models of a partition's nodes from their checkpoints, before windows are replayed."""

import asyncio
from typing import Final, NamedTuple

from pipeline.agents.checkpoint_selection import PartitionCheckpoints, replay_start, restore
from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.model.bank import Bank
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.node_state import Counters

log = get_logger(__name__)

REBUILT = counter(
    "worker_rebuilt_models", "Nodes rebuilt from the log because their checkpoint was unusable."
)
UNREADABLE = counter(
    "worker_unreadable_checkpoints",
    "Nodes that started empty because their checkpoint is not readable or not there any more.",
)

SLICE: Final = 50
"""Nodes restored or reported before other tasks run: up to 0.2 s at 100 pods per node."""


class RestoredNodes(NamedTuple):
    """The nodes of a partition, by what their checkpoints allow.

    The models of `restored` nodes continue from these checkpoints. `changed` nodes have models of
    another layout: their counters at the checkpoint. The checkpoints of `damaged` nodes cannot be
    used: their counters at the checkpoint, and how many windows are lost if the replay starts where
    the round says. These are windows of the node if the counters are valid, else an estimate: the
    offsets of its partition that the checkpoint covered and the log still has. `missing` is the
    number of checkpoints that the round marker counted and that are not there any more.
    """

    restored: dict[str, NodeCheckpoint]
    changed: dict[str, Counters]
    damaged: dict[str, tuple[Counters, int]]
    missing: int = 0

    def rebuilt(self) -> dict[str, Counters]:
        """Return the nodes that a replay of the whole log rebuilds, with their former counters.

        Only a changed layout causes such a replay. To replay days for one damaged node would stop
        all others.
        """
        damaged = {node: before for node, (before, _) in self.damaged.items()}
        return self.changed | damaged if self.changed else {}

    def empty_counters(self) -> dict[str, Counters]:
        """Return the counters of nodes whose models start empty and stay incomplete."""
        damaged = {} if self.changed else self.damaged
        return {node: Counters(lost=lost) for node, (_, lost) in damaged.items()}


async def restore_nodes(
    bank: Bank, checkpoints: PartitionCheckpoints, first: int, end: int
) -> RestoredNodes:
    """Restore each node from its best usable checkpoint; the log has offsets `first` to `end`."""
    nodes = RestoredNodes({}, {}, {}, checkpoints.missing)
    if nodes.missing:
        UNREADABLE.inc(nodes.missing)
        log.error("checkpoints are missing, marking the nodes that start empty",
                  missing=nodes.missing)  # fmt: skip
    for number, (node, usable) in enumerate(checkpoints.usable().items()):
        if number % SLICE == 0:
            await asyncio.sleep(0)
        # The end of the log was read after the checkpoints: they cover more only if the log was
        # truncated. Then models with windows that the log lost are better than none.
        covered = [checkpoint for checkpoint in usable if checkpoint.covers <= end] or usable
        try:
            if checkpoint := restore(bank, node, covered):
                nodes.restored[node] = checkpoint
        except CheckpointLayoutError as error:
            nodes.changed[node] = covered[0].counters
            REBUILT.inc()
            log.warning("model layout changed, rebuilding the models from the whole log",
                        node=node, error=error.message)  # fmt: skip
        except CheckpointError as error:
            nodes.damaged[node] = covered[0].counters, max(covered[0].covers - first, 1)
            REBUILT.inc()
            log.error("checkpoint is damaged, replaying the node's windows into empty models",
                      node=node, error=error.message)  # fmt: skip
    for node in sorted(checkpoints.reset_nodes()):
        nodes.damaged[node] = Counters(), max(replay_start(checkpoints.marker(), first) - first, 1)
        UNREADABLE.inc()
        log.error("checkpoint is not readable, replaying the node's windows into empty models; the "
                  "record stays", node=node)  # fmt: skip
    marker = checkpoints.marker()
    for node, before in (marker.left_out if marker else {}).items():
        if not any(node in by_node for by_node in nodes[:3]):
            nodes.damaged[node] = before, before.applied + before.lost
            log.error("round has no checkpoint of the node, replaying its windows into empty "
                      "models", node=node)  # fmt: skip
    return nodes
