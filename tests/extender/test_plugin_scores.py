"""Every scorer gets its arguments and columns from configuration and table."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.plugin_scores import BEST_FIT, PLUGIN_FAILURES
from pipeline.processors.join.node_facts import RAW_ALLOCATABLE
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.processors.scorers import peaks
from pipeline.processors.scorers.scorer import Counts
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord, UsageDeviation
from pipeline.topics.pods import Container, PodRecord
from pipeline.topics.resource_amounts import BATCH, MID, Resources, Usage
from tests.metric_values import value_of
from tests.table.records import GIB, NOW, ROOM, any_pod, node_state, running


def pod(uid: str = "new", cpu: int = 0, memory: int = 0, **more: Any) -> PodRecord:
    asked = Resources(cpu_millicores=cpu, memory_bytes=memory)
    container = Container(name="main", requests=asked, limits=more.get("limits", Resources()))
    fields: dict[str, Any] = {"requests": asked, "containers": (container,)} | more
    return any_pod(uid, **fields)


def used(name: str, cpu: float, deviation: float = 0.0, **more: Any) -> NodeStateRecord:
    """A node of 4 cores and 16 GiB with this average usage of cpu, and 1 GiB of memory."""
    mean = Usage(cpu_cores=cpu, memory_bytes=GIB)
    spread = UsageDeviation(mean=mean, stdev=Usage(cpu_cores=deviation, memory_bytes=0.0))
    result = node_state(name, cpu=cpu, memory=GIB, deviation={"15m": spread}, **more)
    return msgspec.structs.replace(result, capacity=Usage(cpu_cores=4.0, memory_bytes=16 * GIB))


class World:
    def __init__(self, plugin: str, *others: str, **args: Any) -> None:
        self.plugin = plugin
        enabled = [{"name": name} for name in (plugin, *others)]
        placement = read_config(
            {
                "plugins": {"score": {"enabled": enabled}},
                "pluginConfig": [{"name": plugin, "args": args}],
            }
        )
        self.rules = Rules(placement, score_steps=100)
        self.table = Table(counting=self.rules.counting)

    def node(self, name: str, state: NodeStateRecord | None = None, **more: Any) -> "World":
        self.table.put_node(TableNode(node=name, **{"allocatable": ROOM, "capacity": ROOM} | more))
        if state is not None:
            self.table.put_state(state)
        return self

    def offers(self, name: str, tier: tuple[str, str], cpu: int, memory: int) -> "World":
        amounts = Resources(cpu_millicores=cpu, memory_bytes=memory)
        self.table.put_resources(
            OfferedResources(
                node=name, as_of=format_time(NOW - 10), generation=1, offset=0, epoch=1,
                mid=amounts if tier is MID else None, batch=amounts if tier is BATCH else None,
            )
        )  # fmt: skip
        return self

    def runs(self, name: str, asking: PodRecord) -> "World":
        self.table.put_pod(running(asking, name))
        return self

    def scores(self, asking: PodRecord | None = None) -> dict[str, int]:
        asked = list(self.table)
        result = Decisions(self.table, self.rules).prioritize(asking or pod(), asked, NOW)
        return dict(zip(asked, result.plugins[self.plugin].tolist(), strict=True))


@pytest.mark.parametrize(
    "score",
    [
        lambda *_: 1 / 0, lambda *_: None, lambda *_: np.ones(7, np.int64), lambda *_: [50, 50],
        lambda *_: np.array([50.0, np.nan]), lambda *_: np.array([50, -1]),
        lambda *_: np.array([50, 101]),
    ],
)  # fmt: skip
def test_requests_replace_a_failing_plugin_and_others_are_used(
    score: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peaks, "SCORER", dataclasses.replace(peaks.SCORER, score=score))
    world = World("Peaks", "LoadAwareScheduling")
    for name, cpu in (("busy", 2.0), ("idle", 1.0)):
        world.node(name, used(name, cpu))
    decisions, failures = Decisions(world.table, world.rules), PLUGIN_FAILURES.labels("Peaks")
    before = value_of(failures)
    caplog.set_level("ERROR")
    for seconds in (0.0, 59.0, 61.0):
        result = decisions.prioritize(pod(), ["busy", "idle"], NOW + seconds)
        assert (set(result.plugins), result.best) == ({BEST_FIT, "LoadAwareScheduling"}, 1)
    assert value_of(failures) == before + 3
    logged = [(record.message, record.exc_info is None) for record in caplog.records]
    assert logged == [("scoring plugin failed: disable or update it", False)] * 2


def test_an_amount_that_a_plugin_fails_to_compute_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(amounts={"broken": lambda pod: 1 // 0})
    monkeypatch.setattr(peaks, "SCORER", dataclasses.replace(peaks.SCORER, counts=lambda _: counts))
    world, before = World("Peaks"), value_of(PLUGIN_FAILURES.labels("Peaks"))
    amounts = zip(world.rules.counting.names, world.rules.counting.amounts(pod(cpu=1)), strict=True)
    assert {("broken", 0), ("request:cpu", 1)} <= {*amounts}
    assert value_of(PLUGIN_FAILURES.labels("Peaks")) == before + 1


def test_target_load_packing() -> None:
    """The example of its KEP: 25, 50 and 75 percent with a target of 50."""
    world = World("TargetLoadPacking", targetUtilization=50, defaultRequests={"cpu": "0"})
    for name, cpu in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        world.node(name, used(name, cpu))
    assert world.scores() == {"a": 75, "b": 100, "c": 25}
    # With the pod's request, half as much again: 0.4 cores are 15 percent more.
    assert world.scores(pod(cpu=400)) == {"a": 90, "b": 35, "c": 10}
    # What was bound less than a minute before the window's end is not in the average.
    world.table.put_pod(running(pod("late", 400), "a", 15.0))
    assert world.scores()["a"] == 90
    world.table.put_state(used("a", 1.0, age=301.0, offset=1))
    assert world.scores()["a"] == 0


def test_target_load_packing_uses_the_last_window_where_it_is_busier() -> None:
    """Upstream goes by the average alone, in which pods of the last minutes hardly are."""
    world = World("TargetLoadPacking", targetUtilization=50, defaultRequests={"cpu": "0"})
    filling, calming = used("filling", 1.0), used("calming", 3.0)
    fuller, emptier = Usage(cpu_cores=3.0, memory_bytes=GIB), Usage(cpu_cores=1.0, memory_bytes=GIB)
    world.node("filling", msgspec.structs.replace(filling, usage=fuller))
    world.node("calming", msgspec.structs.replace(calming, usage=emptier))
    assert world.scores() == {"calming": 25, "filling": 25}
    # A pod that came before the last window began is in that, and not in the average.
    world.table.put_pod(running(pod("young", 400), "filling", 45.0))
    assert world.scores()["filling"] == 25
    world.table.put_pod(running(pod("young", 400), "filling", 15.0))
    assert world.scores()["filling"] == 10


def test_load_variation_risk_balancing() -> None:
    world = World("LoadVariationRiskBalancing", safeVarianceSensitivity=2)
    for name, deviation in (("smooth", 0.0), ("bursty", 1.0)):
        world.node(name, used(name, 2.0, deviation, simulated=True))
    # (1 - (0.5 + 0) / 2) and (1 - (0.5 + sqrt(0.25)) / 2), of the worse resource.
    assert world.scores() == {"bursty": 50, "smooth": 75}


def test_load_variation_of_any_resource_with_usage() -> None:
    """After a restart the last window of the rates is known, without a deviation."""
    disk = "springtide.io/disk-read"
    world = World("LoadVariationRiskBalancing", resources=["cpu", disk])
    for name, rate in (("calm", 10.0), ("busy", 80.0)):
        state = msgspec.structs.replace(used(name, 0.4), rates={disk: rate})
        world.node(name, state, scalars={disk: 100})
    # (1 - (0.1 + 0) / 2) of cpu is worse than of the disk of one, and better than of the other's.
    assert world.scores() == {"busy": 60, "calm": 95}
    assert world.scores(pod(scalars={disk: 20})) == {"busy": 50, "calm": 85}


def test_load_variation_of_network_prefers_the_steadier_node() -> None:
    transmit = "springtide.io/network-transmit"
    world = World("LoadVariationRiskBalancing", resources=[transmit])
    for name, swing in (("smooth", 0.0), ("bursty", 25.0)):
        for offset in range(30):
            rates = {transmit: 50.0 + (swing if offset % 2 else -swing)}
            as_of = format_time(NOW - 900 + 30 * offset)
            state = msgspec.structs.replace(
                used(name, 0.4),
                rates=rates,
                offset=offset,
                as_of=as_of,
            )
            world.node(name, state, scalars={transmit: 100})
    # (1 - (0.5 + 0.25) / 2) and (1 - (0.5 + 0) / 2).
    assert world.scores() == {"bursty": 63, "smooth": 75}


def test_target_load_packing_by_requests_alone() -> None:
    limits = Resources(cpu_millicores=2000)
    for use, score in ((True, 25), (False, 90)):
        world = World("TargetLoadPacking", targetUtilization=50, useLimits=use)
        world.node("a", used("a", 1.0))
        # 25 percent, and 50 for the limit or 15 for the request and half as much again.
        assert world.scores(pod(cpu=400, limits=limits)) == {"a": score}


def test_usage_of_four_minutes_ago_counts_for_trimaran() -> None:
    """KEP-61: the newest window that is not older than five; LoadAware expires after three."""
    for plugin in ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment"):
        world = World(plugin)
        for age, keys in ((240.0, {plugin}), (301.0, {BEST_FIT})):
            world.node("a", used("a", 1.0, age=age, offset=int(age)))
            result = Decisions(world.table, world.rules).prioritize(pod(cpu=400), ["a"], NOW)
            assert set(result.plugins) == keys, age
            assert result.is_by_requests == (keys == {BEST_FIT})


def test_low_risk_over_commitment() -> None:
    world = World("LowRiskOverCommitment", riskLimitWeights={"cpu": 1, "memory": 1})
    bold, careful = Resources(cpu_millicores=8000), Resources(cpu_millicores=1000)
    for name, limits in (("bold", bold), ("careful", careful)):
        world.node(name, used(name, 1.0)).runs(name, pod(f"on-{name}", 1000, limits=limits))
    # (8 + 1 - 4) / (9 - 2) of what limits are above requests is above what there is.
    wants = pod(cpu=1000, limits=careful)
    assert world.scores(wants) == {"bold": 29, "careful": 100}
    assert set(world.scores().values()) == {0}
    assert world.node("silent").scores(wants)["silent"] == 100
    world.table.put_state(used("bold", 1.0, age=400.0, offset=1))
    assert world.scores(wants)["bold"] == 0


def test_peaks() -> None:
    model = {name: {"k0": 1, "k1": 1.0, "k2": 0.01} for name in "ab"}
    world = World("Peaks", NodePowerModel=model)
    for name, cpu in (("a", 1.0), ("b", 3.0), ("c", 0.1)):
        world.node(name, used(name, cpu))
    # The rise is least where there is least load; nothing is known of c's power.
    assert world.scores(pod(cpu=400)) == {"a": 100, "b": 0, "c": 0}


def test_resource_limits() -> None:
    """The example of its KEP: 8 cores, limits of 10 and 5, the pod's of 4."""
    world = World("ResourceLimits", resources=[{"name": "cpu"}], defaultLimit={"cpu": 4000})
    room = Resources(cpu_millicores=8000, memory_bytes=16 << 30)
    for name, cores in (("node1", 10_000), ("node2", 5_000)):
        limits = Resources(cpu_millicores=cores)
        world.node(name, allocatable=room).runs(name, pod(f"on-{name}", 1000, limits=limits))
    four = pod(limits=Resources(cpu_millicores=4000))
    assert world.scores(four) == world.scores() == {"node1": 0, "node2": 100}
    # A third in between: -75, -31.25 and -12.5 percent are left.
    limits = Resources(cpu_millicores=6500)
    world.node("node3", allocatable=room).runs("node3", pod("on-node3", limits=limits))
    assert world.scores(four) == {"node1": 0, "node2": 100, "node3": 70}


