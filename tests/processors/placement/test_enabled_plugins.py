"""KubeSchedulerConfigurations are read, or refused by the invalid key."""

from typing import Any

import pytest
import yaml

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.enabled_plugins import Score, read_config
from pipeline.processors.placement.threshold_hours import TIME_SHARED, args_in_force
from pipeline.processors.scorers.load_aware import LOAD_AWARE

FIT_PLUS = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: NodeResourcesFitPlus
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitPlusArgs
      resources:
        nvidia.com/gpu: {type: MostAllocated, weight: 2}
        cpu: {type: LeastAllocated, weight: 1}
        memory: {type: LeastAllocated, weight: 1}
  plugins: {score: {enabled: [{name: NodeResourcesFitPlus, weight: 2}]}}
  schedulerName: koord-scheduler
"""
SCARCE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: ScarceResourceAvoidance
    args: {kind: ScarceResourceAvoidanceArgs, resources: [nvidia.com/gpu]}
  plugins:
    score:
      enabled: [{name: NodeResourcesFitPlus, weight: 2}, {name: ScarceResourceAvoidance, weight: 2}]
      disabled: [{name: "*"}]
"""
LOAD = """
apiVersion: kubescheduler.config.k8s.io/v1beta2
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: true}
profiles:
- schedulerName: koord-scheduler
  plugins:
    multiPoint: {enabled: [{name: LoadAwareScheduling}]}
    queueSort: {disabled: [{name: "*"}], enabled: [{name: Coscheduling}]}
    score:
      enabled: [{name: LoadAwareScheduling, weight: 3}, {name: NodeResourcesFit, weight: 1}]
  pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: LeastAllocated}}}
  - name: LoadAwareScheduling
    args:
      apiVersion: kubescheduler.config.k8s.io/v1beta2
      kind: LoadAwareSchedulingArgs
      filterExpiredNodeMetrics: false
      nodeMetricExpirationSeconds: 300
      resourceWeights: {cpu: 1, memory: 1}
      usageThresholds: {cpu: 65, memory: 95}
      prodUsageThresholds: {cpu: 55}
      scoreAccordingProdUsage: true
      estimatedScalingFactors: {cpu: 85, memory: 70}
      aggregated:
        {usageThresholds: {cpu: 65}, usageAggregationType: p95, usageAggregatedDuration: 5m}
"""
TRIMARAN = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}, {name: NodeResourcesLeastAllocated}]
      enabled: [{name: TargetLoadPacking}, {name: LoadVariationRiskBalancing, weight: 0}]
  pluginConfig:
  - name: TargetLoadPacking
    args: {defaultRequests: {cpu: "2000m"}, defaultRequestsMultiplier: "2", targetUtilization: 70,
           watcherAddress: "http://127.0.0.1:2020"}
  - name: LoadVariationRiskBalancing
    args: {safeVarianceMargin: 1, safeVarianceSensitivity: 2,
           metricProvider: {type: Prometheus, address: "http://prometheus:9090"}}
  - {name: LowRiskOverCommitment, args: {smoothingWindowSize: 5}}
"""
LIMITS = """
plugins: {score: {enabled: [{name: ResourceLimits}]}}
pluginConfig:
- name: ResourceLimits
  args: {resources: [{name: cpu}], defaultLimit: {memory: 1Gi, ephemeral-storage: 4Gi}}
