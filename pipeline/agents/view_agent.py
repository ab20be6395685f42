"""The view agent: what is known of a node put into one document, as soon as it changes.

Owes the rest: a view follows within a second from what it is made of; what says nothing new is not
written; generations only grow. It reads what join and model of the partition hold: nothing of it is
state, and whoever takes the partition over writes all views anew, above all generations before.
"""

import hashlib
from typing import Final

from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.errors import RecordError
from pipeline.kafka.producer import Keyed, Output
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.join.view_documents import (
    generation_of,
    must_tell,
    node_view,
    shortened,
    with_generation,
)
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import MAX_RECORD_BYTES, PODS

log = get_logger(__name__)

VIEWS = counter(
    "worker_node_views",
    "Views of nodes that were written, those of them that lack parts of their largest pods (cut), "
    "taken back (tombstone), or could not be made.",
    ["what"],
)

# Changes come in groups: of a pod that is bound, and of the one in whose place it comes.
_GATHER_SECONDS: Final = 0.2
# So few at a time that a partition which was just taken over writes its first ones soon.
_AT_ONCE: Final = 50
_ANEW_SECONDS: Final = 600.0
# The generation and what a record has beside its value.
_SPARE_BYTES: Final = 16_384


class Views:
    """The views of one shard's nodes; `touched` are nodes whose view may say something else."""

    def __init__(self, shard: Shard, output: Output, topic: str, clock: Clock) -> None:
        self._shard = shard
        self._output = output
        self._topic = topic
        self._clock = clock
        self._number = 0
        self._written: dict[str, bytes] = {}
        self._anew_at = clock.monotonic()
        self._resources: dict[str, NodeResourcesRecord | None] = {}
        inventory = shard.join.inventory
        self.touched: dict[str, None] = dict.fromkeys([*inventory.written, *inventory.departed])

    def touch(self, topic: str, key: bytes | None) -> None:
        """A record of nodes or pods was taken over: the view of its node may say something else."""
        text = (key or b"").decode(errors="replace")
        node = text.rpartition("/")[0] if topic.endswith(f".{PODS.name}") else text
        if node:
            self.touched[node] = None

    async def run(self) -> None:
        """Write what changes, until not owned."""
        while self._shard.ownership.owned:
            await self.write()
            self._write_anew()
            await self._clock.sleep(0.0 if self.touched else _GATHER_SECONDS)

    def _write_anew(self) -> None:
        """From time to time all of them: of what another writer had under way when it lost the
        partition nobody would know."""
        now = self._clock.monotonic()
        if now - self._anew_at >= _ANEW_SECONDS:
            self._anew_at = now
            self.touched |= dict.fromkeys(self._written)
            self._written.clear()

    async def write(self) -> None:
        """Write the views of some of the nodes that were touched."""
        for name in self._shard.model.take_reported():
            if self._tell_resources(name):
                self.touched[name] = None
        names = list(self.touched)[:_AT_ONCE]
        records: list[Keyed] = []
        for name in names:
            del self.touched[name]
            records += self._entry(name)
        if records and self._shard.ownership.owned:
            partition = self._shard.ownership.partition
            await self._output.append(self._topic, partition, records)

    def _tell_resources(self, name: str) -> bool:
        """Whether what a node has differs from what its view says."""
        report = self._shard.model.reports.get(name)
        data = report.resources if report is not None else None
        found = None if data is None else decode_json(NodeResourcesRecord, data)
        if not must_tell(self._resources.get(name), found):
            return False
        self._resources[name] = found
        return True

    def _entry(self, name: str) -> list[Keyed]:
        """What is to be written of a node, if anything."""
        inventory = self._shard.join.inventory
        written = inventory.written.get(name)
        if written is None:
            self._resources.pop(name, None)
            if self._written.pop(name, None) is None and name not in inventory.departed:
                return []
            VIEWS.labels("tombstone").inc()
            return [Keyed(name.encode(), None)]
        if name not in self._resources:
            self._tell_resources(name)
        try:
            record = decode_json(NodeRecord, written)
        except RecordError as error:
            # What a join needs of it could be read: the last view stays.
            VIEWS.labels("unreadable").inc()
            log.warning("no view of a node whose record breaks its schema", node=name, why=error)
            return []
        view, too_much = self._view(record)
        digest = hashlib.blake2b(view, digest_size=16).digest()
        if self._written.get(name) == digest:
            return []
        self._written[name] = digest
        if len(view) > MAX_RECORD_BYTES - _SPARE_BYTES:
            VIEWS.labels("oversized").inc()
            log.error("view is larger than a record may be", node=name, bytes=len(view))
            return []
        if too_much > 0:
            VIEWS.labels("cut").inc()
            log.warning(
                "view would be larger than a record may be: of the largest pods it lacks labels, "
                "annotations and containers",
                node=name,
                bytes_too_many=too_much,
            )
        self._number += 1
        generation = generation_of(self._shard.ownership.epoch, self._number)
        VIEWS.labels("view").inc()
        return [Keyed(name.encode(), with_generation(view, generation))]

    def _view(self, record: NodeRecord) -> tuple[bytes, int]:
        """The view of a node, and by how many bytes it was too large before pods were cut."""
        pods = self._shard.join.inventory.pods.get(record.node, {})
        listed = [of for uid in sorted(pods) if (of := pods[uid].view)]
        resources = self._resources.get(record.node)
        view = node_view(record, listed, resources)
        too_much = len(view) - (MAX_RECORD_BYTES - _SPARE_BYTES)
        if too_much > 0:
            view = node_view(record, shortened(listed, too_much), resources)
        return view, too_much
