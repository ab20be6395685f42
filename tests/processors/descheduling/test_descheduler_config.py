"""A DeschedulerConfiguration is read as a whole; each problem has its path and its effect."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.descheduling.descheduler_config import (
    CONFIG_MAP_KEY,
    NO_DESCHEDULING,
    load_descheduling,
    read_configuration,
    read_tree,
)
from pipeline.processors.descheduling.field_types import CountOrPercent
from tests.processors.descheduling.configurations import (
    ARGS,
    EVERY_KEY,
    NAMES,
    configuration,
    every_key,
    read,
    refused,
)

# The shipped example of Koordinator, shortened to what its ConfigMap has beside comments.
SHIPPED = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
enableContentionProfiling: true
enableProfiling: true
healthzBindAddress: 0.0.0.0:10251
metricsBindAddress: 0.0.0.0:10251
leaderElection:
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: koordinator-system
deschedulingInterval: 10s
dryRun: false
profiles:
- name: koord-descheduler
  plugins:
    deschedule: {disabled: [{name: "*"}]}
    balance: {enabled: []}
    evict: {disabled: [{name: "*"}], enabled: [{name: MigrationController}]}
    filter: {disabled: [{name: "*"}], enabled: [{name: MigrationController}]}
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      evictionPolicy: Eviction
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      lowThresholds: {cpu: 45, memory: 55}
      highThresholds: {cpu: 75, memory: 80}
      evictableNamespaces: {exclude: [kube-system, koordinator-system]}
"""
PLUGIN = "profiles[0].pluginConfig[0].args"


def test_shipped_example_is_in_force_without_a_problem() -> None:
    descheduling, problems = read_configuration(SHIPPED)
    assert descheduling is not None
    assert problems == ()
    assert descheduling.keys.descheduling_interval_seconds == 10
    (profile,) = descheduling.profiles
    assert profile.enabled == {
        "deschedule": (), "balance": (), "evict": ("MigrationController",),
        "filter": ("MigrationController",),
    }  # fmt: skip
    assert descheduling.low_node_load is not None
    assert descheduling.low_node_load.pools[0].high_percent == {"cpu": 75, "memory": 80}


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_every_key_is_read(dump: Any) -> None:
    descheduling, problems = read_configuration(dump(EVERY_KEY))
    assert descheduling is not None
    assert [problem for problem in problems if not problem.in_force] == []
    keys, (profile,) = descheduling.keys, descheduling.profiles
    assert (keys.dry_run, keys.descheduling_interval_seconds) == (False, 120)
    caps = keys.most_evictions, keys.most_evictions_per_node, keys.most_evictions_per_namespace
    assert caps == (30, 3, 10)
    migration = profile.migration
    assert migration.evict_per_second == 2.5
    assert migration.max_migrating_per_workload == CountOrPercent(percent=10)
    assert migration.max_unavailable_per_workload == CountOrPercent(count=2)
    assert migration.object_limiters["workload"].duration_seconds == 300
    assert migration.arbitration_args is not None
    assert migration.arbitration_args.interval_seconds == 0.5
    assert migration.node_selector is not None
    assert migration.node_selector.match_labels == {"pool": "gold"}
    assert [*profile.args] == [name for name in NAMES if name != "LowNodeLoad"]