"""
HEADROOM = """
plugins: {score: {enabled: [{name: PredictedHeadroom}]}}
pluginConfig: [{name: PredictedHeadroom, args: {resources: [{name: cpu}]}}]
"""


_ROOM = "PredictedHeadroom"


def read(text: str, **more: Any) -> Any:
    return read_config(yaml.safe_load(text), **more)


def plugins(**points: Any) -> Any:
    """`score=(on, off)`: enabled and disabled at a point."""
    return {
        "plugins": {
            point: {
                "enabled": [{"name": name} for name in on],
                "disabled": [{"name": name} for name in off],
            }
            for point, (on, off) in points.items()
        }
    }


def configured(point: str, name: str, args: Any) -> Any:
    """A profile that enables a plugin with arguments."""
    return plugins(**{point: ([name], [])}) | {"pluginConfig": [{"name": name, "args": args}]}


def test_upstreams_samples_are_read() -> None:
    fit = read(FIT_PLUS)
    assert (fit.scores, fit.filters) == ((Score("NodeResourcesFitPlus", 2),), ())
    assert fit.args["NodeResourcesFitPlus"].resources["nvidia.com/gpu"].weight == 2
    scarce = read(SCARCE)
    names = ("NodeResourcesFitPlus", "ScarceResourceAvoidance")
    assert scarce.scores == tuple(Score(name, 2) for name in names)
    assert [scarce.args[name].resources for name in names] == [{}, ("nvidia.com/gpu",)]
    assert scarce.load_aware.estimated_scaling_factors == {"cpu": 85, "memory": 70}


def test_load_aware_is_read_with_all_keys() -> None:
    result = read(LOAD)
    assert (result.filters, result.scores) == ((LOAD_AWARE,), (Score(LOAD_AWARE, 3),))
    args = result.load_aware
    assert (args.filter_expired_node_metrics, args.node_metric_expiration_seconds) == (False, 300)
    assert (args.prod_usage_thresholds, args.resources) == ({"cpu": 55}, ("cpu", "memory"))
    assert (args.aggregated.usage_aggregation_type, result.notes) == ("p95", ())


def test_trimarans_plugins_note_that_usage_comes_from_the_table() -> None:
    result = read(TRIMARAN)
    names = ("TargetLoadPacking", "LoadVariationRiskBalancing")
    assert result.scores == tuple(Score(name, 1) for name in names)
    assert result.args["TargetLoadPacking"].packing.multiplier == 2.0
    assert result.notes[0] == "LowRiskOverCommitment has arguments, and is not enabled"
    assert sorted(result.notes[1:]) == [
        f"{name}: usage comes from the state table, not from a watcher or provider"
        for name in sorted(names)
    ]


def test_a_profile_is_read_and_versions_and_kinds_are_checked() -> None:
    assert read_config(plugins(score=([_ROOM], []))).scores == (Score("PredictedHeadroom"),)
    for key, value, says in (
        ("apiVersion", "kubescheduler.config.k8s.io/v1alpha1", "apiVersion: 'kubescheduler"),
        ("kind", "Policy", "kind: 'Policy' is not KubeSchedulerConfiguration"),
        ("profiles", [], "profiles: there is none"),
    ):
        with pytest.raises(InvalidPolicyError, match=says):
            read_config(yaml.safe_load(FIT_PLUS) | {key: value})
    with pytest.raises(InvalidPolicyError, match="not a KubeSchedulerConfiguration"):
        read_config(None)


@pytest.mark.parametrize(
    ("text", "wrong", "right", "says"),
    [
        (FIT_PLUS, "- pluginConfig:", "- pluginConfigs:", "unknown field `pluginConfigs`"),
        (FIT_PLUS, "MostAllocated", "Most", "Invalid enum value 'Most'"),
        (FIT_PLUS, "Allocated, weight: 2}", "Allocated, weight: 0}", ">= 1"),
        (FIT_PLUS, "kind: NodeResourcesFitPlusArgs", "kind: FitPlusArgs", "is not NodeResources"),
        (FIT_PLUS, "- name: NodeResourcesFitPlus", "- name: NodeResourceFitPlus", "is it NodeRes"),
        (FIT_PLUS, "Plus, weight: 2", "Plus, wait: 2", "plugins.score: .*`wait`"),
        (FIT_PLUS, "Plus, weight: 2", "Plus, weight: -2", "weight -2 of NodeResourcesFitPlus"),
        (FIT_PLUS, "Plus, weight: 2", "Plus, weight: 2147483649", "is more than 2147483648"),
        (LOAD, "{cpu: 65, memory: 95}", "{cpu: 650, memory: 95}", "usageThresholds: 650 for cpu"),
        (LOAD, "5m", "5 minutes", "usageAggregatedDuration: '5 minutes'"),
        (TRIMARAN, '"2"', '"-3"', "'-3' is not a number from 0 on"),
        (TRIMARAN, "kind: Kube", "kind: Cube", "kind: 'Cube"),
        (TRIMARAN, "profiles:", "profile:", "key 'profile' is not known: is it profiles?"),
        (TRIMARAN, "    score:", "    scores:", "point 'scores' is not known: is it score?"),
        (TRIMARAN, "    score:", "    Score:", "point 'Score' is not known: is it score?"),
        (TRIMARAN, "    score:", "    reserve:", "plugins.reserve: TargetLoadPacking does nothing"),
        (TRIMARAN, "    score:", "    filter:", "nothing is left .* only at multiPoint, score"),
        (TRIMARAN, "targetUtilization: 70", "targetUtilization: 150", "150 is over 100"),
        (TRIMARAN, "Margin: 1,", "Margin: 1, resources: [x.io/gpu],",
         "usage of .* is not measured"),
        (TRIMARAN, "Margin: 1,", "Margin: 1, resources: [],", "length >= 1"),
        (LIMITS, "defaultLimit: {", "defaultLimit: {cpu: much, ", "defaultLimit: .*much"),
        (LIMITS, "defaultLimit: {", "defaultLimit: {cpu: -1m, ", "amount is below 0"),
        (LIMITS, "defaultLimit: {", "defaultLimit: {mem: 1, ", "defaultLimit: 'mem' .* memory?"),
        (LIMITS, "resources: [{name: cpu}]", "resources: []", "length >= 1"),
        (HEADROOM, "[{name: cpu}]", "[{name: x.io/gpu}]", "'x.io/gpu' has no predicted peak"),
        (HEADROOM, "[{name: cpu}]", "[]", "length >= 1"),
        (FIT_PLUS, "cpu: {", "CPU: {", "FitPlusArgs: resources: 'CPU' is no .*: is it cpu?"),
        (TRIMARAN, "name: LowRiskOverCommitment", "name: TargetLoadPacking", "more than once"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_named(text: str, wrong: str, right: str, says: str) -> None:
    assert wrong in text
    with pytest.raises(InvalidPolicyError, match=says):
        read(text.replace(wrong, right))


def test_keys_of_a_newer_scheduler_are_ignored() -> None:
    tree = yaml.safe_load(TRIMARAN)
    tree["gangs"] = {"patience": 3}
    tree["profiles"][0]["plugins"]["afterwards"] = {"enabled": [{"name": "ImageLocality"}]}
    assert read_config(tree) == read(TRIMARAN)
    tree["profiles"][0]["plugins"]["afterwards"] = {"enabled": [{"name": "Peaks"}]}
    with pytest.raises(InvalidPolicyError, match=r"plugins\.afterwards: Peaks does nothing"):
        read_config(tree)


@pytest.mark.parametrize(
    ("points", "filters", "scores"),
    [
        ({"multiPoint": ([LOAD_AWARE], []), "filter": ([], [LOAD_AWARE])}, [], [LOAD_AWARE]),
        ({"multiPoint": ([LOAD_AWARE], []), "score": ([], ["*"])}, [LOAD_AWARE], []),
        ({"multiPoint": ([LOAD_AWARE], ["*"])}, [LOAD_AWARE], [LOAD_AWARE]),
        ({"multiPoint": ([LOAD_AWARE], []), "score": ([_ROOM], ["*"])}, [LOAD_AWARE], [_ROOM]),
        ({"score": ([_ROOM], [_ROOM])}, [], [_ROOM]),
        ({"preFilter": (["SchedulingHint"], [])}, ["SchedulingHint"], []),
    ],
)  # fmt: skip
def test_plugins_are_disabled_as_in_kube_scheduler(
    points: Any, filters: list[str], scores: list[str]
) -> None:
    result = read_config(plugins(**points))
    assert [*result.filters] == filters
    assert [score.plugin for score in result.scores] == scores
    assert result.notes == ()


def test_plugins_enabled_where_they_do_nothing_are_noted() -> None:
    result = read_config(plugins(reserve=([LOAD_AWARE], []), score=([_ROOM], [])))
    assert result.notes == (
        f"plugins.reserve: {LOAD_AWARE} does nothing here, only at multiPoint, filter, score",
    )
    everywhere = plugins(
        multiPoint=([LOAD_AWARE, _ROOM], []), filter=([], ["*"]), score=([], [LOAD_AWARE])
    )
    assert read_config(everywhere).notes == (f"{LOAD_AWARE} is disabled wherever it would run",)
    with pytest.raises(InvalidPolicyError, match=r"nothing is left to run here: .* is disabled"):
        read_config(plugins(multiPoint=([_ROOM], []), score=([], ["*"])))


def test_values_without_effect_are_noted() -> None:
    stated = yaml.safe_load(LOAD)
    args = stated["profiles"][0]["pluginConfig"][1]["args"]
    args |= {
        "estimator": "better",
        "usageThresholds": {"cpu": 65, "nvidia.com/gpu": 50},
        "prodUsageThresholds": {"springtide.io/disk-read": 50},
        "aggregated": {"usageThresholds": {"amd.com/gpu": 1}, "scoreAggregatedDuration": "7m"},
    }
    assert list(read_config(stated).notes) == [
        f"{LOAD_AWARE}: estimator 'better' is not known: defaultEstimator estimates",
        f"{LOAD_AWARE}: usage of amd.com/gpu is judged where samples of the node have "
        "a gauge of it",
        f"{LOAD_AWARE}: usage of nvidia.com/gpu is judged where samples of the node have "
        "a gauge of it",
        f"{LOAD_AWARE}: prodUsageThresholds: usage of springtide.io/disk-read is not known by "
        "class",
        f"{LOAD_AWARE}: aggregated: usageThresholds and usageAggregationType have an effect "
        "together only",
        f"{LOAD_AWARE}: aggregated.scoreAggregatedDuration: usage is known over 5m, 10m, 30m: "
        "over 7m it is estimated",
    ]
    odd = read(TRIMARAN.replace("safeVarianceMargin: 1", "safeVarianceMargin: -3"))
    assert "LoadVariationRiskBalancing: safeVarianceMargin: -3" in "\n".join(odd.notes)
    peaks = read_config(plugins(score=(["Peaks"], [])))
    assert peaks.notes == ("Peaks: without nodePowerModel every node is as good as any other",)


def test_hours_hidden_by_other_thresholds_are_noted() -> None:
    hours = {"from": "22:00", "to": "06:00", "usageThresholds": {"cpu": 85}}
    tree = configured("filter", TIME_SHARED, {"windows": [hours]})
    assert "LoadAwareScheduling by the hour, which is not enabled" in read_config(tree).notes[0]
    both = tree | plugins(filter=([TIME_SHARED, LOAD_AWARE], []))
    assert read_config(both).notes == ()
    aggregated = {"usageThresholds": {"cpu": 65}, "usageAggregationType": "p95"}
    both["pluginConfig"].append({"name": LOAD_AWARE, "args": {"aggregated": aggregated}})
    assert "yield to aggregated.usageThresholds" in read_config(both).notes[0]
    hours["aggregatedUsageThresholds"] = {"cpu": 80}
    result = read_config(both)
    assert result.notes == ()
    night = args_in_force(result.args[TIME_SHARED], result.load_aware, 0.0)
    assert night.aggregated
    assert night.aggregated.usage_thresholds == {"cpu": 80}
    assert night.aggregated.usage_aggregation_type == "p95"


@pytest.mark.parametrize(
    ("point", "name", "args"),
    [
        ("score", "NodeResourcesFit", {"scoringStrategy": {"type": "LeastAllocated"}}),
        ("multiPoint", "Reservation", {"enablePreemption": True}),
        ("filter", "NodeNUMAResource", {"defaultCPUBindPolicy": "FullPCPUs"}),
    ],
)
def test_plugins_that_run_in_the_scheduler_alone_are_refused_by_name(
    point: str, name: str, args: Any
) -> None:
    with pytest.raises(InvalidPolicyError, match=f"there is {name}"):
        read_config(configured(point, name, args))


def test_the_profile_is_chosen_by_name() -> None:
    both = yaml.safe_load(FIT_PLUS)
    both["profiles"] += yaml.safe_load(LOAD)["profiles"]
    both["profiles"][1]["schedulerName"] = "load-aware"
    with pytest.raises(InvalidPolicyError, match="several profiles"):
        read_config(both)
    assert read_config(both, "load-aware").filters == (LOAD_AWARE,)
    with pytest.raises(InvalidPolicyError, match="there is koord-scheduler, load-aware"):
        read_config(both, "default")
    with pytest.raises(InvalidPolicyError, match="no plugin that runs here is enabled"):
        read_config(plugins(score=(["ImageLocality"], [])))


def test_peaks_accepts_keys_spelt_as_go_fields() -> None:
    for key in ("NodePowerModel", "nodePowerModel"):
        tree = configured("score", "Peaks", {key: {"n": {"k0": 1, "k1": 2.5, "k2": 0.1}}})
        assert read_config(tree).args["Peaks"].node_power_model["n"].k1 == 2.5


def test_estimates_longer_than_half_an_hour_are_noted() -> None:
    tree = configured("filter", LOAD_AWARE, {"estimatedSecondsAfterPodScheduled": 3600})
    assert "counts for 1800 s, not for 3600" in read_config(tree).notes[0]
