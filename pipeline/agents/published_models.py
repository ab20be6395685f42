"""Publish the results of a partition: the newest of each node, and every event.

Predictions, resources and node states are tables, so of several windows only the newest results of
a node are written. Alerts and judged peaks are logs. Nothing is written after the partition was
revoked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.agents import node_events
from pipeline.agents.node_events import NodeEvent
from pipeline.agents.partition_models import NodeReport, PartitionModels
from pipeline.agents.window_spans import headers_by_key, record_published
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Headers, HeadersByKey, Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.topics.registry import NODE_STATE, PREDICTIONS, RESOURCES, Topic
from pipeline.topics.result_header import position_headers

log = get_logger(__name__)

OVERSIZED = counter(
    "worker_oversized_results", "Results larger than the record limit, not published.", ["topic"]
)

NamedReport = tuple[str, NodeReport | None]
"""A node and the report to publish; None if the node was deleted."""


@dataclass(eq=False)
class PublishedModels(PartitionModels):
    """The models of a partition whose results are published. `next_offset` is that of the next
    window: no result is of a later one."""

    next_offset: int
    output: Producer
    # Whether the last published resources of a node exist; missing if unknown.
    _has_resources: dict[str, bool] = field(default_factory=dict, init=False)
    _published: set[str] = field(default_factory=set, init=False)

    async def publish(self, reports: Iterable[NamedReport]) -> None:
        """Publish reports, and tombstones for deleted nodes, and wait for their delivery.

        A tombstone states in a header up to which offset it withdraws results. Results above the
        record limit are counted and dropped: they would stop this worker, and each that takes the
        partition over.
        """
        reports = list(reports)
        withdrawn = position_headers((self.generation, self.next_offset - 1))
        traced = headers_by_key(self.traces, (node for node, newest in reports if newest))
        for topic, records in self._records(reports):
            fitting = [record for record in records if _fits(topic.name, record)]
            for headers in (traced, withdrawn):
                is_end = headers is withdrawn
                written = [record for record in fitting if (record.value is None) == is_end]
                if written and self.owned:
                    await self._append(topic, written, headers)
        self._published.update(node for node, _ in reports)
        for node, newest in reports:
            if newest is None:
                self._withdrew(node)
                continue
            newest.pack()
            if traced and self.owned:
                record_published(self.traces, node, prediction=newest.prediction is not None)

    def _records(self, reports: Sequence[NamedReport]) -> list[tuple[Topic, list[Keyed]]]:
        """The records of these reports by topic, in the order in which they are written."""
        predictions, states, resources = [], [], []
        for node, newest in reports:
            key, prediction = node.encode(), newest.prediction if newest else None
            if newest is None or prediction is not None:
                predictions.append(Keyed(key, prediction))
            states.append(Keyed(key, newest.node_state if newest else None))
            offer = newest.resources if newest else None
            if offer is not None or self._has_resources.get(node, True):
                resources.append(Keyed(key, offer))
            self._has_resources[node] = offer is not None
        return [(PREDICTIONS, predictions), (RESOURCES, resources), (NODE_STATE, states)]

    def _withdrew(self, node: str) -> None:
        self._has_resources.pop(node, None)
        # The node may have a new report: it returned while the tombstones were written.
        if node in self.reports and self.reports[node] is None:
            del self.reports[node]

    async def publish_events(self) -> None:
        """Publish events, in order for each node and topic, and wait for their delivery.

        Those that are not delivered stay in `events`, which keeps checkpoints back.
        """
        events = [(node, event) for node, own in self.events.items() for event in own]
        for topic, batch in node_events.batches(events):
            if not self.owned:
                return
            traced = headers_by_key(self.traces, self._nodes_of_newest(batch))
            await self._append(topic, node_events.encode(batch), traced)
            for node, event in batch:
                node_events.count(event)
                self.events[node] = tuple(e for e in self.events[node] if e is not event)
                if not self.events[node]:
                    del self.events[node]

    def _nodes_of_newest(self, events: Sequence[tuple[str, NodeEvent]]) -> set[str]:
        """The nodes of which all these events are about their newest applied window."""
        if not self.traces:
            return set()
        newest = {node: traced.offset for node, traced in self.traces.items()}
        nodes = {node for node, _ in events}
        return nodes - {node for node, event in events if event.offset != newest.get(node)}

    async def _append(
        self, topic: Topic, records: Sequence[Keyed], headers: Headers | HeadersByKey
    ) -> None:
        name = topic.full_name(self.rules.prefix)
        await self.output.append(name, self.ownership.partition, records, headers)

    def take_published(self) -> set[str]:
        """Return and reset the nodes whose results were published since the last call."""
        taken, self._published = self._published, set()
        return taken


def _fits(topic: str, record: Keyed) -> bool:
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.labels(topic).inc()
    log.error("result exceeds the record limit, not publishing it", topic=topic,
              key=record.key.decode(), bytes=size)  # fmt: skip
    return False
