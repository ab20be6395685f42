"""Filters by annotations of nodes and pods, arguments, reservations and offers to Mid."""

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.extender.decisions import Decisions, FilterResult, Rules
from pipeline.extender.refusals import Refusal
from pipeline.processors.kubernetes.object_records import OFFERED
from pipeline.processors.loadaware import node_thresholds
from pipeline.processors.placement.enabled_plugins import Placement, read_config
from pipeline.table import Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, ROOM, any_pod, node_state, running


def load_aware(**args: Any) -> Placement:
    return read_config(
        {
            "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}},
            "pluginConfig": [{"name": "LoadAwareScheduling", "args": args}],
        }
    )


def pod(uid: str = "new", cpu: int = 400, **more: Any) -> PodRecord:
    requests = Resources(cpu_millicores=cpu, memory_bytes=100 << 20)
    return any_pod(uid, **({"requests": requests} | more))


class World:
    """Nodes `a`, `b`, .. of 4 cores and 16 GiB, and rules."""

    def __init__(self, placement: Placement | None = None, **rules: Any) -> None:
        self.rules = Rules(placement or load_aware(), **rules)
        self.table = Table(counting=self.rules.counting)

    def node(self, name: str, state: NodeStateRecord | None = None, **more: Any) -> "World":
        self.table.put_node(TableNode(node=name, allocatable=ROOM, **more))
        self.table.put_state(state or node_state(name))
        return self

    def runs(self, name: str, *pods: PodRecord) -> "World":
        for each in pods:
            self.table.put_pod(running(each, name))
        return self

    def filter(self, asking: PodRecord | None = None) -> FilterResult:
        return Decisions(self.table, self.rules).filter(asking or pod(), list(self.table), NOW)

    def refused(self, asking: PodRecord | None = None) -> list[str]:
        return self.filter(asking).refused

    def refusal(self, name: str, asking: PodRecord | None = None) -> Refusal:
        result = self.filter(asking)
        refusal = result.refusals.kind([*result.names].index(name))
        assert refusal is not None
        return refusal

    def detail(self, name: str, asking: PodRecord | None = None) -> str:
        return self.filter(asking).details(len(self.table))[name]


def test_thresholds_of_a_node_apply_to_it_alone() -> None:
    key = "scheduling.koordinator.sh/usage-thresholds"
    world = World()
    for name, text in (
        ("a", None), ("b", '{"usageThresholds": {"cpu": 20}}'), ("c", "{"),
        ("d", '{"usageThresholds": {"cpu": 20}}'),
    ):  # fmt: skip
        world.node(name, annotations={} if text is None else {key: text})
    assert world.refused() == ["b", "d"]
    assert "over the threshold of 20%" in world.detail("d")


@pytest.mark.parametrize("pod_class", ["prod", "none"])
def test_nodes_with_different_thresholds_are_judged_as_each_alone(pod_class: str) -> None:
    """Of all kinds of usage, and with usage of Prod unknown, for which all usage counts."""
    random, world = np.random.default_rng(5), World(load_aware(prodUsageThresholds={"cpu": 55}))
    for number in range(60):
        percents = {"cpu": int(random.integers(101)), "memory": int(random.integers(101))}
        aggregated = {"usageThresholds": percents, "usageAggregationType": "p95"}
        own: dict[str, Any] = {
            "usageThresholds": percents, "prodUsageThresholds": percents,
            "aggregatedUsage": aggregated,
        }  # fmt: skip
        chosen = {key: own[key] for key in own if random.random() < 0.5}
        texts = [json.dumps(chosen), "{", None]
        text = texts[int(random.choice(3, p=[0.8, 0.1, 0.1]))]
        used = Usage(cpu_cores=4 * random.random(), memory_bytes=16 * GIB * random.random())
        name, known = f"n{number}", random.random() < 0.7
        state = node_state(
            name, cpu=used.cpu_cores, memory=used.memory_bytes,
            class_usage={"prod": used} if known else {}, unknown_pods=int(not known),
            aggregated={"5m": AggregatedUsage(avg=used, p50=used, p90=used, p95=used, p99=used)},
        )  # fmt: skip
        annotations = {} if text is None else {node_thresholds.ANNOTATION: text}
        world.node(name, state, annotations=annotations)
    asking, decisions = pod(pod_class=pod_class), Decisions(world.table, world.rules)
    together = world.filter(asking)
    assert 10 < len(together.refused) < 50
    details = together.details(60)
    for name in world.table:
        alone = decisions.filter(asking, [name], NOW)
        assert (alone.refused == [name]) == (name in together.refused), name
        assert alone.details(1).get(name) == details.get(name)
        assert alone.refusals.kind(0) == together.refusals.kind([*together.names].index(name))


