"""The cluster of the demo of hot nodes: its objects, its policy, and the usage of its pods.

Two Deployments run on a node each, and use what one recorded machine used: little at first, then
three times as much, so that both nodes get hot. The disruption budget of one allows an eviction,
that of the other allows none.
"""

import json
from typing import Any, Final, NamedTuple

from pipeline.local.replayed_usage import NODE_CORES, NODE_GIB
from pipeline.processors.kubernetes.pod_classes import LABEL_PRIORITY_CLASS
from pipeline.processors.placement.extender_config import GeneratorOptions, generate_config

WINDOW_SECONDS: Final = 5
SPAN_SECONDS: Final = 60
HIGH_PERCENT: Final = 65
QUIET_STEPS: Final = 12
"""Steps before the load rises: the windows of a span, sent before the demo begins."""
REPLICAS: Final = 2

Object = dict[str, Any]


class HotNode(NamedTuple):
    """A node that gets hot, and the only Deployment that runs on it. `available` is `minAvailable`
    of its disruption budget."""

    name: str
    deployment: str
    available: int


RELIEVED: Final = HotNode("web-node", "web", REPLICAS - 1)
PROTECTED: Final = HotNode("db-node", "db", REPLICAS)
HOT_NODES: Final = (RELIEVED, PROTECTED)
SPARE_NODES: Final = ("spare-1", "spare-2")
TAINTED_NODE: Final = "gpu-1"
NODES: Final = (*(node.name for node in HOT_NODES), *SPARE_NODES, TAINTED_NODE)

# CPU of machine bbr-95cd047868 of Bitbrains in millicores, a step for five minutes, August 2013
# (Grid Workloads Archive, trace GWA-T-12 "rnd").
_RECORDED: Final = (
    129, 135, 296, 377, 382, 425, 420, 508, 431, 479, 455, 707, 1102, 1128, 1110, 1117, 1115, 1115,
    1117, 1115, 1121, 1114, 1091, 1134, 1118, 1118, 1131, 1129, 1119, 1113,
)  # fmt: skip
SCALE: Final = 13.0
"""A pod uses so many times what the machine used: two make a node hot, one does not."""
_POD_BYTES: Final = 4 * 2.0**30


def usage(pod: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod in a step, whichever pod it is. After the record the steps since the
    load rose follow again and again."""
    if step >= len(_RECORDED):
        busy = len(_RECORDED) - QUIET_STEPS
        step = QUIET_STEPS + (step - QUIET_STEPS) % busy
    return SCALE * _RECORDED[step] / 1000, _POD_BYTES


DESCHEDULER_CONFIGURATION: Final[Object] = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "profiles": [
        {
            "name": "hot-nodes",
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "highThresholds": {"cpu": HIGH_PERCENT, "memory": 90},
                        "lowThresholds": {"cpu": 45, "memory": 80},
                        "usageAggregatedDuration": "1m",
                        "anomalyCondition": {
                            "consecutiveAbnormalities": 2, "consecutiveNormalities": 2,
                        },
                    },
                },
                {"name": "MigrationController", "args": {"defaultJobTTL": "1m"}},
            ],
        }
    ],
}  # fmt: skip
SHORTENED: Final = (
    f"the policy of this demo is quick: nodes are hot above {HIGH_PERCENT}% of CPU on average "
    "over 1 minute (default 5), alerts open and close after 2 windows (5 and 3), a plan is valid "
    f"for 1 minute (5), and windows have {WINDOW_SECONDS} s (30)"
)


def scheduler_configuration(extender_url: str) -> Object:
    """The configuration of the scheduler. It places no pod without the extender's answer, and
    retries soon."""
    document = generate_config(GeneratorOptions(extender_url, mode="act"))
    document["extenders"][0] |= {"ignorable": False, "httpTimeout": "30s"}
    return {**document, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}


def config_map(name: str, namespace: str) -> Object:
    """The ConfigMap with the policy."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        # JSON is YAML, too.
        "data": {name: _json(DESCHEDULER_CONFIGURATION)},
    }  # fmt: skip


def hot_node_objects(node: HotNode) -> list[Object]:
    """A node that gets hot, with the Deployment that runs on it, and its disruption budget."""
    labels = {"app": node.deployment}
    selector = {"matchLabels": labels}
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}}
    return [
        node_object(node.name),
        {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": node.deployment, "namespace": "default"},
            "spec": {"minAvailable": node.available, "selector": selector},
        },
        {
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": node.deployment, "namespace": "default"},
            "spec": {
                "replicas": REPLICAS, "selector": selector,
                "template": {
                    "metadata": {"labels": labels | {LABEL_PRIORITY_CLASS: "koord-prod"}},
                    "spec": {
                        "containers": [{"name": "main", "image": "none", "resources": resources}],
                        "terminationGracePeriodSeconds": 0,
                    },
                },
            },
        },
    ]  # fmt: skip


def other_node_objects() -> list[Object]:
    """The nodes that are not hot: two with room, and one whose taint keeps the pods away."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    return [*map(node_object, SPARE_NODES), node_object(TAINTED_NODE, taint)]


def node_object(name: str, *taints: Object) -> Object:
    amounts = {"cpu": str(NODE_CORES), "memory": f"{NODE_GIB}Gi", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": [*taints]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }  # fmt: skip


def _json(document: Object) -> str:
    return json.dumps(document, indent=1)
