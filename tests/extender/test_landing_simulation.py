"""Landings of a plan are those of an extender that reads each group of targets afresh."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.landing_simulation import COMPARED_TARGETS, ExtenderLanding
from pipeline.extender.refusals import Refusals
from pipeline.processors.arrays import IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterPods
from pipeline.processors.descheduling.landing import MOST_REJECTED, Arrival
from pipeline.processors.descheduling.pod_order import pod_ranks
from pipeline.processors.scorers.registry import SCORERS
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.strategy_inputs import cluster_nodes
from pipeline.topics.node_state import UsageDeviation
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, any_pod, node_state

_NODES = 400
_NAMES = [f"n{place:03}" for place in range(_NODES)]
_PODS = 40
_NEED_ARGUMENTS = (
    "Peaks", "NodeMetadata", "NodeResourcesFitPlus", "ScarceResourceAvoidance"
)  # fmt: skip
_ROOM = Resources(cpu_millicores=16_000, memory_bytes=64 << 30)
_THRESHOLDS = {"scheduling.koordinator.sh/usage-thresholds": '{"prodUsageThresholds": {"cpu": 30}}'}


def rules_file(folder: Path) -> str:
    """A configuration with all scorers that need no arguments."""
    names = [name for name in SCORERS.points if name not in _NEED_ARGUMENTS]
    file = folder / "scheduler.json"
    enabled = [{"name": name} for name in names]
    file.write_text(json.dumps({"plugins": {"multiPoint": {"enabled": enabled}}}))
    return str(file)


def filled(table: Table, chance: np.random.Generator, own: float) -> Table:
    """Nodes of any usage. Of some it is unknown, doubtful or too old, and some are new. A share
    `own` of them has a threshold for usage of Prod."""
    for place, name in enumerate(_NAMES):
        kind = int(chance.integers(12))
        annotations = _THRESHOLDS if chance.random() < own else {}
        table.put_node(
            TableNode(node=name, allocatable=_ROOM, capacity=_ROOM, annotations=annotations)
        )
        if kind == 1:
            continue
        cores, peak = float(chance.uniform(0.5, 12)), float(chance.uniform(1, 15))
        usage = Usage(cpu_cores=cores, memory_bytes=8.0 * GIB)
        spread = Usage(cpu_cores=0.0 if kind == 2 else 0.5, memory_bytes=1.0 * GIB)
        table.put_state(
            node_state(
                name, cpu=cores, memory=None if kind == 3 else 8.0 * GIB, cores=16.0,
                room=64.0 * GIB, age=900.0 if kind == 4 else 10.0, offset=place,
                class_usage={"prod": Usage(cpu_cores=0.4 * cores, memory_bytes=4.0 * GIB)},
                deviation={"15m": UsageDeviation(mean=usage, stdev=spread)},
                predictor="percentile",
                peaks={"percentile": Usage(cpu_cores=peak, memory_bytes=9.0 * GIB)},
            )
        )  # fmt: skip
    return table


def columns(chance: np.random.Generator, resources: int) -> ClusterPods:
    """Pods of any class and size, all on the first node."""
    usage = np.zeros((_PODS, resources))
    usage[:, 0] = np.rint(chance.exponential(1200.0, _PODS))
    usage[:, 1] = np.rint(chance.exponential(1.0 * GIB, _PODS))
    records = []
    for place, (cpu, memory) in enumerate(usage[:, :2].astype(int).tolist()):
        requests = Resources(cpu_millicores=cpu, memory_bytes=memory)
        pod_class = ("prod", "mid", "none")[int(chance.integers(3))]
        limits = Resources(cpu_millicores=3 * cpu, memory_bytes=3 * memory)
        record = any_pod(f"p{place}", pod_class=pod_class, requests=requests, limits=limits)
        records.append(record)
    return ClusterPods(
        node=np.zeros(_PODS, np.int64), usage=usage, expected=usage, requests=usage,
        is_prod=np.array([record.pod_class == "prod" for record in records]),
        may_move=np.ones(_PODS, np.bool_), ranks=pod_ranks(records), records=records,
        objections={},
    )  # fmt: skip


def landed_afresh(
    decisions: Decisions, pods: ClusterPods, names: list[str], pod: int, arrivals: list[Arrival]
) -> tuple[int | None, int | None, int]:
    """The place in `names` where the pod lands, its score, and how many nodes refuse it before. All
    nodes have room for its requests."""
    demand, rejections = decisions.demand(pods.records[pod]), 0
    for first in range(0, len(names), COMPARED_TARGETS):
        compared = names[first : first + COMPARED_TARGETS]
        nodes = decisions.candidates(compared, NOW)
        amounts = np.zeros((len(compared), len(nodes.counted_names)), np.int64)
        used, prod_used = np.zeros((2, 2, len(compared)))
        row = {name: index for index, name in enumerate(nodes.names)}
        for arrival in arrivals:
            if (place := row.get(_NAMES[arrival.node])) is None:
                continue
            of_arrival = decisions.demand(pods.records[arrival.pod])
            amounts[place] -= [*of_arrival.counted.values()]
            used[:, place] -= pods.expected[arrival.pod, :2]
            prod_used[:, place] -= of_arrival.is_prod * pods.expected[arrival.pod, :2]
        both = ("cpu", "memory")
        nodes = nodes.reduced(
            amounts, dict(zip(both, used, strict=True)), dict(zip(both, prod_used, strict=True))
        )
        refused = nodes.in_requested_order(decisions.refusals(nodes, demand).is_refused)
        rejections += int(refused.sum())
        if refused.all():
            continue
        passed = np.flatnonzero(~refused)
        part = nodes.among(np.sort(nodes.positions[passed]))
        percent = decisions.scores(part, demand).percent
        best = int(percent.argmax())
        return first + int(passed[best]), int(percent[best]), rejections
    return None, None, rejections


@pytest.mark.parametrize("plugins", ["default", "all"])
@pytest.mark.parametrize("seed", range(8))
def test_landings_are_those_of_an_extender(plugins: str, seed: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(seed)
    file = None if plugins == "default" else rules_file(tmp_path)
    rules = rules_of(ExtenderSettings(scheduler_config_file=file, cpu_threshold_percent=50))
    table = filled(Table(counting=rules.counting), chance, own=(0.3, 1.0)[seed % 2])
    nodes = cluster_nodes(table, _NAMES, NOW, 180.0, lambda _: [])
    pods = columns(chance, len(nodes.resources))
    decisions = Decisions(table, rules)
    landing = ExtenderLanding(decisions, nodes, pods, NOW)
    arrivals: list[Arrival] = []
    landed = 0
    for pod in range(_PODS):
        if pod % 7 == 6:
            del arrivals[-3:]
        targets: IntArray = chance.permutation(_NODES)[: int(chance.integers(1, _NODES))]
        names = [_NAMES[target] for target in targets.tolist()]
        place, score, rejections = landed_afresh(decisions, pods, names, pod, arrivals)
        answer = landing.land(pod, targets, arrivals)
        expected = None if place is None else int(targets[place])
        assert (answer.node, answer.score, answer.rejections) == (expected, score, rejections)
        if answer.node is not None:
            arrivals.append(Arrival(pod, answer.node))
            landed += 1
    assert landed > _PODS // 2


def test_pod_that_few_targets_take_asks_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(3)
    rules = rules_of(ExtenderSettings(cpu_threshold_percent=20))
    table = filled(Table(counting=rules.counting), chance, own=0.3)
    nodes = cluster_nodes(table, _NAMES, NOW, 180.0, lambda _: [])
    pods = columns(chance, len(nodes.resources))
    decisions = Decisions(table, rules)
    landing = ExtenderLanding(decisions, nodes, pods, NOW)
    landing.land(0, np.arange(_NODES), [])
    hottest_first: IntArray = np.argsort(-np.nan_to_num(nodes.usage[:, 0]), kind="stable")
    refusals, asked = Decisions.refusals, 0

    def counting(*arguments: Any) -> Refusals:
        nonlocal asked
        asked += 1
        return refusals(*arguments)

    for targets in (hottest_first, hottest_first[:230]):
        names = [_NAMES[target] for target in targets.tolist()]
        place, score, rejections = landed_afresh(decisions, pods, names, 1, [])
        with monkeypatch.context() as patch:
            patch.setattr(Decisions, "refusals", counting)
            answer = landing.land(1, targets, [])
        expected = None if place is None else int(targets[place])
        assert (answer.node, answer.score, answer.rejections) == (expected, score, rejections)
        assert rejections > 3 * COMPARED_TARGETS
        assert len(answer.rejected) == MOST_REJECTED
    assert asked <= 6
