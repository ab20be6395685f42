"""No scorer that goes by usage prefers a node because its usage is doubtful."""

from typing import Any

import msgspec
import pytest

from pipeline.extender.decisions import Decisions, Rules
from pipeline.processors.model.usage_anomalies import is_doubtful
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.processors.scorers.registry import SCORERS
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.node_state import Dispute, NodeStateRecord, UsageDeviation
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, ROOM, any_pod, node_state, running

NAMES = ["honest", "doubtful"]
ARGS: dict[str, dict[str, Any]] = {
    "Peaks": {"nodePowerModel": {name: {"k0": 100, "k1": 10, "k2": 0.02} for name in NAMES}}
}
BY_USAGE = [
    name
    for name in SCORERS.points
    if name != "NodeMetadata"
    and SCORERS.get(name).expiration_seconds(SCORERS.get(name).read(ARGS.get(name, {})))
]


def state(node: str, cpu: float, stdev: float = 0.01, coverage: float = 1.0) -> NodeStateRecord:
    usage = Usage(cpu_cores=cpu, memory_bytes=4 * GIB)
    spread = UsageDeviation(mean=usage, stdev=Usage(cpu_cores=stdev, memory_bytes=GIB / 100))
    peaks = {"p": Usage(cpu_cores=cpu + 0.1, memory_bytes=5 * GIB)}
    record = node_state(node, cpu=cpu, deviation={"15m": spread}, predictor="p", peaks=peaks)
    capacity = Usage(cpu_cores=4.0, memory_bytes=16 * GIB)
    return msgspec.structs.replace(record, coverage=coverage, capacity=capacity)


NO_CPU = msgspec.structs.replace(state("doubtful", 0.2), usage=Usage(memory_bytes=4 * GIB))
STATES = {
    "partial": state("doubtful", 0.2, coverage=0.1),
    "frozen": state("doubtful", 0.2, stdev=0.0),
    "frozen at the target": state("doubtful", 1.5, stdev=0.0),
    "missing": NO_CPU,
    "less than a second source reports": msgspec.structs.replace(
        state("doubtful", 0.2), dispute=Dispute(source="prometheus", is_more=True)
    ),
}


def scores(plugin: str, doubtful: NodeStateRecord) -> list[int]:
    """The plugin's scores of the honest node, which is busier, and of the doubtful one."""
    args = [{"name": plugin, "args": ARGS.get(plugin, {})}]
    enabled = {"score": {"enabled": [{"name": plugin}]}}
    rules = Rules(read_config({"plugins": enabled, "pluginConfig": args}))
    table = Table(counting=rules.counting)
    asked = Resources(cpu_millicores=3000, memory_bytes=1 << 30)
    for name, record in (("honest", state("honest", 2.5)), ("doubtful", doubtful)):
        table.put_node(TableNode(node=name, allocatable=ROOM, capacity=ROOM))
        table.put_state(record)
        table.put_pod(running(any_pod(f"on-{name}", requests=asked), name))
    pod = any_pod("new", requests=Resources(cpu_millicores=100, memory_bytes=1 << 28))
    result: list[int] = Decisions(table, rules).prioritize(pod, NAMES, NOW).plugins[plugin].tolist()
    return result


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("plugin", BY_USAGE)
def test_a_doubtful_node_scores_no_better_than_others(plugin: str, kind: str) -> None:
    assert is_doubtful(STATES[kind]) == (kind != "missing")
    honest, doubtful = scores(plugin, STATES[kind])
    assert doubtful <= honest


@pytest.mark.parametrize("dispute", [None, Dispute(source="prometheus", is_more=False)])
def test_a_node_of_certain_low_usage_scores_better(dispute: Dispute | None) -> None:
    certain = msgspec.structs.replace(state("doubtful", 0.2), dispute=dispute)
    table_scores = scores("PredictedHeadroom", certain)
    assert table_scores[1] > table_scores[0], "usage that is certain is preferred where it is low"
