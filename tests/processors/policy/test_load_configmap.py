"""Invalid parts of a section change nothing and are reported; valid parts beside them count."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.policy.amplification import AMPLIFICATION
from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    KEYS,
    Colocation,
    problems_of,
)
from pipeline.processors.policy.config_sections import Section, document
from pipeline.processors.policy.effective_strategy import ANNOTATION, effective_strategy
from pipeline.processors.policy.load_configmap import Policy, load_section
from pipeline.processors.policy.load_slo_config import BURST
from pipeline.processors.policy.normalization import NORMALIZATION
from pipeline.processors.policy.springtide_config import SPRINGTIDE

KEY = COLOCATION.key

GOLD = {"matchLabels": {"pool": "gold"}}


def read(config: Any, last: Policy[Colocation] | None = None) -> Policy[Colocation]:
    loaded = load_section(
        COLOCATION, {KEY: config if isinstance(config, str) else json.dumps(config)}, last
    )
    assert loaded.policy is not None
    assert not loaded.failed
    return loaded.policy


def reports(config: Any, last: Policy[Colocation] | None = None) -> list[str]:
    text = config if isinstance(config, str) else json.dumps(config)
    return [str(problem) for problem in load_section(COLOCATION, {KEY: text}, last).problems]


def strategy_of(policy: Policy[Colocation], **annotated: Any) -> dict[str, Any]:
    annotations = {ANNOTATION: json.dumps(annotated)} if annotated else {}
    return document(effective_strategy(policy, {"pool": "gold"}, annotations).strategy)


def test_the_defaults_are_those_of_koordinator() -> None:
    assert document(DEFAULTS) == {
        "enable": False,
        "metricAggregateDurationSeconds": 300,
        "metricReportIntervalSeconds": 60,
        "metricAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "metricMemoryCollectPolicy": "usageWithoutPageCache",
        "cpuReclaimThresholdPercent": 60,
        "cpuCalculatePolicy": "usage",
        "memoryReclaimThresholdPercent": 65,
        "memoryCalculatePolicy": "usage",
        "degradeTimeMinutes": 15,
        "updateTimeThresholdSeconds": 300,
        "resourceDiffThreshold": 0.1,
        "midCPUThresholdPercent": 100,
        "midMemoryThresholdPercent": 100,
        "midUnallocatedPercent": 0,
        "midStaticCPUReservedPercent": 0,
        "midStaticMemoryReservedPercent": 0,
    }
    assert not list(problems_of(DEFAULTS))
    assert {"batchCPUThresholdPercent", "midReclaimMode", "nodePredictPolicy"} < {*KEYS.values()}


@pytest.mark.parametrize(
    ("section", "text", "says"),
    [
        (COLOCATION, "null", "null, not an object"),  # a nil pointer upstream
        (COLOCATION, "[]", "a list, not an object"),
        (COLOCATION, '{"enable":true,}', "not JSON"),
        (COLOCATION, "{" * 100_000, "not JSON"),
        (COLOCATION, '{"degradeTimeMinutes":15.5}', "degradeTimeMinutes"),
        (COLOCATION, '{"degradeTimeMinutes":"15"}', "degradeTimeMinutes"),
        (COLOCATION, '{"degradeTimeMinutes":1e400}', "not JSON"),
        (COLOCATION, '{"resourceDiffThreshold":0}',
         "resourceDiffThreshold is 0, allowed is more than 0"),
        (COLOCATION, '{"midCPUThresholdPercent":101}',
         "midCPUThresholdPercent is 101, allowed is 0 to 100"),
        (COLOCATION, '{"degradeTimeMinutes":9223372036854775808}',
         "allowed is 1 to 9223372036854775807"),
        (COLOCATION, '{"metricMemoryCollectPolicy":""}', "metricMemoryCollectPolicy is empty"),
        (COLOCATION, '{"nodePredictPolicy":{"coldStartPeriodSeconds":-1}}',
         "coldStartPeriodSeconds is -1, allowed is 0 to"),
        (COLOCATION, '{"nodePredictPolicy":{"resourceDiffThresholdPercent":"7"}}',
         "resourceDiffThresholdPercent"),
        (COLOCATION, '{"metricAggregatePolicy":{"durations":["5 minutes"]}}', "'5 minutes'"),
        (SPRINGTIDE, '{"predictor":""}', "predictor is not a name"),
        (SPRINGTIDE, '{"safetyMarginPercent":-1}',
         "safetyMarginPercent is -1.0, allowed is 0 to 1000"),
        (SPRINGTIDE, '{"safetyMarginPercent":1e999}', "not JSON"),
        (SPRINGTIDE, '{"midFormula":"v9"}', "midFormula is 'v9', allowed are proposal"),
        (SPRINGTIDE, '{"bufferPercent":101}', "bufferPercent is 101, allowed is 0 to 100"),
        (SPRINGTIDE, '{"promiseOnce":"yes"}', "promiseOnce"),
        (SPRINGTIDE, "null", "null, not an object"),
        (AMPLIFICATION, '{"resourceAmplificationRatio":{"memory":0.9}}',
         "of 'memory' is 0.9, allowed is 1 or more"),
        (AMPLIFICATION, '{"resourceAmplificationRatio":{"cpu":0}}',
         "of 'cpu' is 0, allowed is more than 0"),
        (AMPLIFICATION, '{"resourceAmplificationRatio":{"cpu":1001}}', "and at most 1000"),
        (AMPLIFICATION, '{"resourceAmplificationRatio":{"cpu":"2"}}', "resourceAmplificationRatio"),
        (AMPLIFICATION, '{"resourceAmplificationRatio":[]}', "resourceAmplificationRatio"),
        (NORMALIZATION, '{"defaultRatio":0}', "defaultRatio is 0, allowed is 1 to 5"),
        (NORMALIZATION, '{"defaultRatio":"2"}', "defaultRatio"),
        (NORMALIZATION, '{"ratioModel":{"X":{"baseRatio":10}}}',
         "ratioModel 'X': baseRatio is 10"),
        (NORMALIZATION, '{"ratioModel":[]}', "ratioModel"),
        (NORMALIZATION, '{"ratioModel":{"X":null}}', "ratioModel"),
        (NORMALIZATION, '{"enable":1}', "enable"),
    ],
)  # fmt: skip
def test_an_invalid_cluster_part_keeps_the_last_valid_one(
    section: Section[Any], text: str, says: str
) -> None:
    last = load_section(section, {section.key: '{"enable":true}'}).policy
    assert last is not None
    for before in (last, None):
        loaded = load_section(section, {section.key: text}, before)
        assert (loaded.policy, loaded.failed) == (before, True)
        (problem,) = loaded.problems
        assert says in str(problem)
        assert str(problem).endswith("; it is not in force")


@pytest.mark.parametrize("data", [{}, {KEY: ""}, {KEY: " \n"}, {"other": "{}"}])
def test_without_the_key_the_defaults_are_in_force(data: dict[str, str]) -> None:
    assert load_section(COLOCATION, data, read({"enable": True})) == (Policy(DEFAULTS), False, ())


def test_an_unknown_text_is_accepted_with_a_warning() -> None:
    config = {"cpuCalculatePolicy": "usgae", "midReclaimMode": "Static"}
    assert reports(config) == [
        f"{KEY}: cpuCalculatePolicy is 'usgae', allowed are usage, maxUsageRequest",
        f"{KEY}: midReclaimMode is 'Static', allowed are static, dynamic",
    ]
    assert read(config).cluster.cpu_calculate_policy == "usgae"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"resourceDiffThreshold": 50},
         "resourceDiffThreshold is 50, which is 5000% of the present amount: usual is up to 1"),
        ({"midStaticCPUReservedPercent": 101},
         "midStaticCPUReservedPercent is 101, usual is 0 to 100"),
        ({"midStaticMemoryReservedPercent": 2**63 - 1},
         f"midStaticMemoryReservedPercent is {2**63 - 1}, usual is 0 to 100"),
    ],
)  # fmt: skip
def test_values_that_koordinators_admission_refuses_are_accepted_with_a_warning(
    config: dict[str, Any], says: str
) -> None:
    assert reports(config) == [f"{KEY}: {says}"]
    assert strategy_of(read(config)) == document(DEFAULTS) | config
    _, _, problems = effective_strategy(read({}), {}, {ANNOTATION: json.dumps(config)})
    assert [(problem.text, problem.in_force) for problem in problems] == [(says, True)]


def test_values_that_upstream_admits_give_no_warning() -> None:
    config = {"resourceDiffThreshold": 1, "midStaticCPUReservedPercent": 100}
    assert not reports({**config, "midStaticMemoryReservedPercent": 100})


def test_an_unreported_span_is_accepted_with_a_warning() -> None:
    known = ["5m", "600s", "0.5h", "7m", "1h", "30s"]
    config = {"metricAggregatePolicy": {"durations": ["29s", *known, "61m"]}}
    assert reports(config) == [
        f"{KEY}: metricAggregatePolicy.durations has {span!r}, which is not reported: reported are "
        "30 s to 3600 s"
        for span in ("29s", "61m")
    ]
    assert strategy_of(read(config))["metricAggregatePolicy"] == config["metricAggregatePolicy"]
    assert not reports({"metricAggregatePolicy": {"durations": known}})
    entry = {"nodeSelector": GOLD, **config}
    places = [text.partition(": ")[0] for text in reports({"nodeConfigs": [entry]})]
    assert places == [f"{KEY}.nodeConfigs[0]"] * 2


def test_keys_may_be_in_any_case_and_the_exact_one_counts() -> None:
    config = '{"DegradeTimeMinutes":7,"MIDCPUThresholdPercent":5,"midCPUThresholdPercent":6}'
    cluster = read(config).cluster
    assert (cluster.degrade_time_minutes, cluster.mid_cpu_threshold_percent) == (7, 6)


def test_keys_within_objects_and_of_entries_may_be_in_any_case() -> None:
    config = {
        "NodePredictPolicy": {"coldstartperiodseconds": 60},
        "nodeconfigs": [{"NodeSelector": GOLD, "DegradeTimeMinutes": 4}],
    }
    assert strategy_of(read(config)) == document(DEFAULTS) | {
        "nodePredictPolicy": {"coldStartPeriodSeconds": 60}, "degradeTimeMinutes": 4,
    }  # fmt: skip


def test_the_first_selected_entry_counts_and_objects_merge_key_by_key() -> None:
    entries = [
        {"nodeSelector": {"matchLabels": {"pool": "iron"}}, "degradeTimeMinutes": 1},
        {
            "name": "first",
            "nodeSelector": GOLD,
            "extensions": {"b": 2},
            "nodePredictPolicy": {"coldStartPeriodSeconds": 60},
        },
        {"nodeSelector": {}, "degradeTimeMinutes": 3},
    ]
    config = {
        "extensions": {"a": 1, "b": 1},
        "nodePredictPolicy": {"resourceDiffThresholdPercent": 7},
        "nodeConfigs": entries,
    }
    result = strategy_of(read(config), metricAggregatePolicy={"durations": ["1m"]})
    assert result == document(DEFAULTS) | {
        "extensions": {"a": 1, "b": 2},
        "nodePredictPolicy": {"resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 60},
        "metricAggregatePolicy": {"durations": ["1m"]},
    }


class Keys(NamedTuple):
    """The keys of a section: cluster's part (empty: the whole), entries, and a number."""

    section: Section[Any]
    cluster: str
    entries: str
    number: str

    def load(
        self, cluster: int | None, entries: Any, last: Policy[Any] | None = None
    ) -> tuple[Policy[Any], list[str]]:
        part = {} if cluster is None else {self.number: cluster}
        config = {**({self.cluster: part} if self.cluster else part), self.entries: entries}
        loaded = load_section(self.section, {self.section.key: json.dumps(config)}, last)
        assert loaded.policy is not None
        assert not loaded.failed
        return loaded.policy, [str(problem) for problem in loaded.problems]

    def number_of(self, policy: Policy[Any]) -> int:
        number: int = document(policy.for_labels({"pool": "gold"}))[self.number]
        return number


