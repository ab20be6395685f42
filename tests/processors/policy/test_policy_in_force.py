"""The policy in the record of a node, and what stays in force when a part becomes invalid."""

import json
import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.object_records import STRATEGY
from pipeline.processors.policy.amplification import node_ratios
from pipeline.processors.policy.effective_strategy import ANNOTATION as OF_KOORDINATOR
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.nodeslo_spec import BANDWIDTH_ANNOTATION, slo_spec
from pipeline.processors.policy.normalization import RATIO, CpuInfo, node_ratio
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.processors.slo.nodeslo import NodeSLOSpec, SystemStrategy
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import KnownNode, NodeRecord, NodeStrategy, detached
from pipeline.topics.overcommit_policy import Overcommit

ON = {"enable": True}
GOLD = {"pool": "gold"}
_FOR_GOLD = {"nodeSelector": {"matchLabels": GOLD}}
EVERYTHING: dict[str, Any] = {
    "colocation-config": {**ON, "midUnallocatedPercent": 20},
    "springtide-config": {"predictor": "max"},
    "cpu-normalization-config": {**ON, "ratioModel": {"X": {"hyperThreadEnabledRatio": 1.3}}},
    "resource-amplification-config": {
        **ON,
        "resourceAmplificationRatio": {"cpu": 1.5, "memory": 1.25},
    },
    "resource-threshold-config": {
        "nodeStrategies": [{**_FOR_GOLD, "memoryEvictThresholdPercent": 80}]
    },
    "resource-qos-config": {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True}}}},
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
    "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 100}},
    "host-application-config": {
        "applications": [
            {"name": "nginx", "priority": "koord-prod"},
            {"name": "batchd", "priority": "koord-batch"},
            {"name": "unsaid"},
        ]
    },
}
KEYS = tuple(EVERYTHING)
# The cluster-wide and per-node keys that Koordinator 1.7 reads, by key of the ConfigMap.
KOORDINATORS_KEYS = {
    "colocation-config": """enable metricAggregateDurationSeconds metricReportIntervalSeconds
        metricAggregatePolicy metricMemoryCollectPolicy cpuReclaimThresholdPercent
        cpuCalculatePolicy memoryReclaimThresholdPercent memoryCalculatePolicy degradeTimeMinutes
        updateTimeThresholdSeconds resourceDiffThreshold midReclaimMode midCPUThresholdPercent
        midMemoryThresholdPercent midUnallocatedPercent midStaticCPUReservedPercent
        midStaticMemoryReservedPercent batchCPUThresholdPercent batchMemoryThresholdPercent
        extensions""",
    "cpu-normalization-config": "enable defaultRatio ratioModel",
    "resource-amplification-config": "enable resourceAmplificationRatio",
    "resource-threshold-config": """enable cpuSuppressThresholdPercent cpuSuppressMinPercent
        cpuSuppressPolicy memoryEvictThresholdPercent memoryEvictLowerPercent
        memoryAllocatableEvictThresholdPercent memoryAllocatableEvictLowerPercent
        cpuEvictBESatisfactionUpperPercent cpuEvictBESatisfactionLowerPercent
        cpuEvictBEUsageThresholdPercent cpuEvictTimeWindowSeconds CPUEvictTimeWindowSeconds
        cpuEvictThresholdPercent cpuEvictLowerPercent cpuAllocatableEvictThresholdPercent
        cpuAllocatableEvictLowerPercent cpuEvictPolicy evictEnabledPriorityThreshold
        allocatableEvictPriorityThreshold""",
    "resource-qos-config": "policies lsrClass lsClass beClass systemClass cgroupRoot",
    "cpu-burst-config": """policy cpuBurstPercent cfsQuotaBurstPercent cfsQuotaBurstPeriodSeconds
        sharePoolThresholdPercent""",
    "system-config": """minFreeKbytesFactor watermarkScaleFactor memcgReapBackGround
        schedGroupIdentityEnabled schedIdleSaverWmark schedFeatures pageCacheLimitEnabled
        totalNetworkBandwidth""",
    "host-application-config": "applications",
}
OTHER: dict[str, Any] = {
    "colocation-config": {**ON, "midUnallocatedPercent": 30},
    "springtide-config": {"predictor": "autopilot"},
    "cpu-normalization-config": {**ON, "defaultRatio": 2},
    "resource-amplification-config": {**ON, "resourceAmplificationRatio": {"cpu": 3}},
    "resource-threshold-config": {"clusterStrategy": {"memoryEvictThresholdPercent": 90}},
    "resource-qos-config": {"clusterStrategy": {"lsClass": {"cpuQOS": {"enable": True}}}},
    "cpu-burst-config": {"clusterStrategy": {"policy": "cfsQuotaBurstOnly"}},
    "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 50}},
    "host-application-config": {"applications": [{"name": "own", "priority": "koord-mid"}]},
}


