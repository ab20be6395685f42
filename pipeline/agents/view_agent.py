"""The view agent: publish strategy, resources and pods of each node as one document.

A view is written within a second of a change, and only if its content differs. Generations only
increase, so that readers can drop a view that a paused worker writes later. The agent reads the
state of join and model and has none of its own: a worker that takes over the partition writes all
views again, with higher generations.
"""

import hashlib
from collections.abc import Collection
from typing import Final

from pipeline.agents.shard import Shard
from pipeline.agents.window_spans import headers_by_key
from pipeline.clock import Clock
from pipeline.errors import RecordError
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.join.view_documents import (
    generation_of,
    node_view,
    shortened,
    with_generation,
)
from pipeline.processors.overcommit.status_patch import needs_view
from pipeline.tasks import run_all
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import MAX_RECORD_BYTES, PODS

log = get_logger(__name__)

VIEWS = counter(
    "worker_node_views",
    "Node views by outcome: view (written), cut (written without parts of the largest pods), "
    "tombstone, oversized or unreadable (not written).",
    ["what"],
)

# Changes come in groups, for instance a pod and the pod that replaces it.
_GATHER_SECONDS: Final = 0.4
# Small, so that a partition that was just loaded writes its first views soon.
_BATCH_NODES: Final = 50
_REWRITE_SECONDS: Final = 600.0
# For the generation, the key and the record's headers.
_RESERVED_BYTES: Final = 16_384


class NodeViews:
    """The views of one shard's nodes. `touched` are the nodes whose view may have changed."""

    def __init__(self, shard: Shard, output: Producer, topic: str, clock: Clock) -> None:
        self._shard = shard
        self._output = output
        self._topic = topic
        self._clock = clock
        self._number = 0
        self._written: dict[str, bytes] = {}
        self._rewritten_at = clock.monotonic()
        self._resources: dict[str, NodeResourcesRecord | None] = {}
        # The touched nodes whose view may change by their newest window.
        self._of_windows: set[str] = set()
        cluster_state = shard.join.cluster_state
        self.touched: dict[str, None] = dict.fromkeys(
            [*cluster_state.node_records, *cluster_state.deleted_nodes]
        )

    def touch(self, topic: str, key: bytes | None) -> None:
        """Mark the node of a record of `nodes` or `pods` as changed."""
        text = (key or b"").decode(errors="replace")
        node = text.rpartition("/")[0] if topic.endswith(f".{PODS.name}") else text
        if node:
            self.touched[node] = None

    def rewrite_when_due(self) -> None:
        """Mark all views as changed every ten minutes.

        A previous owner may have overwritten some with writes that were in flight.
        """
        now = self._clock.monotonic()
        if now - self._rewritten_at >= _REWRITE_SECONDS:
            self._rewritten_at = now
            self.touched |= dict.fromkeys(self._written)
            self._written.clear()

    async def write(self) -> None:
        """Write the views of up to 50 touched nodes."""
        for name in self._shard.model.take_published():
            if self._update_resources(name):
                self.touched[name] = None
                self._of_windows.add(name)
        names = list(self.touched)[:_BATCH_NODES]
        records: list[Keyed] = []
        traced = headers_by_key(self._shard.model.traces, self._of_windows.intersection(names))
        self._of_windows.difference_update(names)
        for name in names:
            del self.touched[name]
            records += self._record(name)
        if records and self._shard.ownership.owned:
            partition = self._shard.ownership.partition
            await self._output.append(self._topic, partition, records, traced)

    def _update_resources(self, name: str) -> bool:
        """Take the newest resources of a node; return whether its view has to change."""
        report = self._shard.model.reports.get(name)
        data = report.resources if report is not None else None
        resources = None if data is None else decode_json(NodeResourcesRecord, data)
        if not needs_view(self._resources.get(name), resources):
            return False
        self._resources[name] = resources
        return True

    def _record(self, name: str) -> list[Keyed]:
        """Return the record to write for a node; none if its view is unchanged."""
        cluster_state = self._shard.join.cluster_state
        encoded = cluster_state.node_records.get(name)
        if encoded is None:
            self._resources.pop(name, None)
            if self._written.pop(name, None) is None and name not in cluster_state.deleted_nodes:
                return []
            VIEWS.labels("tombstone").inc()
            return [Keyed(name.encode(), None)]
        if name not in self._resources:
            self._update_resources(name)
        try:
            record = decode_json(NodeRecord, encoded)
        except RecordError as error:
            # The join needs less of the record and could decode it.
            VIEWS.labels("unreadable").inc()
            log.warning("node record is invalid, keeping the last view", per="view",
                        node=name, error=error)  # fmt: skip
            return []
        view, excess = self._view(record)
        digest = hashlib.blake2b(view, digest_size=16).digest()
        if self._written.get(name) == digest:
            return []
        self._written[name] = digest
        if len(view) > MAX_RECORD_BYTES - _RESERVED_BYTES:
            VIEWS.labels("oversized").inc()
            log.error("view exceeds the record limit, not writing it", node=name, bytes=len(view))
            return []
        if excess > 0:
            VIEWS.labels("cut").inc()
            log.warning(
                "view exceeds the record limit, leaving out labels, annotations and containers of "
                "the largest pods",
                node=name,
                excess_bytes=excess,
            )
        self._number += 1
        generation = generation_of(self._shard.ownership.epoch, self._number)
        VIEWS.labels("view").inc()
        return [Keyed(name.encode(), with_generation(view, generation))]

    def _view(self, record: NodeRecord) -> tuple[bytes, int]:
        """Return the view of a node, and by how many bytes the uncut view exceeds the limit."""
        pods = self._shard.join.cluster_state.pods.get(record.node, {})
        listed = [view for uid in sorted(pods) if (view := pods[uid].view)]
        resources = self._resources.get(record.node)
        view = node_view(record, listed, resources)
        excess = len(view) - (MAX_RECORD_BYTES - _RESERVED_BYTES)
        if excess > 0:
            view = node_view(record, shortened(listed, excess), resources)
        return view, excess


async def write_views(views: Collection[NodeViews], clock: Clock) -> None:
    """Write changed views of all partitions until cancelled, together: they share requests."""
    while True:
        await run_all(own.write() for own in views)
        for own in views:
            own.rewrite_when_due()
        await clock.sleep(0.0 if any(own.touched for own in views) else _GATHER_SECONDS)
