"""Laws of whole plans on random clusters: all strategies, caps, unknown and absurd usage."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.extender.plan_documents import StrategyRun
from pipeline.extender.relief_planning import ReliefPlanning
from pipeline.processors.arrays import FloatArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes
from pipeline.processors.descheduling.configured_strategies import pools_of_configuration
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.node_limits import node_limits, watched_resources
from pipeline.table.node_columns import TableNode
from pipeline.topics.pods import Owner
from pipeline.topics.resource_amounts import Resources, Usage
from tests.extender.relief_world import LOW, TIERS, configuration, profile
from tests.extender.relief_world import ReliefWorld as World
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, NOW, any_pod, node_state, running

Case = dict[str, Any]

CORES = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 6.0])
ABSURD = st.sampled_from([None, -1.0, 1e18, 1e9])
CLASSES = st.sampled_from(["prod", "prod", "batch", "mid", "none"])
FEW = st.none() | st.integers(0, 3)


@st.composite
def nodes_and_pods(draw: st.DrawFn) -> list[Case]:
    """The first node is hot in most cases, and pods leave its tier."""
    nodes = []
    for index in range(draw(st.integers(2, 5))):
        cores = draw(st.sampled_from([8.0, 16.0]))
        shares = [0.6, 0.75, 0.95, 1.3, 0.1] if index == 0 else [0.02, 0.1, 0.2, 0.3, 0.44, 0.8]
        share = draw(st.sampled_from(shares))
        usual = draw(st.integers(0, 9)) > 0
        pods = [
            {
                "name": f"{index}-{number}", "class": draw(CLASSES), "cores": draw(CORES),
                "asked": draw(CORES), "unknown": draw(st.integers(0, 3)) == 0,
                "absurd": draw(ABSURD) if draw(st.integers(0, 9)) == 0 else 0.0,
                "bare": draw(st.integers(0, 9)) == 0, "namespace": draw(st.sampled_from("de")),
            }
            for number in range(draw(st.integers(2 if index == 0 else 0, 6)))
        ]  # fmt: skip
        prod = draw(st.sampled_from([0.02, 0.1, 0.3, 0.45, 0.8]))
        nodes.append(
            {
                "name": f"n{index}", "cores": cores, "pods": pods,
                "cpu": cores * share if usual else draw(ABSURD),
                "memory": (8 if draw(st.integers(0, 9)) else 80) * GIB,
                "prod": cores * min(prod, share), "age": 10.0 if draw(st.integers(0, 9)) else 400.0,
                "tier": "gold" if index == 0 else draw(st.sampled_from(["silver", "gold"])),
                "cordoned": draw(st.integers(0, 9)) == 0,
            }
        )  # fmt: skip
    return nodes


@st.composite
def configurations(draw: st.DrawFn) -> Descheduling:
    high = draw(st.sampled_from([40, 50, 70, 90]))
    low: Case = LOW | {"highThresholds": {"cpu": high}, "lowThresholds": {"cpu": high - 5}}
    if draw(st.booleans()):
        low["highThresholds"]["memory"] = 80
    if draw(st.booleans()):
        low |= {"prodHighThresholds": {"cpu": 30}, "prodLowThresholds": {"cpu": 25}}
    elif draw(st.integers(0, 3)) == 0:
        low |= {"useDeviationThresholds": True, "highThresholds": {"cpu": 10}}
    if draw(st.booleans()):
        own = {"name": "a", "nodeSelector": {"matchLabels": {"tier": "gold"}}}
        low["nodePools"] = [own | {"highThresholds": {"cpu": high + 5}}]
    own_args: dict[str, Case] = {
        "LowNodeLoad": low,
        "CustomPriority": TIERS | {"mode": draw(st.sampled_from(["BestEffort", "DrainNode"]))},
        "FragmentationAware": {"imbalanceThreshold": 0.02, "minImprovementThreshold": 0.005},
        "ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 3},
    }
    names = draw(st.permutations(["CustomPriority", "FragmentationAware", "ScaleDownBinPack"]))
    names = ["LowNodeLoad", *names[: draw(st.integers(0, 3))]]
    fields = {f"maxNoOfPodsToEvict{name}": draw(FEW) for name in ("Total", "PerNode")}
    fields["maxNoOfPodsToEvictPerNamespace"] = draw(FEW)
    caps = {name: cap for name, cap in fields.items() if cap is not None}
    caps = caps if draw(st.integers(0, 4)) == 0 else {}
    return configuration(profile({name: own_args[name] for name in names}), **caps)


class Planned(NamedTuple):
    world: World
    runs: list[StrategyRun]


def planned(cluster: list[Case], read: Descheduling, threshold: int) -> Planned:
    world = World(cpu_threshold_percent=threshold)
    for node in cluster:
        name = node["name"]
        room = Resources(cpu_millicores=round(1000 * node["cores"]), memory_bytes=64 << 30)
        world.table.put_node(
            TableNode(
                node=name, allocatable=room, labels={"tier": node["tier"]},
                unschedulable=node["cordoned"],
            )
        )  # fmt: skip
        prod = {"prod": Usage(cpu_cores=node["prod"], memory_bytes=4 * GIB)}
        world.table.put_state(
            node_state(
                name, cpu=node["cpu"], memory=node["memory"], cores=node["cores"], room=64 * GIB,
                age=node["age"], class_usage=prod,
            )
        )  # fmt: skip
        measured = [pod for pod in node["pods"] if not pod["unknown"]]
        rows = [
            pod_row(
                pod["name"], memory_bytes_avg=GIB,
                cpu_cores_avg=pod["cores"] if pod["absurd"] == 0.0 else pod["absurd"],
            )
            for pod in measured
        ]  # fmt: skip
        known = [known_pod(pod["name"]) for pod in measured]
        window = logged(joined(NODE_ROW, *rows, view=view(*known), of=header(name, 0)))
        assert world.table.pod_history.put(window)
        for pod in node["pods"]:
            asked = Resources(cpu_millicores=round(1000 * pod["asked"]), memory_bytes=1 << 30)
            owner = None if pod["bare"] else Owner(kind="ReplicaSet", name="web")
            record = running(
                any_pod(
                    pod["name"], pod_class=pod["class"], namespace=pod["namespace"], owner=owner,
                    requests=asked,
                ),
                name,
            )  # fmt: skip
            world.table.put_pod(record)
            world.records.append(record)
    planning = ReliefPlanning(world.table, world.decisions, read, NOW)
    records = [pod for pod in world.records if pod.node in planning.sources]
    return Planned(world, planning.runs(records, world.table.pod_history))


def limits_of(read: Descheduling, nodes: ClusterNodes) -> tuple[FloatArray, FloatArray]:
    """High limits of cpu and memory, of all usage and of Prod, (nodes, 2), infinite
    where a node has none."""
    low = read.low_node_load
    assert low is not None
    high, prod = np.full((len(nodes), 2), np.inf), np.full((len(nodes), 2), np.inf)
    for pool, is_member in pools_of_configuration(low, nodes.labels):
        names = watched_resources(pool)
        columns = np.array([("cpu", "memory").index(name) for name in names])
        where = np.ix_(np.flatnonzero(is_member), columns)
        parts = (nodes.capacity[where], nodes.usage[where], nodes.prod_usage[where])
        limits = node_limits(pool, names, *parts)
        high[where] = limits.high
        prod[where] = np.where(np.isfinite(limits.prod_hot), limits.prod_high, np.inf)
    return high, prod


def heat(usage: FloatArray, limits: FloatArray) -> float:
    """How far the hottest node is, in parts of its limits; unknown usage does not count."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.nan_to_num(usage[:, :2] / limits).max(initial=0.0))


