"""Keep the models of workloads of nodes that departed.

Where an autoscaler removes nodes, the pods of a workload leave with them, and the workload may be
at zero replicas for days. The models of a departed node are written once, before the next round
marker, and stay in `checkpoints` for eight half-lives. They are a function of the log: a replay
that meets the departure again finds the record, or writes the same one.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from pipeline.kafka.producer import Keyed
from pipeline.metrics import counter
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.workload_models import RETAINED_MS
from pipeline.topics.checkpoints import DepartedNode, departed_key
from pipeline.topics.codec import encode_pack

DROPPED = counter(
    "worker_dropped_departed_nodes",
    "Departed nodes whose models of workloads were dropped, because a partition had too many.",
)

MAX_DEPARTED: Final = 1000
"""Departed nodes of a partition whose models stay: autoscalers create new names for ever."""


class DepartedNodes:
    """The departed nodes of a partition, `known` by name and end of the last window."""

    def __init__(self, known: Iterable[tuple[str, int]] = ()) -> None:
        self.known = set(known)
        self._pending: dict[tuple[str, int], bytes] = {}

    def add(self, node: str, bank: Bank) -> None:
        """Keep the workloads of a node that departs; `bank` still has its models."""
        end_ms, state = bank.end_ms(node), bank.encode_workloads(node)
        # What is known is complete; a replay may have met only the last windows of the node.
        if end_ms is not None and state is not None and (node, end_ms) not in self.known:
            self.known.add((node, end_ms))
            self._pending[node, end_ms] = state

    async def write(self, now_ms: int, send: Callable[[Sequence[Keyed]], Awaitable[None]]) -> None:
        """Send what is to be written before a marker: new records, and tombstones of outdated ones
        and of the oldest beyond `MAX_DEPARTED`. `now_ms` is the end of the newest window.

        If `send` fails or is cancelled, the next round writes all of them again.
        """
        newest = sorted(self.known, key=lambda place: (-place[1], place[0]))
        kept = [place for place in newest if place[1] >= now_ms - RETAINED_MS]
        removed = self.known.difference(kept[:MAX_DEPARTED])
        # Nodes may depart during the delivery: they are pending until the next round.
        pending = self._pending.copy()
        records = [Keyed(departed_key(*place), None) for place in sorted(removed)]
        for (node, end_ms), state in pending.items():
            if (node, end_ms) not in removed:
                record = DepartedNode(node=node, end_ms=end_ms, state=state)
                records.append(Keyed(departed_key(node, end_ms), encode_pack(record)))
        await send(records)
        DROPPED.inc(len(kept[MAX_DEPARTED:]))
        self.known -= removed
        for place in pending:
            self._pending.pop(place, None)