def loaded(**sections: Any) -> Policies:
    result, problems = load_policies({key: json.dumps(config) for key, config in sections.items()})
    assert not problems
    assert result.is_usable
    return result


def data(colocation: Any = None, springtide: Any = None) -> dict[str, str]:
    stated = {"colocation-config": colocation, "springtide-config": springtide}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in stated.items()
        if value is not None
    }


def policies(colocation: Any = None, springtide: Any = None) -> Policies:
    result, problems = load_policies(data(colocation, springtide))
    assert not problems
    return result


def node(**stated: Any) -> NodeRecord:
    return NodeRecord(node="n1", **stated)


def buffered(**stated: Any) -> Overcommit:
    """Settings with the buffer that holds where none is stated."""
    return Overcommit(buffer_percent=10, **stated)


USUAL = buffered()


def in_force(active: Policies, record: NodeRecord | None = None) -> NodeRecord:
    result, problems = with_policy(record or node(), active)
    assert not problems
    return result


def test_a_cluster_without_a_policy_offers_nothing() -> None:
    result, problems = load_policies(None)
    assert [str(problem) for problem in problems] == ["slo-controller-config: there is none"]
    record = in_force(result)
    assert (record.overcommit, record.strategy) == (None, None)
    assert record.colocation is not None


def test_unset_keys_have_koordinators_defaults_and_a_buffer() -> None:
    assert in_force(policies(ON)).overcommit == USUAL == Overcommit(buffer_percent=10)


def test_both_sections_reach_the_record_and_come_back_from_it() -> None:
    record = in_force(
        policies(
            {
                **ON,
                "cpuReclaimThresholdPercent": 70,
                "metricReportIntervalSeconds": 30,
                "nodePredictPolicy": {
                    "resourceDiffThresholdPercent": 7,
                    "coldStartPeriodSeconds": 600,
                },
            },
            {
                "predictor": "nsigma-v1",
                "safetyMarginPercent": 15,
                "midFormula": "proposal",
                "midReclaimPercent": 80,
                "promiseOnce": True,
                "bufferPercent": 5,
            },
        )
    )
    assert record.overcommit == Overcommit(
        cpu_reclaim_threshold_percent=70,
        mid_formula="proposal",
        mid_reclaim_percent=80,
        buffer_percent=5,
    )
    assert record.strategy == NodeStrategy(
        predictor="nsigma-v1",
        safety_margin_percent=15,
        cold_start_seconds=600,
        resource_diff_threshold_percent=7,
        report_interval_seconds=30,
    )
    assert decode_json(NodeRecord, encode_json(record)) == record


