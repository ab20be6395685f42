"""Logs of nodes with a policy of hot nodes, for tests of the alerts that the model agent writes."""

from typing import Any

import msgspec

from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.windows import departure, encode_window, retraction
from tests.agents.fakes import MemoryBroker
from tests.processors.hot_nodes.node_windows import hot_window

POLICY = HotNodePolicy(high_percent={"cpu": 70.0}, span_seconds=30, open_windows=3, close_windows=2)
LATER_MS = 1_700_001_000_000
WAVE = (71.0,) * 3 + (90.0,) * 3 + (75.0,) * 2 + (10.0,) * 2
"""Usage in percent with every transition: opened, escalated, eased, closed."""


class HotLog:
    """Appends windows of nodes to partition 0 of `windows`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._ends: dict[str, int] = {}
        self.samples = 0

    def window(self, node: str, cpu: float, *, again: bool = False, **fields: Any) -> int:
        """Append the next window of a node, or its last one `again`."""
        end = self._ends[node] = self._ends.get(node, 0) + (not again)
        fields = {"policy": POLICY} | fields
        window = hot_window(end, cpu, node=node, **fields)
        window = msgspec.structs.replace(window, sample_offset=self.samples)
        self.samples += 1
        self._broker.put("t.samples", 0, node.encode(), b"a sample")
        return self._broker.put("t.windows", 0, node.encode(), encode_window(window))

    def waves(self, count: int, *nodes: str) -> None:
        for cpu in WAVE * count:
            for node in nodes:
                self.window(node, cpu)

    def retract(self, node: str) -> None:
        self._broker.put("t.windows", 0, node.encode(), encode_window(retraction(node, LATER_MS)))

    def depart(self, node: str) -> None:
        self._broker.put("t.windows", 0, node.encode(), encode_window(departure(node, LATER_MS)))


def hot_log(count: int, *nodes: str) -> tuple[MemoryBroker, HotLog]:
    """A broker with `count` waves of usage of each node."""
    broker = MemoryBroker()
    log = HotLog(broker)
    log.waves(count, *nodes)
    return broker, log


def published_alerts(broker: MemoryBroker) -> list[AlertRecord]:
    """All records of the topic of alerts, repeats included; the epoch of the writer is 0."""
    records = []
    for record in broker.records("t.alerts"):
        alert = decode_json(AlertRecord, record.value or b"")
        assert record.key == alert.node.encode()
        records.append(msgspec.structs.replace(alert, epoch=0))
    return records


def without_repeats(records: list[AlertRecord]) -> dict[str, list[AlertRecord]]:
    """The records of each node in order of the log, as readers have them."""
    nodes: dict[str, dict[tuple[str, int, int], AlertRecord]] = {}
    for record in records:
        known = nodes.setdefault(record.node, {})
        repeat = known.setdefault((record.id, *record.position), record)
        assert repeat == record
    return {
        node: sorted(known.values(), key=lambda record: (record.position, record.rule))
        for node, known in nodes.items()
    }