def test_prod_is_judged_by_what_prod_uses() -> None:
    """Full of Batch takes a Prod pod, full of Prod refuses it; and with the system's."""
    busy: dict[str, Any] = {"cpu": 3.8, "memory": 1 * GIB}
    of_batch = {"batch": Usage(cpu_cores=3.6, memory_bytes=0.0)}
    of_prod = {"prod": Usage(cpu_cores=3.6, memory_bytes=0.0)}
    for include_system, refused in ((False, ["prod"]), (True, ["batch", "prod"])):
        placement = load_aware(prodUsageThresholds={"cpu": 55}, prodUsageIncludeSys=include_system)
        world = World(placement)
        system = Usage(cpu_cores=2.5, memory_bytes=0.0)
        for name, usage in (("batch", of_batch), ("prod", of_prod)):
            world.node(name, node_state(name, **busy, class_usage=usage, system_usage=system))
        assert world.refused() == refused
        # Pods of other classes are judged by the usage of the whole node.
        assert world.refused(pod(pod_class="none")) == ["batch", "prod"]
    assert "cpu prod usage would be" in world.detail("prod")
    assert world.refusal("prod") == Refusal("node(s) cpu prod usage exceed threshold")


@pytest.mark.parametrize(
    "unknown",
    [{"class_usage": {"prod": Usage()}}, {"class_usage": {}, "unknown_pods": 20}],
    ids=["of Prod", "of pods of no class that is known"],
)
def test_where_usage_of_prod_is_unknown_all_usage_counts(unknown: dict[str, Any]) -> None:
    """And the node is never the best."""
    placement = load_aware(
        usageThresholds={"cpu": 65}, prodUsageThresholds={"cpu": 55}, scoreAccordingProdUsage=True
    )
    world = World(placement)
    world.node("hot", node_state("hot", cpu=3.9, **unknown))
    world.node("calm", node_state("calm", cpu=1.0, **unknown))
    of_prod = {"prod": Usage(cpu_cores=1.0, memory_bytes=8 * GIB)}
    world.node("known", node_state("known", cpu=3.9, class_usage=of_prod))
    assert world.refused() == ["hot"]
    assert "cpu usage would be" in world.detail("hot")
    result = Decisions(world.table, world.rules).prioritize(pod(), ["calm", "known"], NOW)
    assert result.percent[0] == 0 < result.percent[1]


def full(name: str, **state: Any) -> tuple[str, NodeStateRecord, list[PodRecord]]:
    """A node with four pods of a core each, of which 3.4 cores are estimated."""
    return name, node_state(name, **state), [pod(f"{name}-{i}", 1000) for i in range(4)]


@pytest.mark.parametrize("pods", [4, 0])
def test_unknown_cpu_is_judged_by_the_estimates_of_pods(pods: int) -> None:
    world = World()
    for name, state, running_pods in (full("blind", cpu=None), full("dark", cpu=None, memory=None)):
        world.node(name, state).runs(name, *running_pods[:pods])
    if not pods:
        assert (world.refused(), world.filter().counts()["estimated"]) == ([], 2)
        return
    assert world.refused() == ["blind", "dark"]
    assert world.refusal("blind") == Refusal("node(s) cpu estimated usage exceed threshold")
    assert world.detail("blind") == (
        "cpu estimated usage would be 93.5% of 4000m, over the threshold of 65%: usage is "
        "unknown or in doubt, 3400m expected of the pods on the node + 340m for this pod"
    )


