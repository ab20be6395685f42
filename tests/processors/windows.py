"""Windows for tests of the bank, by hand and at random with all kinds of faults; warm banks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.nodes import Strategy

START_MS = 1_700_000_040_000
LENGTH_MS = 120_000
GIB = float(1 << 30)


def config_with(**settings: Any) -> ModelConfig:
    """A configuration with these fields of its own and of its strategy."""
    fields = {name: settings.pop(name) for name in {*settings} & {*Strategy.__struct_fields__}}
    return ModelConfig(**settings, strategy=Strategy(**fields))


def warm_bank(**settings: Any) -> Bank:
    """A bank that trusts a pod at once, unless `settings` say otherwise."""
    warm = {"cold_start_seconds": 0.0, "cold_start_samples": 0}
    return Bank(config_with(**(warm | settings)))


def peaks_of(bank: Bank, node: str = "node-a") -> NodePeaks:
    return bank.peaks([node])[0]


def with_margin(cores: float) -> float:
    """The peak of a pod that always uses so many cores, in millicores and with 10 percent more."""
    end = CPU_LAYOUT.ends[CPU_LAYOUT.digitize(cores)]
    return float(np.trunc(1.1 * np.trunc(end * 1000)))


@dataclass(frozen=True)
class Pod:
    """A pod of a hand-made window; `requests` in millicores and bytes."""

    uid: str
    usage: tuple[float, float]
    pod_class: str = "prod"
    requests: tuple[float, float] = (1000.0, GIB)
    age: float = 1e9
    active: bool = True
    ended: bool = False


def window(
    end: int,
    pods: Sequence[Pod] = (),
    *,
    node: str = "node-a",
    usage: tuple[float, float] = (4.0, 8 * GIB),
    host_apps: tuple[float, float] = (0.0, 0.0),
    coverage: float = 1.0,
    machine: str = "machine-1",
    epoch: int = 1,
    allocatable: tuple[float, float] = (16_000.0, 64 * GIB),
    length_ms: int = LENGTH_MS,
) -> NodeWindow:
    """The `end`-th window of a node on the grid."""
    end_ms = START_MS + end * LENGTH_MS
    return NodeWindow(
        node=node,
        machine_id=machine,
        epoch=epoch,
        start_ms=end_ms - length_ms,
        end_ms=end_ms,
        coverage=coverage,
        node_usage=np.array(usage),
        host_apps=np.array(host_apps),
        allocatable=np.array(allocatable),
        pod_uids=[pod.uid for pod in pods],
        pod_classes=np.array([CLASS_CODES[pod.pod_class] for pod in pods], np.int8),
        pod_usage=np.array([pod.usage for pod in pods], float).reshape(-1, 2),
        requests=np.array([pod.requests for pod in pods], float).reshape(-1, 2),
        pod_ages=np.array([pod.age for pod in pods], float),
        pod_active=np.array([pod.active and not pod.ended for pod in pods], np.bool_),
        pod_ended=np.array([pod.ended for pod in pods], np.bool_),
    )


BAD = st.sampled_from([np.nan, -1.0, np.inf, -np.inf, 1e300])
CPU_USAGE = st.floats(min_value=0, max_value=64) | BAD
MEMORY_USAGE = st.floats(min_value=0, max_value=64 * GIB) | BAD
PODS = st.lists(
    st.builds(
        Pod,
        uid=st.sampled_from([f"pod-{i}" for i in range(6)]),
        usage=st.tuples(CPU_USAGE, MEMORY_USAGE),
        pod_class=st.sampled_from(list(CLASS_CODES)),
        requests=st.tuples(st.sampled_from([0.0, 1500.0, np.nan]), st.just(GIB)),
        age=st.sampled_from([10.0, 1e9, np.nan]),
        active=st.booleans(),
        ended=st.booleans(),
    ),
    max_size=5,
)


@st.composite
def streams(draw: st.DrawFn) -> list[NodeWindow]:
    """Windows of up to three nodes in some order, with gaps, duplicates and late ones."""
    windows = []
    ends = {"node-a": 0, "node-b": 0, "node-c": 0}
    for _ in range(draw(st.integers(1, 14))):
        node = draw(st.sampled_from(sorted(ends)))
        # 130 windows on is more than 100 half-lives of 120 s, and 20 is past the expiration.
        ends[node] += draw(st.sampled_from([1, 1, 1, 1, 0, -1, 3, 20, 130]))
        windows.append(
            window(
                ends[node],
                draw(PODS),
                node=node,
                usage=(draw(CPU_USAGE), draw(MEMORY_USAGE)),
                host_apps=draw(st.sampled_from([(0.0, 0.0), (0.5, GIB), (np.nan, 0.0)])),
                coverage=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.49])),
                machine=draw(st.sampled_from(["m1", "m1", "m1", "m1", "m2"])),
                epoch=draw(st.integers(1, 2)),
            )
        )
    return windows