def test_an_entry_and_an_annotation_are_for_their_nodes_alone() -> None:
    gold = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}
    result = policies(
        {**ON, "nodeConfigs": [{**gold, "midUnallocatedPercent": 20}]},
        {"nodeConfigs": [{**gold, "predictor": "max"}]},
    )
    of_gold, other = in_force(result, node(labels={"pool": "gold"})), in_force(result)
    own = node(
        annotations={
            OF_KOORDINATOR: '{"midUnallocatedPercent": 30}',
            STRATEGY: '{"bufferPercent": 10}',
        }
    )
    annotated = in_force(result, own)
    assert [(record.overcommit, record.strategy) for record in (of_gold, other, annotated)] == [
        (buffered(mid_unallocated_percent=20), NodeStrategy(predictor="max")),
        (USUAL, None),
        (Overcommit(mid_unallocated_percent=30, buffer_percent=10), None),
    ]
    hashes = [record.strategy_hash for record in (of_gold, other, annotated)]
    assert len(set(hashes)) == 3
    assert in_force(result, node(labels={"pool": "gold"})).strategy_hash == hashes[0]


OF_THE_POLICY = (
    *("strategy", "overcommit", "colocation", "springtide", "strategy_hash"),
    *("host_apps", "slo", "cpu_normalization", "amplification"),
)


def test_a_start_with_an_invalid_policy_keeps_the_published_policy() -> None:
    before = in_force(loaded(**EVERYTHING), node(labels=GOLD))
    broken, problems = load_policies(dict.fromkeys(KEYS, "{"))
    assert len(problems) == len(KEYS)
    now = node(labels={"pool": "new"})
    remaining = {name: getattr(before, name) for name in OF_THE_POLICY}
    assert with_policy(now, broken, before) == (msgspec.structs.replace(now, **remaining), ())
    assert with_policy(now, broken) == (now, ())
    assert not broken.is_usable


@pytest.mark.parametrize("broken", KEYS)
def test_an_invalid_key_affects_only_itself(broken: str) -> None:
    """Both where the policy was good before, and where only what was published is known."""
    last = loaded(**EVERYTHING)
    before = in_force(last, node(labels=GOLD))
    other = {key: json.dumps(config) for key, config in OTHER.items()}
    for policies_before in (last, None):
        result, problems = load_policies(other | {broken: "{"}, policies_before)
        assert [problem.where for problem in problems if not problem.in_force] == [broken]
        record, _ = with_policy(node(labels=GOLD), result, before)
        now = in_force(loaded(**OTHER), node(labels=GOLD))
        assert record != now
        assert parts(record)[broken] == parts(before)[broken]
        for key in set(KEYS) - {broken}:
            assert parts(record)[key] == parts(now)[key], key


def test_an_invalid_reservation_is_reported() -> None:
    wrong = node(annotations={"node.koordinator.sh/reservation": '{"resources":{"cpu":"much"}}'})
    _, (problem,) = with_policy(wrong, policies(ON, {}))
    assert str(problem).startswith("annotation node.koordinator.sh/reservation: ")


RESERVATION = "node.koordinator.sh/reservation"


