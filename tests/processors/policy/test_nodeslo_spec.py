"""The rules of quality of service: invalid parts change nothing, and the spec of a node."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.policy import slo_defaults
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.load_configmap import Loaded
from pipeline.processors.policy.load_slo_config import NO_RULES, SLO_KEYS, SloPolicy, load_slo
from pipeline.processors.policy.nodeslo_spec import BANDWIDTH_ANNOTATION, NodeRules, node_rules
from pipeline.processors.policy.slo_checks import problems_of
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.crd_schema import KINDS
from pipeline.processors.slo.nodeslo import NodeSLO, QosStrategy
from tests.processors.slo.recorded import Json, full_document, load, read_strictly
from tests.processors.slo.test_objects import schema_of

THRESHOLD, QOS, BURST, SYSTEM, HOSTS = SLO_KEYS
GOLD = {"matchLabels": {"pool": "gold"}}
DEFAULTS = SloPolicy()


def read(key: str, config: Any, last: SloPolicy = NO_RULES) -> Loaded[SloPolicy]:
    return load_slo({key: config if isinstance(config, str) else json.dumps(config)}, last)


def cluster(key: str, **values: Any) -> Loaded[SloPolicy]:
    return read(key, {"clusterStrategy": values})


def rules(policy: SloPolicy, **annotations: str) -> NodeRules:
    return node_rules(policy, {"pool": "gold"}, annotations)


def spec(policy: SloPolicy) -> Json:
    result: Json = msgspec.to_builtins(rules(policy).spec)
    return result


def reports(loaded: Loaded[SloPolicy]) -> list[str]:
    return [str(problem) for problem in loaded.problems]


# -- defaults

LATENCY_SENSITIVE = {
    "cpuQOS": {"enable": False, "groupIdentity": 2, "schedIdle": 0, "coreExpeller": True},
    "memoryQOS": {
        "enable": False, "minLimitPercent": 0, "lowLimitPercent": 0, "throttlingPercent": 0,
        "wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": -25,
        "priorityEnable": 0, "priority": 0, "oomKillGroup": 0,
    },
    "blkioQOS": {"enable": False},
    "resctrlQOS": {
        "enable": False, "catRangeStartPercent": 0, "catRangeEndPercent": 100, "mbaPercent": 100,
    },
    "networkQOS": {"enable": False},
}  # fmt: skip


def test_the_defaults_are_those_of_koordinator() -> None:
    best_effort = json.loads(json.dumps(LATENCY_SENSITIVE))
    best_effort["cpuQOS"] |= {"groupIdentity": -1, "coreExpeller": False}
    best_effort["memoryQOS"] |= {"wmarkMinAdj": 50}
    best_effort["resctrlQOS"] |= {"catRangeEndPercent": 30}
    system = json.loads(json.dumps(LATENCY_SENSITIVE))
    system["cpuQOS"] |= {"groupIdentity": 0, "coreExpeller": False}
    system["memoryQOS"] |= {"wmarkRatio": 0, "wmarkScalePermill": 50, "wmarkMinAdj": 0}
    assert spec(DEFAULTS) == {
        "resourceUsedThresholdWithBE": {
            "enable": False,
            "cpuSuppressThresholdPercent": 65,
            "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70,
            "cpuEvictPolicy": "evictByRealLimit",
        },
        "resourceQOSStrategy": {
            "policies": {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"},
            "lsrClass": LATENCY_SENSITIVE,
            "lsClass": LATENCY_SENSITIVE,
            "beClass": best_effort,
            "systemClass": system,
            "cgroupRoot": {"blkioQOS": {"enable": False}},
        },
        "cpuBurstStrategy": {
            "policy": "none",
            "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300,
            "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 50,
        },
        "systemStrategy": {"totalNetworkBandwidth": "0"},
        "hostApplications": (),
    }
    for block in DEFAULTS:
        assert block is not None
        assert not list(problems_of(block.cluster))


@pytest.mark.parametrize("data", [{}, dict.fromkeys(SLO_KEYS, " \n"), {"other": "{"}])
def test_without_a_key_its_defaults_are_in_force(data: dict[str, str]) -> None:
    last = cluster(THRESHOLD, enable=True).policy
    assert load_slo(data, last) == (DEFAULTS, False, ())


def test_without_the_config_map_the_defaults_are_in_force() -> None:
    loaded = load_slo(None, cluster(THRESHOLD, enable=True).policy)
    assert (loaded.policy, loaded.failed) == (DEFAULTS, True)
    assert reports(loaded) == ["slo-controller-config: there is none"]


# -- a part for the cluster


@pytest.mark.parametrize(
    ("key", "part", "says"),
    [
        (THRESHOLD, [], "clusterStrategy is a list, not an object"),
        (THRESHOLD, {"enable": 1}, "$.enable"),
        (THRESHOLD, {"cpuSuppressThresholdPercent": 101},
         "cpuSuppressThresholdPercent is 101, allowed is 0 to 100"),
        (THRESHOLD, {"cpuSuppressPolicy": "cpu"}, "$.cpuSuppressPolicy"),
        (THRESHOLD, {"memoryEvictLowerPercent": 70},
         "memoryEvictLowerPercent is 70, allowed is less than memoryEvictThresholdPercent, which "
         "is 70"),
        (THRESHOLD, {"cpuEvictTimeWindowSeconds": 0},
         "cpuEvictTimeWindowSeconds is 0, allowed is 1 or more"),
        (THRESHOLD, {"evictEnabledPriorityThreshold": 2147483648},
         "evictEnabledPriorityThreshold is 2147483648, allowed is -2147483648 to 2147483647"),
        (THRESHOLD, {"allocatableEvictPriorityThreshold": 8000},
         "allocatableEvictPriorityThreshold is 8000, allowed is 0 to 7999"),
        (THRESHOLD, {"cpuAllocatableEvictThresholdPercent": 2**63},
         "allowed is 0 to 9223372036854775807"),
        (QOS, {"beClass": {"memoryQOS": {"wmarkMinAdj": 51}}},
         "beClass.memoryQOS.wmarkMinAdj is 51, allowed is -25 to 50"),
        (QOS, {"beClass": {"resctrlQOS": {"catRangeStartPercent": 30}}},
         "beClass.resctrlQOS.catRangeStartPercent is 30, allowed is less than catRangeEndPercent, "
         "which is 30"),
        (QOS, {"lsClass": {"networkQOS": {"ingressLimit": 101}}},
         "lsClass.networkQOS.ingressLimit is 101, allowed is 0 to 100"),
        (QOS, {"lsClass": {"networkQOS": {"ingressLimit": "fast"}}},
         "lsClass.networkQOS.ingressLimit: 'fast' is not a Kubernetes quantity"),
        (QOS, {"lsClass": {"networkQOS": {"egressLimit": "-1m"}}},
         "lsClass.networkQOS.egressLimit is -1m, allowed is 0 or more"),
        (QOS, {"cgroupRoot": {"blkioQOS": {"blocks": [{}, {"ioCfg": {"readIOPS": -1}}]}}},
         "cgroupRoot.blkioQOS.blocks[1].ioCfg.readIOPS is -1, allowed is 0 or more"),
        (BURST, {"policy": "always"}, "$.policy"),
        (BURST, {"cpuBurstPercent": 0}, "is 0, allowed is 1 to 10000"),
        (BURST, {"cfsQuotaBurstPercent": 99}, "is 99, allowed is 100 or more"),
        (BURST, {"cfsQuotaBurstPeriodSeconds": -2}, "is -2, allowed is -1 or more"),
        (SYSTEM, {"watermarkScaleFactor": 401}, "allowed is 1 to 400"),
        (SYSTEM, {"schedFeatures": {"A": 1}}, "$.schedFeatures"),
        (SYSTEM, {"totalNetworkBandwidth": "1Tb"},
         "totalNetworkBandwidth: '1Tb' is not a Kubernetes quantity"),
        (HOSTS, {}, "$.applications"),
        (HOSTS, [{"priority": "koord-prod"}], "an application has no name"),
        (HOSTS, [{"name": "a"}, {"name": "a"}], "application 'a' is listed twice"),
        (HOSTS, [{"name": "a", "cgroupPath": {"base": "/"}}], "cgroupPath.base"),
    ],
)  # fmt: skip
def test_an_invalid_cluster_part_keeps_the_last_valid_one(key: str, part: Any, says: str) -> None:
    text = json.dumps({"applications" if key == HOSTS else "clusterStrategy": part})
    good = {
        **dict.fromkeys(SLO_KEYS, '{"clusterStrategy":{}}'),
        THRESHOLD: '{"clusterStrategy":{"cpuSuppressThresholdPercent":60}}',
        HOSTS: '{"applications":[{"name":"nginx"}]}',
    }
    last = load_slo(good).policy
    place = SLO_KEYS.index(key)
    for before in (last, NO_RULES):
        loaded = load_slo(good | {key: text}, before)
        assert loaded.failed
        (problem,) = reports(loaded)
        assert problem.startswith(f"{key}: ")
        assert says in problem
        assert problem.endswith("; it is not in force")
        assert loaded.policy[place] == before[place]
        others = [block for i, block in enumerate(loaded.policy) if i != place]
        assert others == [block for i, block in enumerate(last) if i != place]


def test_a_part_that_was_never_valid_is_not_written() -> None:
    loaded = read(BURST, "{")
    result = spec(loaded.policy)
    assert "cpuBurstStrategy" not in result
    assert result["systemStrategy"] == {"totalNetworkBandwidth": "0"}


def test_keys_may_be_in_any_case_and_the_exact_one_counts() -> None:
    text = (
        '{"ClusterStrategy":{"BEClass":{"memoryqos":{"WmarkRatio":90,"wmarkRatio":91}}},'
        '"NODESTRATEGIES":[{"NodeSelector":{"matchLabels":{"pool":"gold"}},'
        '"beclass":{"CPUQOS":{"Enable":true}}}]}'
    )
    result = spec(read(QOS, text).policy)["resourceQOSStrategy"]["beClass"]
    assert (result["memoryQOS"]["wmarkRatio"], result["cpuQOS"]["enable"]) == (91, True)


def test_null_is_ignored_and_an_unknown_key_with_a_warning() -> None:
    text = '{"clusterStrategy":{"enable":null,"new":{"a":1}},"nodeStrategies":null}'
    policy, failed, (problem,) = read(THRESHOLD, text)
    assert (policy, failed) == (DEFAULTS, False)
    assert (problem.text, problem.in_force) == ("ignored key 'new': it is unknown", True)


# -- entries


def test_the_first_selected_entry_counts_and_objects_merge_key_by_key() -> None:
    config = {
        "clusterStrategy": {"beClass": {"memoryQOS": {"enable": True, "wmarkRatio": 80}}},
        "nodeStrategies": [
            {"nodeSelector": {"matchLabels": {"pool": "iron"}}, "policies": {"cpuPolicy": "x"}},
            {"nodeSelector": GOLD, "beClass": {"memoryQOS": {"wmarkRatio": 90}}},
            {"nodeSelector": {}, "beClass": {"memoryQOS": {"enable": False}}},
        ],
    }
    result = spec(read(QOS, config).policy)["resourceQOSStrategy"]
    memory = result["beClass"]["memoryQOS"]
    assert (memory["enable"], memory["wmarkRatio"], memory["wmarkMinAdj"]) == (True, 90, 50)
    assert result["lsClass"] == LATENCY_SENSITIVE


def test_an_entry_is_checked_together_with_the_clusters_settings() -> None:
    entry = {"nodeSelector": GOLD, "memoryEvictLowerPercent": 65}
    good = {"nodeStrategies": [entry]}
    last = read(THRESHOLD, good)
    assert not last.problems
    config = {"clusterStrategy": {"memoryEvictThresholdPercent": 60}, "nodeStrategies": [entry]}
    loaded = read(THRESHOLD, config, last.policy)
    assert "nodeStrategies[0]: memoryEvictLowerPercent is 65, allowed is less" in reports(loaded)[0]
    # What it said when it was good is no good over what the cluster says now.
    result = spec(loaded.policy)["resourceUsedThresholdWithBE"]
    assert result["memoryEvictThresholdPercent"] == 60
    assert "memoryEvictLowerPercent" not in result


# -- host applications


def apps(*names: str) -> list[Json]:
    return [{"name": name, "priority": "koord-prod", "qos": "LS"} for name in names]


def test_applications_of_an_entry_replace_those_of_the_cluster() -> None:
    config = {
        "applications": apps("nginx"),
        "nodeConfigs": [
            {"nodeSelector": GOLD, "applications": apps("a", "b")},
            {"nodeSelector": {"matchLabels": {"pool": "iron"}}},
        ],
    }
    loaded = read(HOSTS, config)
    assert not loaded.problems
    for labels, names in (({"pool": "gold"}, ["a", "b"]), ({"pool": "iron"}, []), ({}, ["nginx"])):
        result = node_rules(loaded.policy, labels, {}).spec.host_applications
        assert result is not None
        assert [one.name for one in result] == names


def test_an_unknown_class_is_accepted_with_a_warning() -> None:
    loaded = read(HOSTS, {"applications": [{"name": "a", "priority": "gold", "qos": "LSX"}]})
    assert reports(loaded) == [
        f"{HOSTS}: priority of application 'a' is 'gold', allowed are koord-prod, koord-mid, "
        "koord-batch, koord-free",
        f"{HOSTS}: qos of application 'a' is 'LSX', allowed are LSE, LSR, LS, BE, SYSTEM",
    ]
    assert spec(loaded.policy)["hostApplications"] == (
        {"name": "a", "priority": "gold", "qos": "LSX"},
    )


def test_limits_of_disks_of_a_class_that_has_none_are_reported() -> None:
    disks = {"blkioQOS": {"enable": True, "blocks": [{"name": "sda", "type": "device"}]}}
    assert reports(cluster(QOS, beClass=disks, cgroupRoot=disks)) == []
    assert reports(cluster(QOS, beClass=disks, lsClass=disks)) == [
        f"{QOS}: lsClass.blkioQOS has no effect, only beClass and cgroupRoot have disks"
    ]


# -- a node


@pytest.mark.parametrize("text", ["10G", "0", "1e10", "40000M"])
def test_the_bandwidth_of_a_node_counts_before_that_of_the_cluster(text: str) -> None:
    policy = cluster(SYSTEM, totalNetworkBandwidth="1G", minFreeKbytesFactor=100).policy
    result = rules(policy, **{BANDWIDTH_ANNOTATION: text})
    assert not result.problems
    assert msgspec.to_builtins(result.spec.system_strategy) == {
        "minFreeKbytesFactor": 100,
        "totalNetworkBandwidth": text,
    }


@pytest.mark.parametrize("text", ["", "fast", "-1m", "1e9999", "NaN", " 1G"])
def test_an_invalid_bandwidth_is_ignored_and_reported(text: str) -> None:
    policy = cluster(SYSTEM, totalNetworkBandwidth="1G").policy
    result = rules(policy, **{BANDWIDTH_ANNOTATION: text})
    assert result.spec == rules(policy).spec
    (problem,) = result.problems
    assert str(problem).startswith(f"annotation {BANDWIDTH_ANNOTATION}: ")
    assert str(problem).endswith("it is not in force")


def test_the_bandwidth_annotation_counts_without_a_valid_policy() -> None:
    policy = read(SYSTEM, "{").policy
    result = rules(policy, **{BANDWIDTH_ANNOTATION: "1G"})
    assert msgspec.to_builtins(result.spec.system_strategy) == {"totalNetworkBandwidth": "1G"}


def test_koordinators_example_configuration_is_resolved() -> None:
    """Of the ConfigMap that Koordinator's page shows all but `system-config`, which lacks a
    comma."""
    loaded = load_slo(load("slo-config.yaml")["data"])
    (problem,) = reports(loaded)
    assert problem.startswith(f"{SYSTEM}: not JSON: ")
    anolis = {"kubernetes.io/kernel": "anolis"}
    own = node_rules(loaded.policy, anolis, {}).spec
    other = node_rules(loaded.policy, {}, {}).spec
    threshold, burst = own.resource_used_threshold_with_be, own.cpu_burst_strategy
    assert threshold is not None
    assert burst is not None
    assert (threshold.cpu_evict_be_usage_threshold_percent,
            threshold.memory_evict_lower_percent) == (80, 65)  # fmt: skip
    assert (burst.policy, burst.cfs_quota_burst_percent) == ("cfsQuotaBurstOnly", 400)
    assert other.cpu_burst_strategy == slo_defaults.BURST
    assert other.resource_qos_strategy == slo_defaults.QOS, "it says the defaults"
    assert own.system_strategy is other.system_strategy is None
    as_object = {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "n"},
        "spec": json.loads(msgspec.json.encode(own)),
    }
    assert isinstance(read_strictly(as_object), NodeSLO)


# -- laws


@given(
    st.sampled_from(SLO_KEYS),
    st.text() | st.from_regex(r'\{"[a-zA-Z]{1,9}": ?[0-9a-z"{}.-]{0,9}\}'),
)
def test_no_text_breaks_it(key: str, text: str) -> None:
    loaded = load_slo({key: text}, DEFAULTS)
    assert all(loaded.policy)
    assert loaded.failed == any(
        problem.where == key and not problem.in_force for problem in loaded.problems
    )


def test_merging_equals_a_json_merge() -> None:
    whole = schema_of(KINDS[1])["properties"]["spec"]["properties"]["resourceQOSStrategy"]
    all_of_it = msgspec.convert(full_document(whole), QosStrategy)
    assert merge(slo_defaults.QOS, QosStrategy()) == slo_defaults.QOS
    assert merge(QosStrategy(), slo_defaults.QOS) == slo_defaults.QOS
    assert merge(slo_defaults.QOS, all_of_it) == all_of_it
    one: Document = slo_defaults.QOS
    assert msgspec.to_builtins(merge(all_of_it, one)) == _json_merged(
        msgspec.to_builtins(all_of_it), msgspec.to_builtins(one)
    )


def _json_merged(usual: Any, own: Any) -> Any:
    if not (isinstance(usual, dict) and isinstance(own, dict)):
        return own
    return usual | {name: _json_merged(usual.get(name), value) for name, value in own.items()}
