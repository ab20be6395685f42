"""What bad series do to placement, from samples through join, models and table to the decision."""

from typing import Any

import pytest

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions, ExplainResult
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.result_records import encode_node_states
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_anomalies import anomalies_by_row
from pipeline.table.node_columns import TableNode
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import Counters, NodeStateRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import GIB, NODE_ROW, header, joined, logged
from tests.table.records import any_pod, running

WINDOWS = 40
RULES = rules_of(ExtenderSettings(fine_scores=True))
ROOM = Resources(cpu_millicores=16_000, memory_bytes=32 << 30)


def cpu_of(node: str, window: int) -> float | None:
    """Cores in a window: `good` uses two, others seem to use half a core."""
    if node == "good":
        return 2.0 + window % 3 / 10
    is_last = window == WINDOWS - 1
    return {
        "frozen": 0.5,
        "beyond": 17.0 if is_last else 0.5 + window % 3 / 10,
        "missing": None if is_last else 0.5 + window % 3 / 10,
        "impossible": -1.0 if is_last else 0.5 + window % 3 / 10,
        "partial": 0.5 + window % 3 / 10,
    }[node]


def state_of(node: str) -> tuple[NodeStateRecord, float]:
    """The state of a node after twenty minutes, and the end of its last window."""
    bank, record, end = Bank(ModelConfig()), b"", 0.0
    for window in range(WINDOWS):
        coverage = 0.4 if node == "partial" and window == WINDOWS - 1 else 1.0
        cpu, memory = cpu_of(node, window), GIB + window % 2
        row = NODE_ROW | {
            "coverage": coverage, "cpu_cores_avg": cpu, "memory_bytes_avg": memory,
            "points_offset_seconds": [10.0, 20.0, 30.0], "points_cpu_cores": [cpu] * 3,
            "points_memory_bytes": [memory] * 3,
        }  # fmt: skip
        batch = WindowBatch([logged(joined(row, of=header(node, window)))])
        bank.apply(batch.training("p90"))
        summaries = bank.peaks([node]).summaries
        position: Any = {"generation": 1, "offset": window, "epoch": 1}
        (record,) = encode_node_states(
            batch,
            summaries,
            bank.recent_usage([node]),
            [Counters()],
            [None],
            [()],
            [{}],
            [position],
        )
        end = batch.windows[0].header.window_end_ms / 1000
    return decode_json(NodeStateRecord, record), end


def pod(uid: str, cores: int) -> PodRecord:
    return any_pod(uid, requests=Resources(cpu_millicores=cores * 1000, memory_bytes=1 << 30))


def decided(node: str, requested: int) -> tuple[ExplainResult, list[list[str]]]:
    """What is decided about a pod of 4 cores on this node and on `good`, on both of which a pod
    requests so many cores; and the anomalies of both."""
    table = Table(counting=RULES.counting)
    now = 0.0
    for name in (node, "good"):
        state, now = state_of(name)
        table.put_node(TableNode(node=name, allocatable=ROOM, capacity=ROOM))
        table.put_state(state)
        table.put_pod(running(pod(f"on-{name}", requested), name))
    names = [node, "good"]
    result = Decisions(table, RULES).explain(pod("new", 4), names, now + 10)
    return result, anomalies_by_row(table, table.lookup(names), now + 10, 180.0)


@pytest.mark.parametrize("node", ["frozen", "partial", "beyond", "missing", "impossible"])
def test_a_bad_series_makes_a_node_neither_empty_nor_better(node: str) -> None:
    """It counts what its pods are expected to use, 85 percent of their requests, or more."""
    # 0.5 + 3.4 cores would be 24% of 16 cores. 5.95 + 3.4 are 58 percent, 7.65 + 3.4 are 69.
    for requested, refused in ((7, node == "beyond"), (9, True)):
        result, found = decided(node, requested)
        assert result.refusals.is_refused.tolist() == [refused, False]
        assert found[1] == []
        expected = "missing" if node == "impossible" else node
        assert expected in found[0]
        if not refused:
            assert result.is_estimated[0].tolist() == [True, node in ("frozen", "partial")]
            load_aware = result.scores.plugins["LoadAwareScheduling"].tolist()
            assert load_aware[0] < load_aware[1]


def test_the_detail_names_the_doubt() -> None:
    result, _ = decided("frozen", 9)
    assert result.refusals.kinds[int(result.refusals.codes[0])].reason == (
        "node(s) cpu estimated usage exceed threshold"
    )
    assert result.refusals.detail(0) == (
        "cpu estimated usage would be 69.1% of 16000m, over the threshold of 65%: usage is "
        "unknown or in doubt, 7650m expected of the pods on the node + 3400m for this pod"
    )