@pytest.mark.parametrize("cpu", [0.0, 1.0, 2.0, 3.9, 4.0])
@pytest.mark.parametrize("args", [{}, {"dominantResourceWeight": 3}], ids=["mean", "dominant"])
@pytest.mark.parametrize("pods", [0, 4])
def test_a_node_of_unknown_cpu_never_scores_above_the_same_node_of_known_cpu(
    cpu: float, args: dict[str, Any], pods: int
) -> None:
    world = World(load_aware(**args))
    for name, state, running_pods in (full("known", cpu=cpu), full("blind", cpu=None)):
        world.node(name, state).runs(name, *running_pods[:pods])
    world.node("idle", node_state("idle", cpu=0.0, memory=0.0))
    names = ["blind", "known", "idle"]
    blind, known, _ = Decisions(world.table, world.rules).prioritize(pod(), names, NOW).percent
    assert blind <= known


def test_nodes_of_unknown_cpu_are_ranked_by_estimates_where_no_cpu_is_known() -> None:
    """As when the cpu query of a provider fails: the whole fleet is blind."""
    world = World()
    for name, state, running_pods in (full("full", cpu=None), full("half", cpu=None)):
        world.node(name, state).runs(name, *running_pods[: 2 if name == "half" else 4])
    decisions = Decisions(world.table, world.rules)
    busy, half = decisions.prioritize(pod(), ["full", "half"], NOW).percent
    assert busy < half


def test_nodes_are_packed_by_requests_where_no_usage_is_known() -> None:
    world = World()
    for name, state, running_pods in (full("a", cpu=None, memory=None), full("b", cpu=None)):
        world.node(name, msgspec.structs.replace(state, usage=Usage())).runs(name, *running_pods)
    result = Decisions(world.table, world.rules).prioritize(pod(), ["a", "b"], NOW)
    assert result.is_by_requests


def test_each_unknown_resource_of_prod_is_judged_by_all_usage() -> None:
    """Memory of Prod is unknown, and all memory is used; cpu of Prod is known and low."""
    placement = load_aware(
        usageThresholds={"cpu": 65, "memory": 80}, prodUsageThresholds={"cpu": 55, "memory": 50}
    )
    world = World(placement)
    prod = {"prod": Usage(cpu_cores=1.0)}
    world.node("tight", node_state("tight", cpu=3.9, memory=15.9 * GIB, class_usage=prod))
    world.node("roomy", node_state("roomy", cpu=3.9, memory=10.0 * GIB, class_usage=prod))
    assert world.refused() == ["tight"]
    assert world.refusal("tight") == Refusal("node(s) memory usage exceed threshold")


def test_prod_with_unknown_usage_of_the_system_is_judged_by_all_usage() -> None:
    placement = load_aware(prodUsageThresholds={"cpu": 55}, prodUsageIncludeSys=True)
    prod = {"prod": Usage(cpu_cores=1.0, memory_bytes=0.0)}
    world = World(placement)
    world.node("a", node_state("a", cpu=3.9, class_usage=prod, system_usage=Usage()))
    assert world.refused() == ["a"]


def test_percentiles_are_compared_where_configured() -> None:
    aggregated = {
        "usageThresholds": {"cpu": 65}, "usageAggregationType": "p95",
        "usageAggregatedDuration": "5m",
    }  # fmt: skip
    high = AggregatedUsage(p95=Usage(cpu_cores=3.9, memory_bytes=1.0))
    world = World(load_aware(aggregated=aggregated))
    world.node("spiky", node_state("spiky", aggregated={"5m": high}))
    world.node("later", node_state("later", aggregated={"30m": high}))
    assert world.refused() == ["spiky"]
    # Without a duration the longest that there is counts.
    world.rules = Rules(load_aware(aggregated=aggregated | {"usageAggregatedDuration": "0s"}))
    assert world.refused() == ["later", "spiky"]