@pytest.mark.parametrize(
    ("annotation", "good", "broken", "then"),
    [
        (STRATEGY, {"bufferPercent": 10}, "{", {"bufferPercent": 10}),
        (STRATEGY, {"bufferPercent": 10}, {"bufferPercent": "20"}, {"bufferPercent": 10}),
        # What else it says is as it says it now.
        (STRATEGY, {"bufferPercent": 10, "midReclaimPercent": 50},
         {"bufferPercent": 101, "predictor": "max"}, {"bufferPercent": 10, "predictor": "max"}),
        (STRATEGY, {"predictor": "max"}, {"bufferPercent": "20"}, {}),
        (OF_KOORDINATOR, {"enable": False}, {"enable": "false"}, {"enable": False}),
        (OF_KOORDINATOR, {"cpuReclaimThresholdPercent": 50}, "null",
         {"cpuReclaimThresholdPercent": 50}),
        (RESERVATION, {"resources": {"cpu": "2"}}, {"resources": {"cpu": "two"}},
         {"resources": {"cpu": "2"}}),
        (RESERVATION, {"reservedCPUs": "0-3"}, {"reservedCPUs": "0-"}, {"reservedCPUs": "0-3"}),
    ],
)  # fmt: skip
def test_an_annotation_that_becomes_invalid_keeps_its_last_valid_values(
    annotation: str, good: dict[str, Any], broken: Any, then: dict[str, Any]
) -> None:
    active = policies(ON, {})
    text = broken if isinstance(broken, str) else json.dumps(broken)
    before = in_force(active, node(annotations={"a": "b", annotation: json.dumps(good)}))
    wrong = node(annotations={"a": "b", annotation: text})
    expected = in_force(active, node(annotations={"a": "b", annotation: json.dumps(then)}))
    record, problems = with_policy(wrong, active, before)
    assert [problem.where for problem in problems] == [f"annotation {annotation}"]
    assert json.loads(record.annotations[annotation]) == then
    assert msgspec.structs.replace(record, annotations=expected.annotations) == expected
    # So it is at the next change, by a watcher that has begun since, and for who compares.
    read = decode_json(NodeRecord, encode_json(record))
    assert with_policy(wrong, active, read) == (record, problems)
    assert with_policy(read, active) == (record, ())
    # What the node does not say any more is gone.
    assert with_policy(node(annotations={"a": "b"}), active, record)[0].annotations == {"a": "b"}


def test_an_invalid_springtide_config_does_not_keep_nodes_on_after_a_restart() -> None:
    before = in_force(policies(ON, {"bufferPercent": 3}))
    result, _ = load_policies(data({"enable": False}, "{"))
    record, _ = with_policy(node(), result, before)
    assert record.overcommit is None
    assert record.springtide == before.springtide
    again, _ = load_policies(data({**ON, "midUnallocatedPercent": 20}, "{"))
    record, _ = with_policy(node(), again, before)
    assert record.overcommit == Overcommit(mid_unallocated_percent=20, buffer_percent=3)


def entry(**own: Any) -> dict[str, Any]:
    return {"name": "gold", "nodeSelector": {"matchLabels": {"pool": "gold"}}, **own}


@pytest.mark.parametrize("is_known", [True, False])
def test_an_invalid_entry_keeps_its_settings_across_a_restart(is_known: bool) -> None:
    gold = node(labels={"pool": "gold"})
    last = policies({**ON, "nodeConfigs": [entry(enable=False)]}, {})
    before = in_force(last, gold)
    assert before.overcommit is None
    broken = {**ON, "midUnallocatedPercent": 7, "nodeConfigs": [entry(degradeTimeMinutes=0)]}
    result, _ = load_policies(data(broken, {}), last if is_known else None)
    assert with_policy(gold, result, before)[0].overcommit is None
    assert with_policy(node(), result, before)[0].overcommit == buffered(mid_unallocated_percent=7)


def test_an_invalid_entry_does_not_keep_the_cluster_on() -> None:
    gold = node(labels={"pool": "gold"})
    before = in_force(policies({**ON, "nodeConfigs": [entry()]}, {}), gold)
    assert before.overcommit is not None
    off = {"enable": False, "nodeConfigs": [entry(degradeTimeMinutes=0)]}
    result, _ = load_policies(data(off, {}))
    assert with_policy(gold, result, before)[0].overcommit is None


def test_an_entry_with_an_invalid_selector_is_found_by_its_name() -> None:
    gold = node(labels={"pool": "gold"})
    last = policies({**ON, "nodeConfigs": [entry(enable=False)]}, {})
    broken = {**entry(enable=True), "nodeSelector": {"matchLabels": {"pool": 7}}}
    result, _ = load_policies(data({**ON, "nodeConfigs": [broken]}, {}), last)
    assert in_force(result, gold).overcommit is None


def test_selector_keys_may_be_in_any_case_and_other_keys_are_refused() -> None:
    for key, is_on in (("matchlabels", False), ("MatchLabels", False), ("labels", True)):
        off = {**entry(enable=False), "nodeSelector": {key: {"pool": "gold"}}}
        result, problems = load_policies(data({**ON, "nodeConfigs": [off]}, {}))
        assert (in_force(result, node(labels={"pool": "gold"})).overcommit is not None) is is_on
        assert in_force(result).overcommit is not None
        assert bool(problems) is is_on