SECTIONS = pytest.mark.parametrize(
    "keys",
    [
        Keys(COLOCATION, "", "nodeConfigs", "degradeTimeMinutes"),
        Keys(BURST, "clusterStrategy", "nodeStrategies", "cpuBurstPercent"),
    ],
    ids=lambda keys: keys.section.key,
)


@SECTIONS
@pytest.mark.parametrize("number", [0, "1"])
@pytest.mark.parametrize("name", ["", "x"])
def test_an_invalid_entry_keeps_its_last_valid_settings(number: Any, name: str, keys: Keys) -> None:
    last, _ = keys.load(None, [{"nodeSelector": GOLD, keys.number: 4}])
    entry = {"name": name, "nodeSelector": GOLD, keys.number: number}
    result, (problem,) = keys.load(5, [entry], last)
    assert keys.number in problem
    assert f"{keys.entries}[0]{name and ' (x)'}: " in problem
    assert keys.number_of(result) == 4
    without, _ = keys.load(5, [entry])
    assert keys.number_of(without) == 5, "nothing was valid before"
    # An entry that was never valid follows the cluster's present settings.
    again, _ = keys.load(6, [entry], without)
    assert keys.number_of(again) == 6


@SECTIONS
@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "has no nodeSelector and is for no node"),
        ({"nodeSelector": 7}, "nodeSelector: "),
        ({"nodeSelector": {"matchLabels": {"a b": "c"}}}, "'a b' is not the key of a label"),
        ({"nodeSelector": {"matchLabels": {"a": "c d"}}}, "'c d' is not the value of a label"),
        (
            {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "operator In needs values",
        ),
        ("entry", "a text, not an object"),
    ],
)
def test_an_entry_with_an_invalid_selector_is_for_no_node(
    entry: Any, says: str, keys: Keys
) -> None:
    result, problems = keys.load(None, [entry, {"nodeSelector": {}, keys.number: 9}])
    assert says in problems[0]
    assert keys.number_of(result) == 9


@SECTIONS
def test_entries_that_are_not_a_list_leave_the_last_ones(keys: Keys) -> None:
    last, _ = keys.load(None, [{"nodeSelector": GOLD, keys.number: 4}])
    result, problems = keys.load(None, {}, last)
    assert result == last
    where = f"{keys.section.key}.{keys.entries}"
    assert problems == [f"{where}: an object, not a list; it is not in force"]


@given(st.text() | st.from_regex(r'\{"[a-zA-Z]{1,9}": ?[0-9a-z".-]{0,9}\}'))
def test_no_text_breaks_it(text: str) -> None:
    loaded = load_section(COLOCATION, {KEY: text}, Policy(DEFAULTS))
    assert loaded.policy is not None
    assert loaded.failed == bool([p for p in loaded.problems if not p.in_force])