@pytest.mark.parametrize(
    ("args", "refused"),
    [
        ({}, ["old"]), ({"enableScheduleWhenNodeMetricsExpired": True}, []),
        ({"filterExpiredNodeMetrics": False}, ["old"]),
        ({"nodeMetricExpirationSeconds": 600}, ["old"]),
        ({"usageThresholds": {"cpu": 0, "memory": 0}}, []),
    ],
)  # fmt: skip
def test_nodes_with_expired_windows_pass_or_are_refused_as_configured(
    args: dict[str, Any], refused: list[str]
) -> None:
    world = World(load_aware(**args)).node("old", node_state("old", cpu=3.9, age=400.0)).node("ok")
    assert world.refused() == refused
    if not args:
        assert world.refusal("old") == Refusal("node(s) nodeMetric expired")
        assert world.detail("old") == (
            "usage is not known: its last window ended 400 s ago, the limit is 180 s"
        )


def test_amplified_nodes_are_judged_by_raw_allocatable() -> None:
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu": "2"}'}
    world = World().node("real").node("amplified", annotations=raw)
    assert world.refused() == ["amplified"]
    assert "of 2000m" in world.detail("amplified")


def test_pods_on_their_way_count_in_the_filter_unless_disabled() -> None:
    for in_flight, refused in (("all", ["a"]), ("score", []), ("none", [])):
        world = World(in_flight=in_flight).node("a")
        world.table.place(pod("other", 2000), "a", NOW)
        assert world.refused() == refused
    young = {"other": Usage(cpu_cores=1.6, memory_bytes=0.0)}
    world = World().node("a", node_state("a", young_pods=young))
    world.table.put_pod(running(pod("other", 2000), "a", 20.0))
    # 1.7 cores are expected of it, 1.6 of them are in the node's usage.
    Decisions(world.table, world.rules).prioritize(pod(), ["a"], NOW)
    assert world.table.pods.flight[world.table.lookup(["a"])[0]].tolist() == [100, 70 << 20]


def test_a_window_that_began_earlier_puts_younger_pods_in_flight_again() -> None:
    world = World().node("a", node_state("a", age=10.0))
    world.table.put_pod(running(pod("other", 2000), "a", 120.0))
    assert world.refused() == []
    world.table.put_state(node_state("a", age=170.0, offset=1))
    assert world.refused() == ["a"]


def test_pods_may_extend_the_time_of_their_estimate() -> None:
    annotations = {
        "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled": "600",
        "scheduling.koordinator.sh/load-estimated-scaling-factors": '{"cpu": 100}',
    }
    young = {"slow": Usage(cpu_cores=0.1, memory_bytes=0.0)}
    for allowed, refused in ((False, []), (True, ["a"])):
        world = World(load_aware(allowCustomizeEstimation=allowed))
        world.node("a", node_state("a", young_pods=young))
        world.table.put_pod(running(pod("slow", 2000, annotations=annotations), "a", 300.0))
        assert world.refused() == refused


def test_requests_may_not_use_the_reservation_of_a_node() -> None:
    """The scheduler itself sees all of the node."""
    key = "node.koordinator.sh/reservation"
    world = World()
    world.node("kept", annotations={key: '{"resources": {"cpu": "1"}}'}).node("free")
    world.node("ids", annotations={key: '{"reservedCPUs": "0-1"}'})
    of_ids = '{"reservedCPUs": "0-1", "applyPolicy": "ReservedCPUsOnly"}'
    world.node("elsewhere", annotations={key: of_ids}).node("bad", annotations={key: "{"})
    for name in list(world.table):
        world.runs(name, pod(f"on-{name}", 2700))
    assert world.refused(pod(cpu=200)) == ["ids"]
    assert world.refused() == ["ids", "kept"]
    assert world.refusal("kept") == Refusal(
        "node(s) cpu requests exceed allocatable minus reservation"
    )
    assert world.detail("kept") == (
        "cpu: 2700m requested + 400m for this pod exceed 3000m (allocatable minus "
        "the node's reservation)"
    )


def amounts(cpu: int) -> Resources:
    return Resources(cpu_millicores=cpu, memory_bytes=cpu << 20)


def tier_pod(uid: str, tier: str, cpu: int) -> PodRecord:
    scalars = {f"kubernetes.io/{tier}-cpu": cpu, f"kubernetes.io/{tier}-memory": 1 << 20}
    return pod(uid, pod_class=tier, requests=Resources(), scalars=scalars)