def test_a_pod_without_limits_may_take_the_whole_disk() -> None:
    disk = "ephemeral-storage"
    for usual, scores in (({}, {"big": 0, "small": 0}), ({disk: "50"}, {"big": 100, "small": 0})):
        world = World("ResourceLimits", resources=[{"name": disk}], defaultLimit=usual)
        world.node("big", scalars={disk: 1000}).node("small", scalars={disk: 100})
        assert world.scores() == scores


def test_fit_plus_and_scarce_resources() -> None:
    gpu = "nvidia.com/gpu"
    resources = {gpu: {"type": "MostAllocated", "weight": 2}, "cpu": {"type": "LeastAllocated"}}
    world = World("NodeResourcesFitPlus", resources=resources)
    world.node("free", scalars={gpu: 4}).node("half", scalars={gpu: 4}).node("none")
    world.runs("half", pod("there", 1000, containers=(Container(name="c", scalars={gpu: 2}),)))
    item = Container(name="c", requests=Resources(cpu_millicores=1000), scalars={gpu: 1})
    # GPUs are packed, (1 and 3 of 4) * 2, and cpu spread: 3 of 4, and 2.9 with what counts for
    # the pod that asks for none.
    assert world.scores(pod(containers=(item,))) == {"free": 41, "half": 74, "none": 25}
    scarce = World("ScarceResourceAvoidance", resources=[gpu])
    scarce.node("gpu", scalars={gpu: 4, "pods": 110}).node("plain", scalars={"pods": 110})
    assert scarce.scores(pod(cpu=1)) == {"gpu": 50, "plain": 100}
    assert scarce.scores(pod(cpu=1, scalars={gpu: 1})) == {"gpu": 100, "plain": 100}