def _objects(tree: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a tree whose keys are fixed, by path."""
    if isinstance(tree, dict):
        # Maps by resource or label have no fixed keys.
        if path.rpartition(".")[2] not in ("matchLabels", "objectLimiters") and not any(
            name in tree for name in ("cpu", "MetricResource")
        ):
            yield path, tree
        for key, value in tree.items():
            yield from _objects(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from _objects(item, f"{path}[{i}]")


PATHS = [path for path, _ in _objects(EVERY_KEY)]
LOW = f"profiles[0].pluginConfig[{[*NAMES].index('LowNodeLoad')}].args"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path or "top")
def test_an_unknown_key_anywhere_is_named_with_its_path(path: str) -> None:
    tree = every_key()
    dict(_objects(tree))[path]["fooBar"] = 1
    _, problems = read(tree)
    assert refused(problems) == [f"{path}.fooBar: unknown key".removeprefix(".")]


@pytest.mark.parametrize(
    ("path", "key", "text"),
    [
        ("", "highThresholds", "it belongs to the args of LowNodeLoad"),
        ("", "maxMigratingPerNode", "it belongs to the args of MigrationController"),
        ("", "pluginConfig", "it belongs to a profile"),
        (LOW, "consecutiveAbnormalities", "it belongs to anomalyCondition of LowNodeLoad"),
        (LOW, "maxNoOfPodsToEvictPerNode", "it belongs to the top level"),
    ],
)
def test_key_of_another_object_is_reported_with_its_place(path: str, key: str, text: str) -> None:
    tree = every_key()
    dict(_objects(tree))[path][key] = 1
    _, problems = read(tree)
    assert refused(problems) == [f"{path}.{key}: unknown key: {text}".removeprefix(".")]


def test_high_threshold_of_low_node_utilization_is_recognized() -> None:
    tree = every_key()
    dict(_objects(tree))[LOW]["targetThresholds"] = {"cpu": 1}
    _, problems = read(tree)
    text = "unknown key (is highThresholds meant?)"
    assert refused(problems) == [f"{LOW}.targetThresholds: {text}"]


def test_plugin_that_is_written_as_a_text_is_shown_as_an_object() -> None:
    tree = every_key()
    tree["profiles"][0]["plugins"] = {"balance": {"enabled": ["LowNodeLoad"]}}
    _, problems = read(tree)
    where = "profiles[0].plugins.balance.enabled[0]"
    text = "'LowNodeLoad' is not an object: write {name: ...}"
    assert refused(problems) == [f"{where}: {text}"]


@settings(max_examples=50)
@given(
    st.sampled_from(PATHS),
    st.text(min_size=1, max_size=20),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
)
def test_no_unknown_key_is_accepted_in_silence(path: str, key: str, value: Any) -> None:
    tree = every_key()
    target = dict(_objects(tree))[path]
    # Arguments of every plugin may state their type.
    if key in target or key in ("kind", "apiVersion"):
        return
    target[key] = value
    _, problems = read(tree)
    assert any("unknown key" in text for text in refused(problems))


def _leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children: Any = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in children:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _leaves(value, (*path, key))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.sampled_from([*_leaves(EVERY_KEY)]), JSON)
def test_no_value_anywhere_raises(path: tuple[Any, ...], value: Any) -> None:
    tree: Any = every_key()
    target = tree
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    _, problems = read_tree(tree)
    assert all(len(str(problem)) < 1000 for problem in problems)


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1"))))
def test_no_text_raises(text: str) -> None:
    descheduling, problems = read_configuration(text)
    assert descheduling is None
    assert problems


@pytest.mark.parametrize(
    "value",
    ["2026-01-01", "!!binary aGVsbG8=", "!!set {a, b}", "{1: 2}", "{null: 2}", ".nan", "-.inf",
     "0x" + "f" * 5000, "!!timestamp 2026-01-01", "[[[[]]]]", "1e400", "~"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["highThresholds", "numberOfNodes", "nodePools", "nodeSelector"])
def test_odd_values_of_yaml_are_refused_in_short(key: str, value: str) -> None:
    head = SHIPPED.partition("profiles:")[0]
    args = f"  - name: LowNodeLoad\n    args:\n      {key}: {value}\n"
    descheduling, problems = read_configuration(f"{head}profiles:\n- pluginConfig:\n{args}")
    assert descheduling is not None
    assert (refused(problems) == []) == (value == "~")
    assert all(len(str(problem)) < 300 for problem in problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has 0 documents, not 1"),
        ("a: 1\n---\nb: 2", "has 2 documents, not 1"),
        ("[1]", "a list is not an object"),
        ("a: [", "neither YAML nor JSON"),
        ("kind: DeschedulerPolicy", "kind is DeschedulerPolicy, of kubernetes-sigs/descheduler"),
        ("kind: Pod", "kind is 'Pod', not DeschedulerConfiguration"),
        ("kind: DeschedulerConfiguration\napiVersion: descheduler/v1alpha1",
         "apiVersion is 'descheduler/v1alpha1', not descheduler/v1alpha2"),
        ("kind: DeschedulerConfiguration\nkind: a", "key 'kind' occurs twice"),
    ],
)  # fmt: skip
def test_another_document_is_no_configuration(text: str, problem: str) -> None:
    descheduling, problems = read_configuration(text)
    assert descheduling is None
    assert problem in problems[0].text


def test_a_problem_outside_of_plugins_makes_everything_dry() -> None:
    tree = every_key() | {"maxNoOfPodsToEvictTotal": -1}
    descheduling, problems = read(tree)
    assert descheduling.keys.dry_run
    assert refused(problems) == [
        "maxNoOfPodsToEvictTotal: -1 is not a whole number from 0 to 2147483647, or null"
    ]
    assert "nothing is evicted until it is corrected" in {problem.text for problem in problems}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "LowNodeUtilization"])
def test_a_problem_of_a_plugin_makes_this_plugin_dry_and_no_other(name: str) -> None:
    tree = every_key()
    configs = tree["profiles"][0]["pluginConfig"]
    next(config for config in configs if config["name"] == name)["args"]["foo"] = 1
    descheduling, problems = read(tree)
    assert len(refused(problems)) == 1
    (profile,) = descheduling.profiles
    assert profile.low_node_load is not None
    args: dict[str, Any] = {**profile.args, "LowNodeLoad": profile.low_node_load.args}
    dry = {n for n, a in args.items() if getattr(a, "dry_run", False) or getattr(a, "paused", 0)}
    assert dry == {name}
    assert f"{name} evicts nothing until it is corrected" in {p.text for p in problems}
    assert not descheduling.keys.dry_run


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        ("LowNodeLoad", {"kind": "OtherArgs"}, "kind: 'OtherArgs' is not LowNodeLoadArgs"),
        ("LowNodeLoad", {"numberOfNode": 1}, "numberOfNode: unknown key (is numberOfNodes meant?)"),
        ("LowNodeLoad", {"dryrun": True}, "dryrun: unknown key (is dryRun meant?)"),
        ("MigrationController", {"apiVersion": "v1"}, "apiVersion: 'v1' is not"),
        ("MigrationController", {"skipEvictionGates": ["nodefit"]},
         "skipEvictionGates[0]: 'nodefit' is not one of"),
        ("MigrationController", {"evictQPS": 0}, "evictQPS: 0 is not a number above 0"),
        ("MigrationController", {"evictQPS": "xxxx"}, "evictQPS: 'xxxx' is not a number"),
        ("MigrationController", {"evictQPS": "nan"}, "evictQPS: nan is not a finite number"),
        ("MigrationController", {"defaultJobTTL": "-1m"}, "defaultJobTTL: '-1m' is not a duration"),
        ("MigrationController", {"defaultJobTTL": 60}, "defaultJobTTL: 60 is not a duration"),
        ("MigrationController", {"maxMigratingPerWorkload": "ten"},
         "maxMigratingPerWorkload: 'ten' is neither a whole number from 0 nor a percentage"),
        ("MigrationController", {"namespaces": {"include": ["a"], "exclude": ["b"]}},
         "namespaces: has include and exclude"),
        ("MigrationController", {"priorityThreshold": {"name": "gold"}},
         "priorityThreshold.name: 'gold' is not one of"),
        ("MigrationController", {"priorityThreshold": {"name": "koord-mid", "value": 1}},
         "priorityThreshold: has value and name"),
        ("MigrationController", {"priorityThreshold": {}}, "priorityThreshold: has neither value"),
        ("MigrationController", {"nodeSelector": "gold"}, "nodeSelector: 'gold' is not a list of"),
        ("MigrationController", {"objectLimiters": {"workloads": {}}},
         "objectLimiters.workloads: unknown key (is workload meant?)"),
        ("MigrationController", {"labelSelector": {"matchLabel": {"a": "b"}}},
         "labelSelector.matchLabel: unknown key (is matchLabels meant?)"),
        ("CustomPriority", {}, "evictionOrder: has 0 tiers, not 2 or more"),
        ("CustomPriority", {"mode": "drain"}, "mode: 'drain' is not one of"),
        ("ScaleDownBinPack", {"strategy": "EvictDirectly"}, "maxPodsToEvict: is not set"),
        ("ScaleDownBinPack", {"resourceWeights": {"cpu": 0}}, "resourceWeights.cpu: 0 is not"),
        ("FragmentationAware", {"resources": ["CPU"]}, "resources: 'CPU' is no resource"),
        ("FragmentationAware", {"imbalanceThreshold": 2}, "imbalanceThreshold: 2 is not a number"),
        ("LowNodeUtilization", {"evictableNamespaces": {"include": ["a"]}},
         "evictableNamespaces.include: is not supported"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 101}}, "thresholds.cpu: 101 is not"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_named_with_their_path(
    name: str, args: dict[str, Any], problem: str
) -> None:
    _, problems = read(configuration(name, args))
    assert any(text.startswith(f"{PLUGIN}.{problem}") for text in refused(problems))


def test_plugins_that_do_not_run_are_named() -> None:
    names = ("LowNodeLod", "RemoveDuplicates", "LowNodeUtilization", "MigrationController")
    tree = configuration("LowNodeLod", {})
    tree["profiles"][0]["plugins"] = {"balance": {"enabled": [{"name": name} for name in names]}}
    descheduling, problems = read(tree)
    balance = "profiles[0].plugins.balance.enabled"
    assert refused(problems) == [
        f"{balance}[0]: plugin 'LowNodeLod' does not run here (is LowNodeLoad meant?)",
        f"{balance}[1]: plugin 'RemoveDuplicates' does not run here",
        f"{balance}[2]: LowNodeUtilization does not run here: LowNodeLoad does",
        f"{balance}[3]: MigrationController runs only at evict and filter",
        "profiles[0].pluginConfig[0].name: plugin 'LowNodeLod' does not run here "
        "(is LowNodeLoad meant?)",
    ]
    assert descheduling.profiles[0].enabled["balance"] == ()


def test_profiles_need_distinct_names_and_plugins_one_entry() -> None:
    tree = configuration("LowNodeLoad", {})
    tree["profiles"] = [{}, {"name": "a"}, {"name": "a"}]
    assert refused(read(tree)[1]) == [
        "profiles[0].name: is missing", "profiles[2].name: 'a' is there twice",
    ]  # fmt: skip
    tree["profiles"] = [{"pluginConfig": [{"name": "LowNodeLoad"}, {"name": "LowNodeLoad"}, {}]}]
    descheduling, problems = read(tree)
    assert descheduling.profiles[0].name == "koord-descheduler"
    assert refused(problems) == [
        "profiles[0].pluginConfig[2]: has no name",
        "profiles[0].pluginConfig[1]: LowNodeLoad is there twice: the first counts",
    ]


def test_unused_keys_are_listed_and_problems_are_bounded() -> None:
    assert read(every_key())[0].unused == (
        "clientConnection", "leaderElection", "enableProfiling", "enableContentionProfiling",
        "healthzBindAddress", "metricsBindAddress",
    )  # fmt: skip
    pools = [{"name": str(i), "highThresholds": {"cpu": -1}} for i in range(1000)]
    _, problems = read(configuration("LowNodeLoad", {"nodePools": pools}))
    assert len(problems) == 101
    assert "more problems" in problems[-1].text


@pytest.mark.parametrize(
    ("args", "priority"),
    [
        ({}, 2_000_000_000),
        ({"priorityThreshold": {"value": 9000}}, 9000),
        ({"priorityThreshold": {"name": "koord-mid"}}, 7000),
        ({"priorityThreshold": {"value": 9000}, "evictSystemCriticalPods": True}, 9000),
        ({"evictSystemCriticalPods": True}, None),
    ],
)
def test_priority_threshold_holds_by_value_and_name_and_beside_system_pods(
    args: dict[str, Any], priority: int | None
) -> None:
    descheduling, problems = read(configuration("MigrationController", args))
    assert not problems
    assert descheduling.profiles[0].migration.protected_priority == priority


def test_config_map_without_the_key_configures_nothing() -> None:
    assert load_descheduling({}) == (NO_DESCHEDULING, ())
    assert load_descheduling({CONFIG_MAP_KEY: " "}) == (NO_DESCHEDULING, ())
    descheduling, problems = load_descheduling({"koord-descheduler-confg": SHIPPED})
    assert descheduling == NO_DESCHEDULING
    assert "is koord-descheduler-config meant?" in problems[0].text
    assert load_descheduling({CONFIG_MAP_KEY: 3})[0] is None
    assert load_descheduling({CONFIG_MAP_KEY: SHIPPED}) == read_configuration(SHIPPED)


@pytest.mark.parametrize(
    ("plugin", "args", "where"),
    [
        ("CustomPriority", {**ARGS["CustomPriority"], "autoCordon": True}, "autoCordon"),
        (
            "LowNodeLoad",
            {"anomalyCondition": {"timeout": "1m"}},
            "anomalyCondition.timeout",
        ),
    ],
)
def test_a_key_without_an_effect_is_named_and_changes_nothing_else(
    plugin: str, args: Any, where: str
) -> None:
    descheduling, problems = read(configuration(plugin, args))
    assert refused(problems) == []
    path = f"profiles[0].pluginConfig[0].args.{where}: has no effect"
    assert any(str(problem).startswith(path) for problem in problems)
    low, others = descheduling.profiles[0].low_node_load, descheduling.profiles[0].args
    plugin_args: Any = others[plugin] if low is None else low.args
    assert not plugin_args.dry_run


def test_without_an_interval_plans_and_caps_have_the_same_cycle() -> None:
    keys = read(configuration("MigrationController", {}))[0].keys
    assert keys.interval_seconds == 120.0
    descheduling = read(configuration("MigrationController", {}, deschedulingInterval="30s"))[0]
    assert descheduling.keys.interval_seconds == 30.0


def test_an_empty_mode_is_the_default_one() -> None:
    descheduling, problems = read(
        configuration("CustomPriority", {**ARGS["CustomPriority"], "mode": ""})
    )
    assert refused(problems) == []
    args: Any = descheduling.profiles[0].args["CustomPriority"]
    assert args.mode == "BestEffort"