def test_a_word_too_long_for_a_record_is_cut() -> None:
    result, _ = load_policies(data({**ON, "cpuCalculatePolicy": "x" * 1000}, {}))
    record = in_force(result)
    assert decode_json(KnownNode, encode_json(record)).overcommit == record.overcommit


def parts(record: NodeRecord) -> dict[str, Any]:
    """What is in force of each key, by a reader of the record."""
    spec = slo_spec(record) or NodeSLOSpec()
    return {
        "colocation-config": record.colocation,
        "springtide-config": record.springtide,
        "cpu-normalization-config": record.cpu_normalization,
        "resource-amplification-config": record.amplification,
        "resource-threshold-config": spec.resource_used_threshold_with_be,
        "resource-qos-config": spec.resource_qos_strategy,
        "cpu-burst-config": spec.cpu_burst_strategy,
        "system-config": spec.system_strategy,
        "host-application-config": (spec.host_applications, record.host_apps),
    }


def test_the_policy_of_a_node_is_stored_in_and_read_from_its_record() -> None:
    annotations = {RATIO: "1.20", BANDWIDTH_ANNOTATION: "10G"}
    record = in_force(loaded(**EVERYTHING), node(labels=GOLD, annotations=annotations))
    written = encode_json(record)
    result = detached(decode_json(NodeRecord, written))
    assert result == record
    spec = slo_spec(result)
    assert spec is not None
    assert spec.resource_used_threshold_with_be is not None
    assert spec.resource_used_threshold_with_be.memory_evict_threshold_percent == 80
    assert spec.system_strategy == SystemStrategy(
        min_free_kbytes_factor=100, total_network_bandwidth="10G"
    )
    assert result.host_apps == {"nginx": "prod", "batchd": "batch"}
    known = CpuInfo(cpu_model="X", hyper_thread_enabled=True)
    assert node_ratio(result, known) == "1.30"
    with pytest.raises(InvalidPolicyError, match="the node's CPU is unknown"):
        node_ratio(result, None)
    assert node_ratios(result) == {"cpu": Decimal("1.80"), "memory": Decimal("1.25")}
    lean = decode_json(KnownNode, written)
    assert lean == KnownNode(
        **{name: getattr(record, name) for name in KnownNode.__struct_fields__}
    )
    assert {"slo", "labels", "colocation"}.isdisjoint(KnownNode.__struct_fields__)


def test_equal_records_share_their_raw_json() -> None:
    active = loaded(**EVERYTHING)
    made = [in_force(active, NodeRecord(node=name)) for name in ("n1", "n2")]
    read = [detached(decode_json(NodeRecord, encode_json(record))) for record in made]
    assert read == made
    for name in ("slo", "cpu_normalization", "amplification"):
        assert len({id(getattr(record, name)) for record in (*made, *read)}) == 1, name


def test_a_record_without_a_policy_has_no_spec_and_no_ratios() -> None:
    bare = decode_json(NodeRecord, b'{"version":1,"node":"n1"}')
    assert bare == node()
    assert (slo_spec(bare), node_ratio(bare, None), node_ratios(bare)) == (None, None, None)


def test_a_node_that_is_off_carries_no_table_of_models() -> None:
    result = loaded(**EVERYTHING)
    off = in_force(result, node(labels={"node.koordinator.sh/cpu-normalization-enabled": "false"}))
    assert bytes(off.cpu_normalization) == b'{"enable":false}'
    assert node_ratio(off, None) == "1.00"
    label = {"node.koordinator.sh/cpu-normalization-enabled": "maybe"}
    record, (problem,) = with_policy(node(labels=label), result)
    assert "neither true nor false" in str(problem)
    with pytest.raises(InvalidPolicyError, match="neither true nor false"):
        node_ratio(record, CpuInfo(cpu_model="X"))