@pytest.mark.parametrize("tier", [MID, BATCH], ids=["mid", "batch"])
def test_mid_and_batch_are_scored_by_the_newest_offer(tier: tuple[str, str]) -> None:
    """Records of Nodes lack these resources; records of `resources` have what a node offers."""
    cpu, memory = tier
    resources = {name: {"type": "LeastAllocated"} for name in tier}
    limited = [{"name": cpu}, {"name": memory}]
    item = Container(name="c", scalars={cpu: 1000, memory: 2 << 30})
    wants = pod(scalars={cpu: 1000, memory: 2 << 30}, containers=(item,))
    for plugin, args, scores in (
        # 3 of 4 and 7 of 8 cores are left, 6 of 8 and 14 of 16 GiB.
        ("NodeResourcesFitPlus", resources, {"small": 75, "large": 87, "without": 0}),
        ("ResourceLimits", limited, {"small": 0, "large": 100, "without": 0}),
    ):
        world = World(plugin, resources=args)
        for name, cores in (("small", 4), ("large", 8)):
            world.node(name, used(name, 1.0)).offers(name, tier, cores * 1000, cores * 2 << 30)
        world.node("without", used("without", 1.0))
        assert world.scores(wants) == scores, plugin
    scarce = World("ScarceResourceAvoidance", resources=[cpu])
    scarce.node("offers", used("offers", 1.0)).offers("offers", tier, 1000, 1 << 30)
    scarce.node("plain", used("plain", 1.0))
    # Of cpu, memory and both resources of the tier, one is scarce.
    assert scarce.scores(pod()) == {"offers": 75, "plain": 100}


