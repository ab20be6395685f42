"""`springtide policy`, on files as kubectl prints them."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pipeline.cli.main import cli

GOOD = {"enable": True, "degradeTimeMinutes": 7}


def configmap(text: Any) -> dict[str, Any]:
    data = {"colocation-config": text if isinstance(text, str) else json.dumps(text)}
    name = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data}


def node(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, **metadata}}


def run(folder: Path, document: Any, *arguments: str) -> Result:
    file = folder / "policy.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return CliRunner().invoke(cli, ["policy", str(file), *arguments])


@pytest.mark.parametrize("wrapped", [False, True])
def test_valid_policy_is_shown_with_defaults(tmp_path: Path, wrapped: bool) -> None:
    policy = configmap(GOOD)
    result = run(tmp_path, {"kind": "List", "items": [node("n"), policy]} if wrapped else policy)
    assert result.exit_code == 0, result.output
    assert "colocation is on for the cluster; 0 entries" in result.output
    values = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:])
    assert (values["degradeTimeMinutes"], values["cpuReclaimThresholdPercent"]) == ("7", "60")


def test_nodes_are_shown_with_their_differences(tmp_path: Path) -> None:
    label = "node.koordinator.sh/cpu-reclaim-ratio"
    annotation = "node.koordinator.sh/colocation-strategy"
    nodes = [
        node("n1", labels={"pool": "gold"}),
        node("n2", labels={label: "0.29"}, annotations={annotation: '{"enable": false}'}),
        node("n3"),
    ]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    entry = {"nodeSelector": {"matchLabels": {"pool": "gold"}}, "midUnallocatedPercent": 20}
    options = ("--nodes", str(tmp_path / "nodes.json"))
    result = run(tmp_path, configmap({**GOOD, "nodeConfigs": [entry]}), *options)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-3:] == [
        "node n1: on, midUnallocatedPercent 20",
        "node n2: off, enable false, cpuReclaimThresholdPercent 29",
        "node n3: on, as the cluster",
    ]
    document = json.loads(run(tmp_path, configmap(GOOD), *options, "-o", "json").stdout)
    assert [document[name]["on"] for name in ("n1", "n2", "n3")] == [True, False, True]
    assert document["n2"]["strategy"]["cpuReclaimThresholdPercent"] == 29


def test_invalid_part_is_a_warning_and_exits_with_3(tmp_path: Path) -> None:
    entries = [{"name": "gold", "nodeSelector": {}, "degradeTimeMinutes": 0}]
    result = run(tmp_path, configmap({**GOOD, "nodeConfigs": entries}))
    assert result.exit_code == 3
    assert "warning: colocation-config.nodeConfigs[0] (gold): degradeTimeMin" in result.stderr
    nodes = [node("n", labels={"node.koordinator.sh/cpu-reclaim-ratio": "much\x1b[2J"})]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    result = run(tmp_path, configmap(GOOD), "--nodes", str(tmp_path / "nodes.json"))
    assert (result.exit_code, "warning: node n: label" in result.stderr) == (3, True)
    assert "\x1b" not in result.output


def test_suspicious_value_is_a_warning_and_exits_with_0(tmp_path: Path) -> None:
    for policy, warning in (
        ({"cpuCalculatePolicy": "usgae"}, "cpuCalculatePolicy is 'usgae'"),
        ({"metricAggregatePolicy": {"durations": ["61m", "5m"]}},
         "durations has '61m', which is not reported: reported are 30 s to 3600 s"),
    ):  # fmt: skip
        result = run(tmp_path, configmap(policy))
        assert result.exit_code == 0
        assert re.match(rf"warning: colocation-config: .*{warning}", result.stderr)


WHOLE = {
    "colocation-config": {"enable": True},
    "springtide-config": {"predictor": "max"},
    "cpu-normalization-config": {
        "enable": True,
        "ratioModel": {"X": {"hyperThreadEnabledRatio": 1.3}},
    },
    "resource-amplification-config": {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}},
    "resource-threshold-config": {
        "nodeStrategies": [
            {"nodeSelector": {"matchLabels": {"pool": "gold"}}, "memoryEvictThresholdPercent": 80}
        ]
    },
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
    "host-application-config": {"applications": [{"name": "nginx", "priority": "koord-mid"}]},
}


def all_keys(**changed: Any) -> dict[str, Any]:
    data = {key: json.dumps(policy) for key, policy in (WHOLE | changed).items()}
    return {**configmap({}), "data": data}


def test_every_key_is_shown_by_its_differences_from_defaults(tmp_path: Path) -> None:
    result = run(tmp_path, all_keys())
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-7:] == [
        "cpu-normalization-config: enable true, ratioModel.X.hyperThreadEnabledRatio 1.3",
        "resource-amplification-config: enable true, resourceAmplificationRatio.cpu 1.5",
        "resource-threshold-config: defaults; 1 entry for selected nodes",
        "resource-qos-config: defaults",
        'cpu-burst-config: policy "auto"',
        "system-config: defaults",
        'host-application-config: applications [{"name": "nginx", "priority": "koord-mid"}]',
    ]
    document = json.loads(run(tmp_path, all_keys(), "-o", "json").stdout)["cluster"]
    assert document["strategy"]["predictor"] == "max"
    assert document["cpu-burst-config"]["policy"] == "auto"
    assert document["resource-threshold-config"]["memoryEvictThresholdPercent"] == 70


def test_node_is_shown_with_its_custom_resources(tmp_path: Path) -> None:
    cpu = {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"X","hyperThreadEnabled":true}'}
    topology = {"kind": "NodeResourceTopology", "metadata": {"name": "n1", "annotations": cpu}}
    nodes = [
        node("n1", labels={"pool": "gold"}),
        node("n2", annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.20"}),
        topology,
    ]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    options = ("--nodes", str(tmp_path / "nodes.json"))
    result = run(tmp_path, all_keys(), *options)
    assert result.stdout.splitlines()[-2:] == [
        "node n1: on, as the cluster; "
        "NodeSLO: resourceUsedThresholdWithBE.memoryEvictThresholdPercent 80",
        "node n2: on, as the cluster",
    ]
    document = json.loads(run(tmp_path, all_keys(), *options, "-o", "json").stdout)
    assert document["n1"]["nodeSLO"]["cpuBurstStrategy"]["policy"] == "auto"
    assert document["n1"]["nodeMetric"]["metricCollectPolicy"]["reportIntervalSeconds"] == 60
    assert document["n1"]["hostApplications"] == {"nginx": "mid"}
    assert document["n1"]["cpuNormalization"]["annotation"] == "1.30"
    assert document["n2"]["cpuNormalization"]["why"] == "the node's CPU is unknown"
    assert document["n2"]["amplification"]["annotation"] == '{"cpu":1.80}'
    topology["metadata"]["annotations"] = dict.fromkeys(cpu, "{")  # type: ignore[index]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    result = run(tmp_path, all_keys(), *options)
    assert (result.exit_code, "topology n1: annotation" in result.stderr) == (1, True)


@pytest.mark.parametrize("key", [*WHOLE, "resource-qos-config", "system-config"])
def test_invalid_cluster_wide_part_exits_with_1(tmp_path: Path, key: str) -> None:
    result = run(tmp_path, all_keys(**{key: []}))
    assert result.exit_code == 1
    assert f"{key}: a list, not an object; it is not in force" in result.stderr


def test_contradiction_to_the_extender_is_a_warning(tmp_path: Path) -> None:
    policy = all_keys(**{"resource-threshold-config": {"clusterStrategy": {"enable": True}}})
    result = run(tmp_path, policy)
    assert result.exit_code == 0
    assert "extender.memory_threshold_percent, which is 95: the scheduler fills" in result.stderr
    assert not run(tmp_path, policy, "--memory-threshold-percent", "70").stderr


@pytest.mark.parametrize(
    ("document", "code", "says"),
    [
        (configmap('{"enable":true,}'), 1, "colocation-config: not JSON"),
        (configmap("[" * 5000), 1, "colocation-config: nested too deeply"),
        (configmap({"degradeTimeMinutes": 0, "midUnallocatedPercent": 101}), 1, "degradeTimeM"),
        (
            configmap({"enable": False, "midUnallocatedPercent": 101}),
            1,
            "switched off nevertheless, on every",
        ),
        (node("n"), 1, "has no ConfigMap slo-controller-config: it has Node n"),
        ("", 1, "has no ConfigMap slo-controller-config: it is empty"),
        ("---\n---\n", 1, "slo-controller-config: it is empty"),
        ("apiVersion: descheduler/v1alpha2", 1, "it has an object without kind"),
        ("hello", 1, "it has text that is no object"),
        (
            "\n---\n".join(f"{{kind: Pod, metadata: {{name: p{i}}}}}" for i in range(5)),
            1,
            "it has Pod p0, Pod p1, Pod p2 and 2 more",
        ),
        ("# " + "x" * (4 << 20), 2, "it is larger than 4 MiB"),
        ("a: [", 1, "is neither YAML nor JSON: line 1, column 5: expected the node content"),
        ("data: {a: '', a: ''}", 1, "line 1, column 15: key 'a' occurs twice"),
        (
            {"kind": "List", "items": [configmap("{}"), configmap("{}")]},
            1,
            "has 2 ConfigMaps slo-controller-config; keep one",
        ),
        ({**configmap("{}"), "data": {"colocation-config": {}}}, 1, "is not an object of strings"),
    ],
)
def test_unusable_file_exits_with_1(tmp_path: Path, document: Any, code: int, says: str) -> None:
    result = run(tmp_path, document)
    assert (result.exit_code, says in result.stderr) == (code, True), result.output
    assert not result.stdout


def test_every_problem_of_an_invalid_policy_is_reported(tmp_path: Path) -> None:
    entry = {"nodeSelector": {"matchLabels": {"a": "b"}}, "degradeTimeMinutes": "x", "enabel": 1}
    colocation = {
        "memoryReclaimThresholdPercent": "65",
        "cpuReclaimThresholdPercnt": 60,
        "enabel": True,
        "degradeTimeMinutes": 0,
        "nodeConfigs": [entry],
    }
    document = all_keys(**{"colocation-config": colocation, "cpu-burst-config": []})
    result = run(tmp_path, document, "--nodes", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    file = tmp_path / "policy.yaml"
    *_, hint = lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith("warning: colocation-config: ")] == [
        "warning: colocation-config: ignored key 'cpuReclaimThresholdPercnt': "
        "is cpuReclaimThresholdPercent meant?",
        "warning: colocation-config: ignored key 'enabel': is enable meant?",
    ]
    errors = [line.partition(" (")[0] for line in lines if line.startswith("error: ")]
    assert [error.split("; ")[0].split(" - ")[0] for error in errors] == [
        f"error: {file}: colocation-config: Expected `int | null`, got `str`",
        f"error: {file}: colocation-config: degradeTimeMinutes is 0, allowed is 1 or more",
        f"error: {file}: colocation-config.nodeConfigs[0]: Expected `int | null`, got `str`",
        f"error: {file}: cpu-burst-config: a list, not an object",
        f"error: cannot read {tmp_path}: Is a directory",
    ]
    assert hint.startswith("  fix: ")


def test_nodes_without_objects_have_a_fix(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{}")
    result = run(tmp_path, configmap(GOOD), "--nodes", str(tmp_path / "nodes.json"))
    assert (result.exit_code, "has no Kubernetes objects" in result.stderr) == (1, True)
    assert "fix: write it with: kubectl get nodes" in result.stderr


@pytest.mark.parametrize("file", ["missing", "/dev/zero"])
def test_unreadable_file_is_a_usage_error(tmp_path: Path, file: str) -> None:
    result = CliRunner().invoke(cli, ["policy", str(tmp_path / file)])
    assert (result.exit_code, "cannot read" in result.stderr) == (2, True)


def test_policy_and_nodes_are_read_from_standard_input_and_pipes(tmp_path: Path) -> None:
    policy = yaml.safe_dump(descheduler())
    result = CliRunner().invoke(cli, ["policy", "-"], input=policy)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("descheduler: every 10 s")
    (tmp_path / "policy.yaml").write_text(policy)
    pipe = tmp_path / "nodes"
    os.mkfifo(pipe)
    document = json.dumps({"kind": "List", "items": [node("n1")]})
    threading.Thread(target=pipe.write_text, args=(document,), daemon=True).start()
    for nodes, text in ((str(pipe), ""), ("-", document)):
        arguments = ["policy", str(tmp_path / "policy.yaml"), "--nodes", nodes]
        result = CliRunner().invoke(cli, arguments, input=text)
        assert (result.exit_code, "node n1: pool" in result.stdout) == (0, True), result.output
    broken = CliRunner().invoke(cli, ["policy", "-"], input="a: [")
    assert broken.stderr.startswith("error: standard input is neither YAML nor JSON")


def test_no_line_is_empty_without_nodes(tmp_path: Path) -> None:
    assert "" not in run(tmp_path, descheduler()).stdout.splitlines()


GOLD = {"matchLabels": {"pool": "gold"}}


def descheduler(**args: Any) -> dict[str, Any]:
    """A DeschedulerConfiguration with LowNodeLoad and a pool."""
    pools = [{"name": "gold", "nodeSelector": GOLD, "highThresholds": {"cpu": 90}}]
    low = {"highThresholds": {"cpu": 75}, "lowThresholds": {"cpu": 45}, "nodePools": pools, **args}
    return {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "10s", "leaderElection": {"leaderElect": True},
        "maxNoOfPodsToEvictPerNode": 3,
        "profiles": [{"name": "a", "pluginConfig": [{"name": "LowNodeLoad", "args": low}]}],
    }  # fmt: skip


def descheduler_map(tree: Any) -> dict[str, Any]:
    data = {"koord-descheduler-config": yaml.safe_dump(tree)}
    return {"kind": "ConfigMap", "metadata": {"name": "koord-descheduler-config"}, "data": data}


@pytest.mark.parametrize("wrap", [lambda tree: tree, descheduler_map], ids=["object", "ConfigMap"])
def test_descheduler_configuration_is_shown_per_pool_and_node(tmp_path: Path, wrap: Any) -> None:
    nodes = [node("n1", labels={"pool": "gold"}), node("n2")]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    options = ("--nodes", str(tmp_path / "nodes.json"))
    result = run(tmp_path, wrap(descheduler()), *options)
    assert result.exit_code == 0, result.output
    after = "average of 300 s, opens after 5 windows, closes after 3, 5 points below"
    gold = f"hot above cpu 90%; low to cpu 45%; {after}"
    others = f"hot above cpu 75%; low to cpu 45%; {after}"
    assert result.stdout.splitlines() == [
        "descheduler: every 10 s, evicts nothing, evictions of a plan: 3 per node",
        "profile a: evict MigrationController; filter MigrationController",
        "  LowNodeLoad: evicts nothing: LowNodeLoad is not enabled in plugins.balance of its "
        "profile",
        f"    pool gold, nodes with pool=gold: {gold}",
        f"    pool __default_node_pool__, all other nodes: {others}",
        "  MigrationController: Eviction, at once 2 per node, 10 per second; not from priority "
        "2000000000 on",
        "Springtide's settings hold instead of leaderElection",
        f"node n1: pool gold: {gold}",
        f"node n2: pool __default_node_pool__: {others}",
    ]
    document = json.loads(run(tmp_path, wrap(descheduler()), *options, "-o", "json").stdout)
    assert document["n1"] == {
        "hotNodes": {"pool": "gold", "high_percent": {"cpu": 90}, "low_percent": {"cpu": 45}}
    }
    document = json.loads(run(tmp_path, wrap(descheduler()), "-o", "json").stdout)["descheduler"]
    pools = document["profiles"][0]["lowNodeLoad"]["pools"]
    assert [pool["name"] for pool in pools] == ["gold", "__default_node_pool__"]


def test_problems_of_a_descheduler_configuration_are_warnings_and_exit_with_3(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, descheduler(foo=1, lowThresholds={"cpu": 80}))
    assert result.exit_code == 3
    path = "profiles[0].pluginConfig[0].args"
    assert result.stderr.splitlines() == [
        f"warning: {path}.foo: unknown key; it is not in force",
        f"warning: {path}.lowThresholds.cpu: 80 is above highThresholds.cpu, which is 75; it is "
        "not in force",
        f"warning: {path}: the default pool is not in force: its nodes keep their last thresholds",
        f"warning: {path}: LowNodeLoad evicts nothing until it is corrected",
    ]
    assert "pool __default_node_pool__, all other nodes: invalid, nodes keep" in result.stdout
    assert "pool gold, nodes with pool=gold: hot above cpu 90%" in result.stdout


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (descheduler() | {"apiVersion": "descheduler/v1"}, "apiVersion is 'descheduler/v1', not"),
        (descheduler_map("["), "'[' is not an object"),
        ({"kind": "List", "items": [descheduler(), descheduler_map(1)]}, "has 2 objects of kind"),
    ],
)
def test_another_descheduler_configuration_exits_with_1(
    tmp_path: Path, tree: Any, problem: str
) -> None:
    result = run(tmp_path, tree)
    assert result.exit_code == 1
    assert problem in result.stderr


def test_both_policies_of_a_file_are_checked(tmp_path: Path) -> None:
    items = [configmap(GOOD), descheduler_map(descheduler(foo=1))]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": [node("n")]}))
    options = ("--nodes", str(tmp_path / "nodes.json"))
    result = run(tmp_path, {"kind": "List", "items": items}, *options)
    assert result.exit_code == 3
    assert "colocation is on for the cluster" in result.stdout
    assert "node n: on, as the cluster" in result.stdout
    assert "node n: pool __default_node_pool__: hot above cpu 75%" in result.stdout
    document = json.loads(run(tmp_path, {"kind": "List", "items": items}, "-o", "json").stdout)
    assert [*document] == ["cluster", "descheduler"]
    document = json.loads(
        run(tmp_path, {"kind": "List", "items": items}, *options, "-o", "json").stdout
    )
    assert document["n"]["on"]
    assert document["n"]["hotNodes"]["high_percent"] == {"cpu": 75}


def test_a_policy_of_another_descheduler_is_named_as_such(tmp_path: Path) -> None:
    sigs = {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy",
        "profiles": [{"name": "p", "pluginConfig": []}],
    }  # fmt: skip
    result = run(tmp_path, sigs)
    assert result.exit_code == 1
    assert "kind is DeschedulerPolicy, of kubernetes-sigs/descheduler" in result.output
    assert "slo-controller-config" not in result.output


def effects(folder: Path, tree: Any) -> list[str]:
    """What the configuration as a whole and each strategy does."""
    lines = run(folder, tree).stdout.splitlines()
    whole = next(line for line in lines if line.startswith("descheduler: "))
    known = ("LowNodeLoad", "CustomPriority", "ScaleDownBinPack", "LowNodeUtilization")
    return [
        whole.split(", ")[1],
        *(line.strip() for line in lines if line.strip().startswith(known)),
    ]


BALANCE = {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}
OFF = {"disabled": [{"name": "*"}]}


@pytest.mark.parametrize(
    ("keys", "plugins", "args", "whole", "strategy"),
    [
        ({}, BALANCE, {}, "evicts", "evicts"),
        ({"dryRun": True}, BALANCE, {}, "dry run", "dry run"),
        ({}, BALANCE, {"dryRun": True}, "dry run", "dry run"),
        ({}, BALANCE, {"paused": True}, "evicts nothing", "paused"),
        (
            {"dryRun": True, "maxNoOfPodsToEvictTotal": 0},
            BALANCE,
            {},
            "evicts nothing",
            "evicts nothing: a cap of the evictions of a plan is 0",
        ),
        (
            {},
            {**BALANCE, "evict": OFF},
            {},
            "evicts nothing",
            "evicts nothing: MigrationController is disabled in plugins.evict of the profile",
        ),
    ],
)
def test_effect_of_a_descheduler_configuration_is_what_would_be_evicted(
    tmp_path: Path, keys: Any, plugins: Any, args: Any, whole: str, strategy: str
) -> None:
    tree = descheduler(**args) | keys
    tree["profiles"][0]["plugins"] = plugins
    assert effects(tmp_path, tree) == [whole, f"LowNodeLoad: {strategy}"]


def test_dry_run_of_the_migration_controller_is_shown_as_the_effect(tmp_path: Path) -> None:
    tree = descheduler()
    tree["profiles"][0]["plugins"] = BALANCE
    tree["profiles"][0]["pluginConfig"].append(
        {"name": "MigrationController", "args": {"dryRun": True}}
    )
    assert effects(tmp_path, tree) == ["dry run", "LowNodeLoad: dry run"]


def test_limits_and_protections_that_are_not_the_default_are_shown(tmp_path: Path) -> None:
    excluded = {"exclude": ["kube-system"]}
    tree = descheduler(kind="LowNodeLoadArgs", nodeFit=False, evictableNamespaces=excluded)
    tree["profiles"][0]["plugins"] = BALANCE
    migration = {
        "maxMigratingPerWorkload": 1, "maxUnavailablePerWorkload": "10%", "defaultJobTTL": "2m",
        "evictLocalStoragePods": True, "defaultJobMode": "EvictDirectly",
    }  # fmt: skip
    tree["profiles"][0]["pluginConfig"].append({"name": "MigrationController", "args": migration})
    lines = run(tmp_path, tree).stdout.splitlines()
    assert (
        '  LowNodeLoad: evicts; evictableNamespaces {"include": [], "exclude": ["kube-system"]}; '
        "nodeFit false"
    ) in lines
    assert (
        "  MigrationController: Eviction, at once 2 per node, 10 per second; not from priority "
        "2000000000 on; evictLocalStoragePods true; maxMigratingPerWorkload 1; "
        "maxUnavailablePerWorkload 10%; defaultJobTTL 120.0"
    ) in lines


def test_other_strategies_are_shown_with_their_effect_and_values(tmp_path: Path) -> None:
    tree = descheduler()
    tiers = [{"name": name, "nodeSelector": GOLD} for name in ("dear", "cheap")]
    utilization = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}
    enabled = [{"name": name} for name in ("LowNodeLoad", "CustomPriority", "ScaleDownBinPack")]
    configured = {
        "CustomPriority": {"evictionOrder": tiers, "mode": "DrainNode"},
        "ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 3},
        "LowNodeUtilization": utilization,
    }
    configs = [{"name": name, "args": args} for name, args in configured.items()]
    tree["profiles"] = [
        {"name": "a", "plugins": {"balance": {"enabled": enabled}}, "pluginConfig": configs}
    ]
    whole, low, custom, scale, utilized = effects(tmp_path, tree)
    assert scale.startswith("ScaleDownBinPack: evicts; ")
    assert whole == "evicts"
    assert low == "LowNodeLoad: evicts nothing: LowNodeLoad has no arguments in pluginConfig"
    assert custom.startswith("CustomPriority: evicts; ")
    assert "; mode DrainNode" in custom
    assert utilized.startswith("LowNodeUtilization: does not run here; ")


def test_distances_from_the_mean_are_shown_as_sums(tmp_path: Path) -> None:
    tree = descheduler(useDeviationThresholds=True, nodePools=[])
    assert "hot above cpu mean + 75%; low to cpu mean - 45%; " in run(tmp_path, tree).stdout


def test_a_config_map_of_another_descheduler_is_named_as_such(tmp_path: Path) -> None:
    policy = "apiVersion: descheduler/v1alpha2\nkind: 'DeschedulerPolicy'\nprofiles: []\n"
    tree = {"kind": "ConfigMap", "metadata": {"name": "d"}, "data": {"policy.yaml": policy}}
    result = run(tmp_path, tree)
    assert result.exit_code == 1
    assert "kind is DeschedulerPolicy, of kubernetes-sigs/descheduler" in result.stderr
    quiet = {**tree, "data": {"readme": "its kind: DeschedulerPolicy is not this"}}
    assert "has no ConfigMap slo-controller-config" in run(tmp_path, quiet).stderr


def test_the_right_key_of_the_config_map_is_named(tmp_path: Path) -> None:
    tree = descheduler_map(descheduler())
    tree["data"]["config.yaml"] = tree["data"].pop("koord-descheduler-config")
    problem = "ConfigMap, 'config.yaml': unknown key (is koord-descheduler-config meant?)"
    assert problem in run(tmp_path, tree).stderr
