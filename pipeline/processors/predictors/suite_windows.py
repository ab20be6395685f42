"""Windows for the suite of laws: random with all kinds of faults, and steady."""

import dataclasses
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.workloads import NO_WORKLOAD, Workload

_START_MS: Final = 1_700_000_000_000 // 86_400_000 * 86_400_000
_MINUTE_MS: Final = 60_000
GIB: Final = 2.0**30
_WINDOWS: Final = 40
_WORKLOADS: Final = (Workload("shop", "Deployment", "web"), NO_WORKLOAD, None)


def random_windows(random: np.random.Generator) -> list[NodeWindow]:
    """Windows of three nodes in any order, with gaps, duplicates, late windows, other machines, bad
    values, and pods that come and go."""
    ends = {"node-a": 0, "node-b": 0, "node-c": 0}
    windows = []
    for _ in range(_WINDOWS):
        node = str(random.choice([*ends]))
        ends[node] += int(random.choice([1, 1, 1, 1, 1, 1, 0, -1, 5, 200]))
        end_ms = _START_MS + ends[node] * 10 * _MINUTE_MS
        numbers = np.flatnonzero(random.random(7) < 0.5).tolist()
        uids = [f"pod-{i}" for i in numbers]
        pods = len(uids)
        active = random.random(pods) < 0.8
        windows.append(
            NodeWindow(
                node=node,
                machine_id=str(random.choice(["m1", "m2"], p=[0.9, 0.1])),
                epoch=1,
                start_ms=end_ms - 10 * _MINUTE_MS,
                end_ms=end_ms,
                coverage=float(random.choice([1.0, 1.0, 1.0, 0.5, 0.2])),
                node_usage=_usage(random, 1)[0] * 8.0,
                host_apps=_usage(random, 1)[0] / 16.0,
                allocatable=np.array([16_000.0, 64 * GIB]),
                pod_uids=uids,
                pod_classes=random.integers(0, len(CLASSES), pods).astype(np.int8),
                pod_usage=_usage(random, pods),
                requests=np.stack(
                    [
                        random.choice([0.0, 1500.0, np.nan, 1e12], pods),
                        random.choice([0.0, GIB, np.nan, 2.0**62], pods),
                    ],
                    axis=1,
                ),
                pod_ages=random.choice([10.0, 1e9, np.nan], pods),
                pod_active=active,
                pod_ended=~active & (random.random(pods) < 0.5),
                pod_workloads=[_WORKLOADS[i % len(_WORKLOADS)] for i in numbers],
            )
        )
    return windows


def _usage(random: np.random.Generator, count: int) -> FloatArray:
    """Cores and bytes, (count, 2), every tenth invalid or extreme."""
    usual = np.exp(random.normal(size=(count, 2))) * [1.0, GIB]
    extreme = random.choice([0.0, np.nan, -1.0, np.inf, 1e6, 2.0**60, 1e300], (count, 2))
    return np.where(random.random((count, 2)) < 0.1, extreme, usual)


def steady_window(number: int, usage: FloatArray, requests: FloatArray | None = None) -> NodeWindow:
    """A complete window of a quarter of an hour, with a pod of each class."""
    end_ms = _START_MS + (number + 1) * 15 * _MINUTE_MS
    pods = len(usage)
    return NodeWindow(
        node="steady",
        machine_id="m",
        epoch=1,
        start_ms=end_ms - 15 * _MINUTE_MS,
        end_ms=end_ms,
        coverage=1.0,
        node_usage=np.array([8.0, 16 * GIB]),
        allocatable=np.array([16_000.0, 64 * GIB]),
        pod_uids=[f"pod-{i}" for i in range(pods)],
        pod_classes=np.arange(pods, dtype=np.int8),
        pod_usage=usage,
        requests=np.full((pods, 2), [1000.0, 2 * GIB]) if requests is None else requests,
        pod_ages=np.full(pods, 1e9),
        pod_active=np.ones(pods, np.bool_),
    )


def reversed_pods(window: NodeWindow) -> NodeWindow:
    columns = (
        "pod_classes", "pod_usage", "requests", "pod_ages", "pod_active", "pod_ended",
        "pod_workloads",
    )  # fmt: skip
    backwards = {name: getattr(window, name)[::-1] for name in columns}
    return dataclasses.replace(window, pod_uids=window.pod_uids[::-1], **backwards)
