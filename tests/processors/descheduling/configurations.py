"""A configuration with every key, and readers of configurations with one change."""

import json
from typing import Any

from pipeline.processors.descheduling.descheduler_config import Descheduling, read_tree
from pipeline.processors.policy.load_configmap import PolicyProblem

SELECTOR = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gold"]}]}
NAMESPACES = {"exclude": ["kube-system"]}
STRATEGY = {
    "paused": False, "dryRun": False, "nodeFit": True, "evictableNamespaces": NAMESPACES,
    "nodeSelector": SELECTOR, "podSelectors": [{"name": "web", "selector": SELECTOR}],
}  # fmt: skip
THRESHOLDS = {
    "highThresholds": {"cpu": 75, "memory": 80.5}, "lowThresholds": {"cpu": 45, "memory": 55},
    "prodHighThresholds": {"cpu": 60}, "prodLowThresholds": {"cpu": 30},
    "resourceWeights": {"cpu": 2},
    "anomalyCondition": {
        "timeout": "1m", "consecutiveAbnormalities": 4, "consecutiveNormalities": 2,
    },
    "usageType": "p95", "usageAggregatedDuration": "10m", "hysteresisPercent": 3,
}  # fmt: skip
ARGS: dict[str, Any] = {
    "LowNodeLoad": {
        "apiVersion": "descheduler/v1alpha2", "kind": "LowNodeLoadArgs", **STRATEGY, **THRESHOLDS,
        "useDeviationThresholds": False, "numberOfNodes": 2, "nodeMetricExpirationSeconds": 120,
        "detectorCacheTimeout": "10m",
        "nodePools": [
            {"name": "gold", "nodeSelector": SELECTOR, "useDeviationThresholds": True, **THRESHOLDS}
        ],
    },
    "CustomPriority": {
        **STRATEGY, "mode": "DrainNode", "autoCordon": True,
        "evictionOrder": [
            {"name": name, "nodeSelector": SELECTOR, "keepThreshold": {"cpu": 20},
             "rejectThreshold": {"cpu": 80}}
            for name in ("reserved", "spot")
        ],
    },
    "FragmentationAware": {
        **STRATEGY, "resources": ["cpu", "memory"], "imbalanceThreshold": 0.2,
        "minImprovementThreshold": 0.05,
    },
    "ScaleDownBinPack": {
        **{key: value for key, value in STRATEGY.items() if key not in ("dryRun", "nodeFit")},
        "strategy": "EvictDirectly", "maxPodsToEvict": 3, "resources": ["cpu"],
        "resourceWeights": {"cpu": 0.5},
    },
    "MigrationController": {
        "dryRun": False, "maxConcurrentReconciles": 2, "evictFailedBarePods": True,
        "evictAllBarePods": True, "evictLocalStoragePods": True, "evictSystemCriticalPods": True,
        "ignorePvcPods": True, "priorityThreshold": {"name": "koord-prod"},
        "labelSelector": SELECTOR, "namespaces": NAMESPACES, "nodeFit": True,
        "nodeSelector": "pool=gold", "skipEvictionGates": ["PVC", "NodeFit"],
        "maxMigratingGlobally": 10, "maxMigratingPerNode": 1, "maxMigratingPerNamespace": 5,
        "maxMigratingPerWorkload": "10%", "maxUnavailablePerWorkload": 2,
        "skipCheckExpectedReplicas": True,
        "objectLimiters": {"workload": {"duration": "5m", "maxMigrating": 1, "burst": 1}},
        "defaultJobMode": "EvictDirectly", "defaultJobTTL": "10m", "schedulerNames": ["a"],
        "evictQPS": "2.5", "evictBurst": 2, "evictionPolicy": "Delete",
        "defaultDeleteOptions": {
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 30,
            "propagationPolicy": "Background", "preconditions": {}, "dryRun": ["All"],
        },
        "arbitrationArgs": {"enabled": True, "interval": "500ms"},
    },
    "LowNodeUtilization": {
        "useDeviationThresholds": False, "thresholds": {"MetricResource": 20},
        "targetThresholds": {"MetricResource": 70}, "numberOfNodes": 1,
        "evictableNamespaces": NAMESPACES,
        "evictionLimits": {"node": 1, "namespace": 2, "total": 3},
        "metricsUtilization": {"source": "Prometheus", "prometheus": {"query": "q"}},
    },
}  # fmt: skip
NAMES = [*ARGS]
EVERY_KEY: dict[str, Any] = {
    "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
    "clientConnection": {
        "kubeconfig": "", "acceptContentTypes": "", "contentType": "", "qps": 50, "burst": 100,
    },
    "leaderElection": {
        "leaderElect": True, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
        "resourceLock": "leases", "resourceName": "a", "resourceNamespace": "b",
    },
    "enableProfiling": True, "enableContentionProfiling": True,
    "healthzBindAddress": "0.0.0.0:10251", "metricsBindAddress": "0.0.0.0:10251",
    "deschedulingInterval": "2m", "dryRun": False, "nodeSelector": {"matchLabels": {"a": "b"}},
    "maxNoOfPodsToEvictTotal": 30, "maxNoOfPodsToEvictPerNode": 3,
    "maxNoOfPodsToEvictPerNamespace": 10,
    "profiles": [
        {
            "name": "koord-descheduler", "nodeSelector": SELECTOR,
            "plugins": {
                "deschedule": {"disabled": [{"name": "*"}]},
                "balance": {"enabled": [{"name": "LowNodeLoad"}]},
                "evict": {
                    "disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}],
                },
                "filter": {"enabled": [{"name": "MigrationController"}]},
            },
            "pluginConfig": [{"name": name, "args": args} for name, args in ARGS.items()],
        }
    ],
}  # fmt: skip


def every_key() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(json.dumps(EVERY_KEY))
    return tree


def configuration(plugin: str, args: Any, **keys: Any) -> dict[str, Any]:
    """A configuration with one plugin."""
    profiles = [{"name": "a", "pluginConfig": [{"name": plugin, "args": args}]}]
    head = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
    return {**head, "profiles": profiles, **keys}


def read(tree: Any) -> tuple[Descheduling, tuple[PolicyProblem, ...]]:
    """Read a tree, which must be a configuration."""
    descheduling, problems = read_tree(tree)
    assert descheduling is not None
    return descheduling, problems


def refused(problems: tuple[PolicyProblem, ...]) -> list[str]:
    """The problems that are not in force, without the remark of that."""
    return [f"{problem.where}: {problem.text}" for problem in problems if not problem.in_force]