def offering(age: float, *, mid: int = 900, batch: int = 1800, offset: int = 1) -> World:
    """The node `a` whose newest record offers this, and as much as a ninth more as a buffer; 400
    millicores are certain. The Node itself may offer any amount."""
    world = World(load_aware(usageThresholds={"cpu": 0}))
    world.node("a", annotations={OFFERED: ""}, overcommit=Overcommit()).node("other")
    record = NodeResourcesRecord(
        node="a", as_of=format_time(NOW - age), generation=1, offset=offset, epoch=1,
        strategy=Overcommit(buffer_percent=10), predictor="percentile", window_seconds=30.0,
        mid=amounts(mid), mid_lower_bound=amounts(400), batch=amounts(batch),
        mid_terms=MidTerms(prod_peak=amounts(1000), buffer=amounts(mid // 9)),
        batch_terms=BatchTerms(
            capacity=amounts(4000), margin=amounts(1400), buffer=amounts(batch // 9)
        ),
    )  # fmt: skip
    assert world.table.put_resources(decode_json(OfferedResources, encode_json(record)))
    return world


@pytest.mark.parametrize(
    ("age", "tier", "most"),
    [
        (0.0, "mid", 1000), (0.0, "batch", 2000),  # with the buffer
        (60.0, "mid", 900), (60.0, "batch", 1800),
        (180.0, "mid", 400),  # the lower bound
        (180.0, "batch", 400),  # 4000 - 1400 - 1000 of Prod - 1000 of Mid - 200
        (901.0, "mid", 0), (901.0, "batch", 0),
    ],
)  # fmt: skip
def test_mid_and_batch_pods_are_limited_by_the_newest_record(
    age: float, tier: str, most: int
) -> None:
    """A dead actuator withdraws nothing: the Node may offer more than there is."""
    world = offering(age)
    assert world.refused(tier_pod("new", tier, most + 1)) == ["a"]
    assert most == 0 or world.refused(tier_pod("new", tier, most)) == []
    world.runs("a", tier_pod("there", tier, 200))
    if most:
        assert world.refused(tier_pod("new", tier, most - 199)) == ["a"]
        assert world.refused(tier_pod("new", tier, most - 200)) == []
    assert world.refused(pod()) == [], "a pod without such resources"
    assert world.refusal("a", tier_pod("new", tier, most + 1)).reason == (
        f"node(s) kubernetes.io/{tier}-cpu requests exceed newest offer"
    )


def test_the_detail_of_a_refused_offer_has_the_numbers() -> None:
    world = offering(600.0).runs("a", tier_pod("there", "batch", 300))
    assert world.detail("a", tier_pod("new", "batch", 200)) == (
        "kubernetes.io/batch-cpu: 300m requested + 200m for this pod exceed 400m "
        "(offer computed 10 min ago)"
    )


def test_offers_that_are_withdrawn_take_no_pod() -> None:
    """The policy switched a node off, or its record is gone; another system offers on `other`."""
    asked = tier_pod("new", "batch", 1)
    world = offering(0.0)
    assert world.refused(asked) == []
    world.table.put_node(TableNode(node="a", allocatable=ROOM, annotations={OFFERED: ""}))
    assert world.refused(asked) == ["a"]
    world.table.drop_resources("a")
    assert world.refused(asked) == ["a"]
    world.table.put_node(TableNode(node="a", allocatable=ROOM))
    assert world.refused(asked) == []


def test_an_unknown_offer_takes_no_pod() -> None:
    world = offering(0.0)
    unknown = OfferedResources(
        node="a", as_of=format_time(NOW), generation=1, offset=2, epoch=1, window_seconds=30.0
    )
    world.table.put_resources(unknown)
    assert world.refused(tier_pod("new", "mid", 1)) == ["a"]


def test_a_scheduling_hint_refuses_all_other_nodes() -> None:
    tree = {"plugins": {"multiPoint": {"enabled": [{"name": "SchedulingHint"}]}}}
    hint = {"nodeNames": ["a", "b"], "preferredNodeNames": ["c", "b"]}
    hints = {
        "internal.scheduling.koordinator.sh/scheduling-hint": msgspec.json.encode(hint).decode()
    }
    world = World(read_config(tree), score_steps=100).node("a").node("b").node("c")
    assert world.refused(pod(annotations=hints)) == ["c"]
    assert world.refused(pod(annotations={next(iter(hints)): "{"})) == []
    decisions = Decisions(world.table, world.rules)
    assert decisions.prioritize(pod(annotations=hints), ["a", "b"], NOW).steps.tolist() == [0, 100]


def test_the_first_of_two_refusals_counts() -> None:
    key = "node.koordinator.sh/reservation"
    world = World().node(
        "a", node_state("a", cpu=3.9), annotations={key: '{"resources": {"cpu": "4"}}'}
    )
    assert world.refusal("a").reason == "node(s) cpu usage exceed threshold"


def test_thresholds_change_with_the_time_of_day() -> None:
    """In the valley more may go onto a node."""
    enabled = [{"name": "LoadAwareScheduling"}, {"name": "TimeSharedThresholds"}]
    window = {"from": "22:00", "to": "23:00", "usageThresholds": {"cpu": 95}}
    placement = read_config(
        {
            "plugins": {"multiPoint": {"enabled": enabled}},
            "pluginConfig": [{"name": "TimeSharedThresholds", "args": {"windows": [window]}}],
        }
    )
    assert [plugin for plugin, _ in placement.scores] == ["LoadAwareScheduling"]
    world = World(placement).node("a", node_state("a", cpu=3.2))
    decisions = Decisions(world.table, world.rules)
    # NOW is 22:13:20 UTC.
    assert not decisions.filter(pod(), ["a"], NOW).refused
    world.table.put_state(node_state("a", cpu=3.2, age=-3600.0, offset=1))
    assert decisions.filter(pod(), ["a"], NOW + 3600).refused == ["a"]


TRANSMIT = "springtide.io/network-transmit"


@pytest.mark.parametrize(
    ("usual", "window"),
    [({"cpu": 65, TRANSMIT: 50}, {"cpu": 95}), ({"cpu": 65}, {"cpu": 95, TRANSMIT: 50})],
)
def test_thresholds_by_hour_may_name_other_resources(
    usual: dict[str, int], window: dict[str, int]
) -> None:
    names = ("LoadAwareScheduling", "TimeSharedThresholds")
    hours = {"from": "22:00", "to": "23:00", "usageThresholds": window}
    placement = read_config(
        {
            "plugins": {"multiPoint": {"enabled": [{"name": name} for name in names]}},
            "pluginConfig": [
                {"name": names[0], "args": {"usageThresholds": usual}},
                {"name": names[1], "args": {"windows": [hours]}},
            ],
        }
    )
    busy = {TRANSMIT: 60_000_000}
    world = World(placement).node("a", node_state("a", rates=busy), scalars={TRANSMIT: 100_000_000})
    decisions = Decisions(world.table, world.rules)
    for now, thresholds in ((NOW, window), (NOW + 3600, usual)):
        world.table.put_state(node_state("a", rates=busy, age=NOW - now, offset=1))
        assert bool(decisions.filter(pod(), ["a"], now).refused) == (TRANSMIT in thresholds)
        assert len(decisions.prioritize(pod(), ["a"], now).steps) == 1


@pytest.mark.parametrize(
    ("used", "capacity", "asked", "refused"),
    [
        (70e6, 100_000_000, 0, False),
        (81e6, 100_000_000, 0, True),
        (70e6, 100_000_000, 20_000_000, True),
        (None, 100_000_000, 20_000_000, False),
        (81e6, 0, 0, False),
    ],
)
def test_other_resources_are_judged_by_their_measured_rates(
    used: float | None, capacity: int, asked: int, refused: bool
) -> None:
    """The node offers `capacity` bytes a second of its network, and uses `used`."""
    world = World(
        load_aware(
            supportedResources=[TRANSMIT], usageThresholds={TRANSMIT: 80},
            estimatedScalingFactors={TRANSMIT: 100},
        )
    )  # fmt: skip
    rates = {} if used is None else {TRANSMIT: used}
    world.node("a", node_state("a", rates=rates), scalars={TRANSMIT: capacity})
    asking = pod(scalars={TRANSMIT: asked} if asked else None)
    assert world.refused(asking) == (["a"] if refused else [])
    if refused:
        detail = world.detail("a", asking)
        assert re.match(rf"{TRANSMIT} usage would be .* MB/s used 10 s ago", detail)


CONNTRACK = "example.com/conntrack"


@pytest.mark.parametrize(
    ("used", "capacity", "asked", "refused"),
    [
        (70_000.0, 100_000, 0, False),
        (81_000.0, 100_000, 0, True),
        (70_000.0, 100_000, 20_000, True),
        (None, 100_000, 20_000, False),
        (81_000.0, 0, 0, False),
        (1e308, 100_000, 0, False),
    ],
)
def test_a_resource_that_no_column_measures_is_judged_by_its_gauge(
    used: float | None, capacity: int, asked: int, refused: bool
) -> None:
    """A node without the gauge, or with an absurd one, is judged by the estimates of its pods."""
    world = World(
        load_aware(usageThresholds={CONNTRACK: 80}, estimatedScalingFactors={CONNTRACK: 100})
    )
    gauges = {} if used is None else {CONNTRACK: used}
    world.node("a", node_state("a", gauges=gauges), scalars={CONNTRACK: capacity})
    asking = pod(scalars={CONNTRACK: asked} if asked else None)
    assert world.refused(asking) == (["a"] if refused else [])
    if refused:
        kind = Refusal(f"node(s) {CONNTRACK} usage exceed threshold")
        assert world.refusal("a", asking) == kind
        percent = ((used or 0.0) + asked) / 1000
        text = f"{CONNTRACK} usage would be {percent:.1f}% of 100000, over the threshold"
        assert world.detail("a", asking).startswith(text)


def test_a_gauge_that_vanishes_is_unknown_from_the_next_window_on() -> None:
    world = World(load_aware(usageThresholds={CONNTRACK: 80}))
    world.node("a", node_state("a", gauges={CONNTRACK: 90.0}), scalars={CONNTRACK: 100})
    assert world.refused() == ["a"]
    world.table.put_state(node_state("a", offset=1))
    assert (world.refused(), world.filter().counts()["estimated"]) == ([], 1)


def test_a_node_without_the_gauge_never_scores_better_than_one_with_it() -> None:
    args = {"resourceWeights": {CONNTRACK: 1}, "estimatedScalingFactors": {CONNTRACK: 100}}
    world = World(load_aware(**args))
    for name, used in (("busy", 90.0), ("quiet", 10.0), ("unknown", None)):
        gauges = {} if used is None else {CONNTRACK: used}
        world.node(name, node_state(name, gauges=gauges), scalars={CONNTRACK: 100})
    world.node("none", node_state("none"))
    names = ["quiet", "busy", "unknown", "none"]
    result = Decisions(world.table, world.rules).prioritize(pod(), names, NOW)
    assert result.percent.tolist() == [90, 10, 10, 0]


def test_the_node_with_less_network_traffic_scores_better() -> None:
    args = {"resourceWeights": {TRANSMIT: 1}, "estimatedScalingFactors": {TRANSMIT: 100}}
    world = World(load_aware(**args))
    for name, used in (("busy", 90e6), ("quiet", 10e6), ("unknown", None)):
        rates = {} if used is None else {TRANSMIT: used}
        world.node(name, node_state(name, rates=rates), scalars={TRANSMIT: 100_000_000})
    names = ["busy", "quiet", "unknown"]
    result = Decisions(world.table, world.rules).prioritize(pod(), names, NOW)
    assert result.percent[1] > result.percent[0]


def test_the_numbers_of_a_refusal_are_those_of_its_decision() -> None:
    """Explanations are written by a thread while the table changes."""
    world = World().node("a", node_state("a", cpu=3.5)).node("b", node_state("b", cpu=3.6))
    world.table.put_pod(running(pod("young", 1000), "a", age=5.0))
    result = world.filter()
    before = result.details(2)
    assert "850m on its way" in before["a"]
    for name in ("a", "b"):
        world.table.put_state(node_state(name, cpu=0.5, age=-5.0, offset=1))
        world.table.put_pod(running(pod(f"more-{name}", 1000), name, age=-5.0))
    world.table.bring_up_to_date(NOW + 5)
    assert result.details(2) == before
