"""Pods and nodes for tests of evictions."""

from typing import Any

from hypothesis import strategies as st

from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS, pod_class
from pipeline.processors.node_qos.eviction_victims import (
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    LABEL_EVICTION_ENABLED,
    LABEL_SUB_PRIORITY,
)
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from pipeline.topics.resource_amounts import Resources

NOW = 1_700_000_000.0
GIB = 1 << 30
ENABLED = {LABEL_EVICTION_ENABLED: "true"}


def best_effort(name: str, priority: int | None = 5500, **fields: Any) -> PodState:
    """A running best-effort pod that lets itself be evicted by each feature."""
    return pod(name, "BE", priority, **fields)


def pod(name: str, qos: str, priority: int | None, **fields: Any) -> PodState:
    labels = {LABEL_QOS_CLASS: qos} if qos else {}
    labels |= fields.pop("labels", ENABLED)
    known = {
        "uid": f"uid-{name}", "namespace": "shop", "qos_label": qos, "qos": qos, "phase": "Running",
        "pod_class": pod_class(labels, priority, "BestEffort").priority_class,
        "path": f"kubepods/besteffort/poduid-{name}", "kube_qos": "BestEffort",
    }  # fmt: skip
    return PodState(name=name, priority=priority, labels=labels, **(known | fields))


def node(*pods: PodState, at: float = NOW, **fields: Any) -> NodeState:
    """A node of 16 cores and 64 GiB whose thresholds are `thresholds`."""
    policy = {
        "enable": True, "evict_enabled_priority_threshold": 5999,
        "allocatable_evict_priority_threshold": 7999,
    }  # fmt: skip
    thresholds = ThresholdStrategy(**(policy | fields.pop("thresholds", {})))
    known = {
        "slo": NodeSLOSpec(resource_used_threshold_with_be=thresholds),
        "capacity": Resources(cpu_millicores=16_000, memory_bytes=64 * GIB),
    }
    return NodeState(node="node-1", at=at, pods=pods, **(known | fields))


_TEXTS = st.none() | st.sampled_from(
    [
        "0",
        "-5",
        "7",
        "9001",
        "",
        "x",
        "99999999999",
        '["CPUEvict"]',
        '["MemoryEvict", 3]',
        "[[",
        "{}",
    ]
)
_AMOUNTS = st.builds(
    Resources,
    cpu_millicores=st.none() | st.integers(0, 20_000),
    memory_bytes=st.none() | st.integers(0, 70 * GIB),
)


@st.composite
def any_pods(draw: st.DrawFn, most: int = 5) -> tuple[PodState, ...]:
    """Pods of all classes, sensible or not."""
    return tuple(draw(_any_pod(f"p{index}")) for index in range(draw(st.integers(0, most))))


@st.composite
def _any_pod(draw: st.DrawFn, name: str) -> PodState:
    labels = {LABEL_EVICTION_ENABLED: draw(st.sampled_from(["true", "true", "false"]))}
    annotations = {}
    if (sub_priority := draw(_TEXTS)) is not None:
        labels[LABEL_SUB_PRIORITY] = sub_priority
    for key in (EVICTION_POLICY, EVICTION_PRIORITY):
        if (text := draw(_TEXTS)) is not None:
            annotations[key] = text
    classes = ("prod", "mid", "batch", "free", "none", "unknown")
    any_class = {"pod_class": draw(st.sampled_from(classes))} if draw(st.booleans()) else {}
    return pod(
        name,
        draw(st.sampled_from(["BE", "BE", "BE", "LS", "LSR", "LSE", "SYSTEM", ""])),
        draw(st.sampled_from([None, 100, 3500, 5000, 5500, 7500, 9000, 9500, 2_000_001_000])),
        labels=labels,
        annotations=annotations,
        listed=draw(st.sampled_from([True, True, True, False])),
        deleting=draw(st.sampled_from([False, False, False, True])),
        phase=draw(st.sampled_from(["Running", "Pending", "Failed", ""])),
        cpu_cores=draw(st.none() | st.floats(0, 20)),
        memory_bytes=draw(st.none() | st.floats(0, 70 * GIB)),
        batch=draw(_AMOUNTS),
        mid=draw(_AMOUNTS),
        **any_class,
    )