def test_node_metadata_and_size() -> None:
    world = World("NodeMetadata", metadataKey="rank", metadataSource="Annotation")
    for name, text in (("a", "1"), ("b", "5"), ("c", "much"), ("d", "9")):
        world.node(name, annotations={"rank": text})
    assert world.scores() == {"a": 1, "b": 50, "c": 0, "d": 100}
    by_label = World("NodeMetadata", metadataKey="rank", scoringStrategy="Lowest")
    assert by_label.node("a", labels={"rank": "1"}).node("b", labels={"rank": "2"}).scores() == {
        "a": 100, "b": 1,
    }  # fmt: skip
    size = World("NodeResourcesAllocatable", mode="Most", resources=[{"name": "cpu", "weight": 1}])
    big = Resources(cpu_millicores=8000, memory_bytes=16 << 30)
    assert size.node("a").node("b", allocatable=big).scores() == {"a": 0, "b": 100}


def test_predicted_headroom_prefers_nodes_that_stay_idle() -> None:
    """Both use the same now; one was busy every morning."""
    world = World("PredictedHeadroom", resources=[{"name": "cpu"}])
    for name, peak in (("idle", 1.2), ("mornings", 3.6)):
        peaks = {"percentile": Usage(cpu_cores=peak, memory_bytes=GIB)}
        world.node(name, used(name, 1.0, predictor="percentile", peaks=peaks))
    world.node("new").node("unknown", used("unknown", 0.1))
    # 0.85 of the pod's core come to it.
    assert world.scores(pod(cpu=1000)) == {"idle": 48, "mornings": 0, "new": 78, "unknown": 0}
    world.table.place(pod("other", 1000), "idle", NOW)
    assert world.scores(pod(cpu=1000))["idle"] == 27