def test_the_hash_covers_every_key_of_the_policy() -> None:
    hashes = {in_force(loaded(), node(labels=GOLD)).strategy_hash}
    for key, config in EVERYTHING.items():
        hashes.add(in_force(loaded(**{key: config}), node(labels=GOLD)).strategy_hash)
    assert len(hashes) == 1 + len(EVERYTHING)


def test_implausible_values_fit_into_a_record() -> None:
    huge = 2**62
    stated = {
        **ON,
        "cpuReclaimThresholdPercent": 100,
        "batchMemoryThresholdPercent": huge,
        "degradeTimeMinutes": huge,
        "updateTimeThresholdSeconds": huge,
        "metricReportIntervalSeconds": huge,
        "nodePredictPolicy": {"resourceDiffThresholdPercent": huge, "coldStartPeriodSeconds": huge},
    }
    result, problems = load_policies(data(stated))
    assert all(problem.in_force for problem in problems)
    record = in_force(result)
    assert decode_json(NodeRecord, encode_json(record)) == record


@pytest.mark.parametrize(
    ("labels", "annotations", "says"),
    [
        ({}, {}, []),
        ({}, {OF_KOORDINATOR: '{"midUnallocatedPercent":5}'}, []),
        ({}, {OF_KOORDINATOR: '{"midReclaimMode":"static"}'},
         ["colocation-config: there is no Mid"]),
        ({}, {STRATEGY: '{"promiseOnce":false}'}, ["springtide-config: promised the same idle"]),
        ({}, {OF_KOORDINATOR: '{"memoryReclaimThresholdPercent":90}'},
         ["resource-threshold-config: it is offered is evicted"]),
        (
            {"node.koordinator.sh/cpu-reclaim-ratio": "1.5"},
            {},
            [
                "colocation-config: Batch may be promised more",
                "resource-threshold-config: is held back",
            ],
        ),
        # Problems of its group are reported for the group.
        (GOLD, {OF_KOORDINATOR: '{"midUnallocatedPercent":5}'}, []),
    ],
)  # fmt: skip
def test_contradictions_of_a_nodes_own_settings_are_reported(
    labels: dict[str, str], annotations: dict[str, str], says: list[str]
) -> None:
    data = {
        "colocation-config": json.dumps(
            {**ON, "nodeConfigs": [{**_FOR_GOLD, "midReclaimMode": "static"}]}
        ),
        "resource-threshold-config": json.dumps({"clusterStrategy": ON}),
    }
    policies, _ = load_policies(data)
    record = NodeRecord(node="n1", labels=labels, annotations=annotations)
    _, problems = with_policy(record, policies)
    assert all(problem.in_force for problem in problems)
    for problem, text in zip(problems, says, strict=True):
        assert re.match(text.replace(": ", ": .*"), f"{problem.where}: {problem.text}")


@pytest.mark.parametrize(
    "broken", [("colocation-config",), ("colocation-config", "springtide-config")]
)
def test_a_node_can_switch_itself_off_under_an_invalid_policy(broken: tuple[str, ...]) -> None:
    stated = {"colocation-config": json.dumps(ON), "springtide-config": "{}"}
    good, _ = load_policies(stated)
    before, _ = with_policy(node(), good)
    assert before.overcommit is not None
    after_restart, _ = load_policies(stated | dict.fromkeys(broken, "{broken"))
    remaining, _ = with_policy(node(), after_restart, before)
    assert remaining == before
    own = node(annotations={OF_KOORDINATOR: '{"enable":false}'})
    result, problems = with_policy(own, after_restart, before)
    assert (result.overcommit, problems) == (None, ())
    # What else it says counts, too, and what cannot be read is told.
    own = node(annotations={OF_KOORDINATOR: '{"midUnallocatedPercent":7,"enable":5}'})
    result, problems = with_policy(own, after_restart, before)
    assert [problem.where for problem in problems] == [f"annotation {OF_KOORDINATOR}"]
    own = node(annotations={OF_KOORDINATOR: '{"midUnallocatedPercent":7}'})
    result, _ = with_policy(own, after_restart, before)
    assert result.overcommit == buffered(mid_unallocated_percent=7)