@settings(max_examples=300, deadline=None)
@given(nodes_and_pods(), configurations(), st.sampled_from([0, 30, 65]))
def test_no_plan_makes_a_target_hot_or_the_hottest_node_hotter(
    cluster: list[Case], read: Descheduling, threshold: int
) -> None:
    runs = planned(cluster, read, threshold).runs
    if not runs:
        return
    before, after = runs[0].nodes, runs[-1].plan
    limits, prod_limits = limits_of(read, before)
    for run in runs:
        for move in run.plan.moves:
            target = move.target
            assert target is not None
            assert target != move.source
            expected = run.pods.expected[move.pod, :2]
            for usage, own in ((after.usage, limits), (after.prod_usage, prod_limits)):
                if own is prod_limits and not run.pods.is_prod[move.pod]:
                    continue
                # What the pod uses of a limited resource is known there, and within the limit.
                limited = (expected > 0) & np.isfinite(own[target])
                assert (usage[target, :2] <= own[target])[limited].all()
    for usage, now, own in (
        (before.usage, after.usage, limits), (before.prod_usage, after.prod_usage, prod_limits),
    ):  # fmt: skip
        assert heat(now, own) <= max(heat(usage, own), 1.0)


@settings(max_examples=300, deadline=None)
@given(nodes_and_pods(), configurations(), st.sampled_from([30, 65]))
def test_no_plan_fills_a_target_beyond_the_thresholds_of_the_filters(
    cluster: list[Case], read: Descheduling, threshold: int
) -> None:
    """With all pods that the plan put there before, of all strategies: those of unknown usage with
    their estimates."""
    world, runs = planned(cluster, read, threshold)
    usage = {node["name"]: node for node in cluster}
    arrived: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        for move in run.plan.moves:
            assert move.target is not None
            pod, name = run.pods.records[move.pod], run.nodes.names[move.target]
            estimate = world.decisions.demand(pod).counted["estimate:cpu"]
            node = usage[name]
            cpu = node["cpu"]
            if cpu is not None and 0 <= cpu < 1e9 and node["age"] < 180:
                millicores = 1000 * cpu + arrived[name] + estimate
                assert 0.1 * millicores / node["cores"] < threshold + 0.5
            used = run.pods.usage[move.pod, 0]
            arrived[name] += estimate if np.isnan(used) else used


@settings(max_examples=150, deadline=None)
@given(nodes_and_pods(), configurations())
def test_no_plan_moves_more_pods_than_its_caps_or_one_of_them_twice(
    cluster: list[Case], read: Descheduling
) -> None:
    runs = planned(cluster, read, 65).runs
    moved = [(run.pods.records[move.pod], move) for run in runs for move in run.plan.moves]
    assert len({pod.uid for pod, _ in moved}) == len(moved)
    counts = (
        (read.keys.most_evictions, Counter(True for _ in moved)),
        (read.keys.most_evictions_per_node, Counter(pod.node for pod, _ in moved)),
        (read.keys.most_evictions_per_namespace, Counter(pod.namespace for pod, _ in moved)),
    )
    for cap, count in counts:
        assert cap is None or max(count.values(), default=0) <= cap
    for pod, _ in moved:
        assert pod.owner is not None