def test_by_default_the_node_that_stays_idle_is_best() -> None:
    """Equal usage now; LoadAware cannot tell the two nodes apart."""
    rules = rules_of(ExtenderSettings(fine_scores=True))
    assert [score.plugin for score in rules.placement.scores] == [
        "LoadAwareScheduling", "PredictedHeadroom",
    ]  # fmt: skip
    table = Table(counting=rules.counting)
    for name, peak in (("a-mornings", 3.6), ("b-idle", 1.2)):
        peaks = {"percentile": Usage(cpu_cores=peak, memory_bytes=GIB)}
        table.put_node(TableNode(node=name, allocatable=ROOM))
        table.put_state(used(name, 1.0, predictor="percentile", peaks=peaks))
    table.put_node(TableNode(node="c-unknown", allocatable=ROOM))
    table.put_state(used("c-unknown", 1.0))
    result = Decisions(table, rules).prioritize(pod(cpu=100), [*table], NOW)
    by_plugin = {name: scores.tolist() for name, scores in result.plugins.items()}
    # 92 percent of memory are left, and of 4 cores 2.915 with the pod; under the peaks 0.315 and
    # 2.715.
    assert by_plugin == {"LoadAwareScheduling": [82] * 3, "PredictedHeadroom": [49, 79, 0]}
    assert (result.best, result.percent.tolist()) == (1, [65, 80, 41])
    # As old as the settings say, it is ignored by both.
    table.put_state(used("b-idle", 1.0, age=181.0, offset=1, predictor="percentile", peaks=peaks))
    assert Decisions(table, rules).prioritize(pod(cpu=100), [*table], NOW).percent[1] == 0


def test_predicted_headroom_abstains_where_no_peak_is_known() -> None:
    world = World("PredictedHeadroom", "LoadAwareScheduling")
    world.node("a", used("a", 1.0)).node("b", used("b", 2.0)).node("new")
    result = Decisions(world.table, world.rules).prioritize(pod(), [*world.table], NOW)
    assert [*result.plugins] == ["LoadAwareScheduling"]
    assert result.percent.tolist() == result.plugins["LoadAwareScheduling"].tolist()
    # Alone, it leaves every node with the score 0.
    alone = Decisions(world.table, World("PredictedHeadroom").rules)
    assert alone.prioritize(pod(), [*world.table], NOW).percent.tolist() == [0, 0, 0]


def test_predicted_headroom_is_under_what_the_machine_has() -> None:
    """Amplified allocatable is for requests: the peak is measured."""
    world = World("PredictedHeadroom", resources=[{"name": "cpu"}])
    peaks = {"percentile": Usage(cpu_cores=2.0, memory_bytes=GIB)}
    annotations = {RAW_ALLOCATABLE: '{"cpu": "4"}'}
    double = Resources(cpu_millicores=8000, memory_bytes=16 << 30)
    state = used("a", 1.0, predictor="percentile", peaks=peaks)
    world.node("a", state, allocatable=double, annotations=annotations)
    assert world.scores() == {"a": 43}


def test_predicted_headroom_counts_a_cold_pod_once() -> None:
    """Peaks that add up pods have a cold pod at its request; it is young, and in flight as well."""
    young = {"cold": Usage(cpu_cores=0.1, memory_bytes=0.0)}
    peaks = {"pods-nsigma": Usage(cpu_cores=2.0, memory_bytes=GIB)}
    state = used("a", 1.1, predictor="pods-nsigma", peaks=peaks, young_pods=young)
    # Of 4 cores 2 are left, less 0.25 for this pod. 0.85 of the cold pod's core are expected, of
    # which 0.1 are measured. The last window began 40 s ago and does not have the pod `unseen`.
    for counts_requests, score, with_unseen in ((True, 43, 22), (False, 25, 3)):
        world = World("PredictedHeadroom", resources=[{"name": "cpu"}])
        counted = msgspec.structs.replace(state, peak_counts_requests=counts_requests)
        world.node("a", counted)
        world.table.put_pod(running(pod("cold", 1000), "a", 20.0))
        assert world.scores() == {"a": score}
        world.table.place(pod("unseen", 1000), "a", NOW)
        assert world.scores() == {"a": with_unseen}


def test_load_aware_scores_by_the_configured_usage() -> None:
    world = World("LoadAwareScheduling", scoreAccordingProdUsage=True)
    prod = {"prod": Usage(cpu_cores=0.4, memory_bytes=GIB)}
    # Without a deviation usage would be frozen.
    of_batch = used("batch", 3.0, 0.1, class_usage=prod)
    world.node("batch", of_batch).node("prod", used("prod", 1.0, 0.1))
    # Pods of Batch are judged by all that is used.
    assert world.scores(pod(cpu=1))["batch"] > 80
    batch = world.scores(pod(cpu=1, pod_class="batch"))
    assert batch["batch"] < batch["prod"]
    # The worst resource weighs.
    lopsided = node_state("lopsided", cpu=0.4, memory=15 * GIB)
    for weight, score in ((0, 44), (8, 12)):
        weights = {"cpu": 1, "memory": 1}
        by = World("LoadAwareScheduling", dominantResourceWeight=weight, resourceWeights=weights)
        assert by.node("lopsided", lopsided).scores()["lopsided"] == score