WRONG: list[dict[str, Any]] = [
    {"midUnallocatedPercent": 101},
    {"midUnallocatedPercent": "x"},
    {"nodePredictPolicy": 7},
    {"degradeTimeMinutes": 0, "metricAggregatePolicy": {"durations": ["5"]}},
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "after a restart"])
def test_switching_off_counts_in_an_invalid_part(wrong: dict[str, Any], is_known: bool) -> None:
    gold = node(labels=GOLD)
    good = policies({**ON, "nodeConfigs": [entry(midUnallocatedPercent=20)]}, {})
    before, last = in_force(good, gold), good if is_known else None
    assert before.overcommit is not None
    for config in (
        {**ON, "nodeConfigs": [entry(enable=False, **wrong)]},
        {**ON, "nodeConfigs": [entry(Enable=False, **wrong)]},
        {"enable": False, **wrong},
        {"enable": False, "nodeConfigs": [entry(enable=True)], **wrong},
    ):
        result, problems = load_policies(data(config, {}), last)
        assert with_policy(gold, result, before)[0].overcommit is None, config
        assert with_policy(gold, result)[0].overcommit is None, config
        # All of it is told, and what of it counts.
        refused = [problem for problem in problems if not problem.in_force]
        assert len(refused) == len(wrong)
        (note,) = [problem.text for problem in problems if problem.in_force]
        is_entry = "nodeConfigs" in config and config["enable"]
        nodes = (
            "on the nodes that the entry selects" if is_entry else "on every node of the cluster"
        )
        assert note == f"it is switched off nevertheless, {nodes}"


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_part_that_is_not_switched_off_stays_on(wrong: dict[str, Any]) -> None:
    gold = node(labels=GOLD)
    last = policies({**ON, "nodeConfigs": [entry(midUnallocatedPercent=20)]}, {})
    for config in ({**ON, "nodeConfigs": [entry(enable=True, **wrong)]}, {**wrong, "enable": True}):
        result, _ = load_policies(data(config, {}), last)
        record = in_force(result, gold)
        assert record.overcommit == buffered(mid_unallocated_percent=20)


@pytest.mark.parametrize("wrong", WRONG)
def test_each_key_of_an_annotation_counts_on_its_own(wrong: dict[str, Any]) -> None:
    for stated, overcommit in (
        ({"cpuReclaimThresholdPercent": 50}, buffered(cpu_reclaim_threshold_percent=50)),
        ({"enable": False}, None),
    ):
        own = node(annotations={OF_KOORDINATOR: json.dumps({**wrong, **stated})})
        record, problems = with_policy(own, policies(ON, {}))
        assert (record.overcommit, len(problems)) == (overcommit, len(wrong))


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"springtide-config": {"bufferPercnt": 20}}, "'bufferPercnt': is bufferPercent meant?"),
        ({"springtide-config": {"whatever": 1}}, "ignored key 'whatever': it is unknown"),
        ({"colocation-config": {"zzz": 1}}, "ignored key 'zzz': it is unknown"),
        ({"colocation-config": {"nodeStrategies": [_FOR_GOLD]}}, "is nodeConfigs meant?"),
        ({"resource-qos-config": {"nodeConfigs": [_FOR_GOLD]}}, "is nodeStrategies meant?"),
        ({"resource-threshold-config": {"enable": True}}, "is clusterStrategy.enable meant?"),
        ({"foo-config": {}}, "ignored key 'foo-config': it is unknown"),
        ({"springtide-config": {"predictor": "maxx"}}, "predictor 'maxx' is not installed"),
        ({"colocation-config": {"cpuReclaimThreshholdPercent": 3}},
         "is cpuReclaimThresholdPercent meant?"),
        ({"colocation-config": {"nodeConfig": []}}, "is nodeConfigs meant?"),
        ({"colocation-config": {"nodeConfigs": [{**_FOR_GOLD, "midUnalocatedPercent": 3}]}},
         "is midUnallocatedPercent meant?"),
        ({"resource-threshold-config": {"clusterStrategi": {}}}, "is clusterStrategy meant?"),
        ({"resource-threshold-config": {"clusterStrategy": {"cpuSupressThresholdPercent": 5}}},
         "is cpuSuppressThresholdPercent meant?"),
        ({"colocationconfig": {}}, "is colocation-config meant?"),
    ],
)  # fmt: skip
def test_an_ignored_key_is_a_warning(stated: Any, says: str) -> None:
    result, problems = load_policies({key: json.dumps(config) for key, config in stated.items()})
    assert result.is_usable
    (problem,) = problems
    assert problem.in_force
    assert says in problem.text


