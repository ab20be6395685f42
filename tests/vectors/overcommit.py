"""Vector groups of what is left for Batch and Mid.

What each passes through:

- `batch_resource`: `batch.batch`, one node at a time, pods by `classes.pod_class`, the reservation
  by `reserved.reservation`, the strategy by `facts.strategies` over the defaults.
- `mid_resource`: `mid.mid`, by the formula `source`, which is that of upstream's code.
- `degrade`: `facts.is_fresh`; what is not fresh resets both.
- `safety_margin`: the margin of `batch.batch`.
- `node_reserved`: `reserved.reservation`; the kubelet's by `reserved.kubelet_reserved`.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.processors.kubernetes.node_reservation import (
    ANNOTATION,
    kubelet_reserved,
    reservation,
)
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, LABEL_PRIORITY_CLASS, pod_class
from pipeline.processors.overcommit.batch import batch
from pipeline.processors.overcommit.mid import Percents, allocated, mid
from pipeline.processors.overcommit.resource_columns import (
    Nodes,
    Pods,
    Strategies,
    is_fresh,
    strategies,
)
from pipeline.processors.policy.colocation_config import COLOCATION, DEFAULTS
from pipeline.processors.policy.config_sections import merged
from pipeline.processors.policy.policy_in_force import overcommit_of
from pipeline.processors.policy.springtide_config import Own
from pipeline.topics.overcommit_terms import Overcommit

Case = dict[str, Any]

_KEYS = ("cpu_milli", "memory_bytes")
_NAMES = {"koord-prod": "prod", "koord-mid": "mid", "koord-batch": "batch", "koord-free": "free"}


def batch_resource(case: Case) -> object:
    if _is_stale(case["strategy"]["degradeTimeMinutes"], case["node_metric"]):
        return {"reset": True}
    amount = batch(*columns(case)).amount[0].tolist()
    return {"batch_cpu_milli": amount[0], "batch_memory_bytes": amount[1]}


def mid_resource(case: Case) -> object:
    if _is_stale(case["strategy"]["degradeTimeMinutes"], case["node_metric"]):
        return {"reset": True}
    none = Percents(np.zeros(1, np.int64), np.zeros(1, np.int64))
    nodes, pods, of = columns(case)
    amount = mid(nodes, allocated(1, pods), of, none, "source").amount[0].tolist()
    return {"mid_cpu_milli": amount[0], "mid_memory_bytes": amount[1]}


def degrade(case: Case) -> object:
    return {"degrade": _is_stale(case["degradeTimeMinutes"], case["node_metric"])}


def _is_stale(degrade_minutes: int, metric: Case | None) -> bool:
    age = (metric or {}).get("update_age_seconds", np.nan)
    of = strategies([Overcommit(degrade_time_minutes=degrade_minutes)])
    return not is_fresh(np.array([age], float), of)[0]


def safety_margin(case: Case) -> object:
    capacity = case["capacity"]
    node = {"capacity": capacity, "allocatable": capacity}
    found = batch(*columns({**case, "node": node}))
    return dict(zip(_KEYS, found.margin[0].tolist(), strict=True))


def node_reserved(case: Case) -> object:
    if "node" in case:
        node = case["node"]
        kept = kubelet_reserved(*(amounts(node.get(k)) for k in ("capacity", "allocatable")))
        return {"reserved": dict(zip(_KEYS, kept[0].tolist(), strict=True))}
    if case["annotation"] is None:
        found = reservation({})
    else:
        found = reservation(annotated(case["annotation"]))
    said = dict(zip(_KEYS, found[:2], strict=True))
    return {"reserved": {k: v for k, v in said.items() if v is not None} or None}


def columns(case: Case) -> tuple[Nodes, Pods, Strategies]:
    node, metric = case["node"], case.get("node_metric") or {}
    capacity, allocatable = (amounts(node.get(k)) for k in ("capacity", "allocatable"))
    kept = reservation(annotated(node["reservation"]) if "reservation" in node else {})
    apps = {
        name: [a["usage"] for a in metric.get("host_apps", ()) if a["priority_class"] == label]
        for label, name in _NAMES.items()
    }
    nodes = Nodes(
        capacity=capacity,
        allocatable=allocatable,
        kubelet_reserved=kubelet_reserved(capacity, allocatable),
        annotated_reserved=np.array([[kept.cpu_millicores or 0, kept.memory_bytes or 0]]),
        usage=amounts(metric.get("node_usage")),
        has_usage=np.array([bool(metric.get("node_usage"))]),
        system=amounts(metric.get("system_usage")),
        prod_apps=amounts(*apps["prod"]).sum(0, keepdims=True),
        mid_apps=amounts(*apps["mid"]).sum(0, keepdims=True),
        reclaimable=amounts(metric.get("prod_reclaimable")),
        prod_peak=amounts(None),
        has_peak=np.array([False]),
    )
    strategy = overcommit_of(merged(DEFAULTS, COLOCATION.convert(case["strategy"])), Own())
    return nodes, _pods(case.get("pods") or (), metric.get("pods") or ()), strategies([strategy])


def _pods(listed: Sequence[Case], reported: Sequence[Case]) -> Pods:
    usage = {(one["namespace"], one["name"]): one for one in reported}
    rows = []
    for pod in listed:
        if pod["phase"] not in ("Running", "Pending"):
            continue
        found = usage.pop((pod["namespace"], pod["name"]), None)
        labels = {"koordinator.sh/qosClass": pod["koord_qos"]} if "koord_qos" in pod else {}
        if "priority_class_label" in pod:
            labels[LABEL_PRIORITY_CLASS] = pod["priority_class_label"]
        of = pod_class(labels, pod.get("priority"), pod["kube_qos"])
        rows.append((of.priority_class, of.qos == "LSE", True, found is not None,
                     pod["requests"], found["usage"] if found else None))  # fmt: skip
    for one in usage.values():
        name = _NAMES.get(one.get("priority_class", ""), "none")
        rows.append((name, False, False, True, None, one["usage"]))
    names, lse, is_listed, has_usage, requests, usages = (
        zip(*rows, strict=True) if rows else [()] * 6
    )
    return Pods(
        node=np.zeros(len(rows), np.int64),
        class_code=np.array([CLASS_CODES[name] for name in names], np.int64),
        is_lse=np.array(lse, bool),
        is_listed=np.array(is_listed, bool),
        has_usage=np.array(has_usage, bool),
        request=amounts(*requests),
        usage=amounts(*usages),
    )


def amounts(*of: Case | None) -> Any:
    rows = [[(one or {}).get(key, 0) for key in _KEYS] for one in of]
    return np.array(rows, np.int64).reshape(len(rows), 2)


def annotated(of: Case) -> dict[str, str]:
    resources = dict(of.get("resources") or {})
    said = {name: value for name, value in of.items() if name != "resources"}
    if resources:
        said["resources"] = {
            **({"cpu": f"{resources['cpu_milli']}m"} if "cpu_milli" in resources else {}),
            **({"memory": resources["memory_bytes"]} if "memory_bytes" in resources else {}),
        }
    return {ANNOTATION: json.dumps(said)}


ADAPTERS = {
    "batch_resource": batch_resource,
    "degrade": degrade,
    "mid_resource": mid_resource,
    "node_reserved": node_reserved,
    "safety_margin": safety_margin,
}
