"""The nodes and pods of a benchmark are known to the workers that it measures."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import fleet, ingest, inventory
from pipeline.agents.cluster_state import ClusterState
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.join.sample_join import join, listing_facts
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.nodes import Strategy
from pipeline.topics.registry import NODES
from pipeline.topics.sample_rows import read_rows

PODS = 6
END_MS = 1_800_000_000_000


def of_ingest() -> bytes:
    return next(ingest.samples(1, PODS, 1, END_MS))[1]


def of_fleet() -> bytes:
    return fleet.Node(0, PODS).sample(0, END_MS)


@pytest.mark.parametrize(
    ("sample", "name", "uids"),
    [(of_ingest, ingest.node_name, ingest.pod_uids), (of_fleet, fleet.node_name, fleet.pod_uids)],
)
def test_every_pod_has_its_class_and_none_is_cold(
    sample: Callable[[], bytes], name: Callable[[int], str], uids: Callable[[int, int], list[str]]
) -> None:
    known = ClusterState()
    for entry in inventory.entries([(name(0), uids(0, PODS))]):
        record = LogRecord(0, 0, entry.key, entry.value, END_MS)
        (known.apply_node if entry.topic == NODES else known.apply_pod)(record)
    rows = read_rows(sample())
    view = known.objects_of(rows.header.node)
    window = join(
        rows, view, Strategy(), sample_offset=0, appended_ms=END_MS,
        pod_facts=listing_facts(rows.listing, view.pods, None),
    )  # fmt: skip
    read = WindowBatch([window]).training("p90")
    (head,) = read.heads
    assert np.isfinite(read.allocatable).all()
    prod, batch = CLASS_CODES["prod"], CLASS_CODES["batch"]
    assert head.pods.classes.tolist() == [prod, prod, batch] * (PODS // 3)
    bank = Bank()
    bank.apply(read)
    (peaks,) = bank.peaks([head.node])
    assert not peaks.pod_cold.any()