@pytest.mark.parametrize("key", KOORDINATORS_KEYS)
def test_no_key_of_koordinator_is_reported_as_ignored(key: str) -> None:
    values = dict.fromkeys(KOORDINATORS_KEYS[key].split())
    entries = [{**_FOR_GOLD, "name": "gold", **values}]
    config = {**values, "nodeConfigs": entries}
    if key in ("resource-threshold-config", "resource-qos-config", "cpu-burst-config",
               "system-config"):  # fmt: skip
        config = {"clusterStrategy": values, "nodeStrategies": entries}
    assert load_policies({key: json.dumps(config)})[1] == ()
    if key == "colocation-config":
        own = node(annotations={OF_KOORDINATOR: json.dumps(values)})
        assert with_policy(own, policies(ON))[1] == ()


def test_a_key_that_occurs_twice_is_a_warning_and_its_last_value_counts() -> None:
    twice = '"bufferPercent": 4, "bufferPercent": 5'
    selector = '"nodeSelector": {"matchLabels": {"a": "b"}}'
    both, problems = load_policies(data(ON, '{"nodeConfigs": [{' + selector + ", " + twice + "}]}"))
    annotated = node(annotations={STRATEGY: '{"bufferPercent": 6, "bufferPercent": 7}'})
    record, own_problems = with_policy(annotated, both)
    assert record.overcommit == Overcommit(buffer_percent=7)
    text = "key 'bufferPercent' occurs twice: the last value counts"
    assert problems == (PolicyProblem("springtide-config", text, in_force=True),)
    assert own_problems == (PolicyProblem(f"annotation {STRATEGY}", text, in_force=True),)


def test_extensions_are_for_other_programs() -> None:
    stated = {"colocation-config": {"extensions": {"a": 1}}}
    _, problems = load_policies({key: json.dumps(config) for key, config in stated.items()})
    assert problems == ()
    annotation = '{"extensions":{},"midUnalocatedPercent":3}'
    _, of_node = with_policy(node(annotations={OF_KOORDINATOR: annotation}), policies(ON))
    assert ["midUnallocatedPercent meant" in problem.text for problem in of_node] == [True]


def test_the_first_hundred_of_thousands_of_unknown_keys_are_checked() -> None:
    keys = {f"cpuReclaimThreshold{number}Percent": 1 for number in range(5000)}
    annotations = {OF_KOORDINATOR: json.dumps({**keys, "midUnallocatedPercent": 9})}
    record, problems = with_policy(node(annotations=annotations), policies(ON))
    assert len(problems) == 100
    assert record.overcommit == buffered(mid_unallocated_percent=9)


def test_the_last_of_two_spellings_of_a_key_counts_as_in_go() -> None:
    result, _ = load_policies({"colocation-config": '{"enable":true,"ENABLE":false}'})
    assert result.colocation is not None
    assert result.colocation.cluster.enable is False
