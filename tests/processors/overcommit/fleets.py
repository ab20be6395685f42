"""Random nodes with their pods, as columns; and records of resources."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.overcommit.resource_columns import NodeAmounts, PodAmounts, PolicyColumns
from pipeline.processors.policy.colocation_config import DEFAULTS, Colocation
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.policy_in_force import overcommit_settings
from pipeline.processors.policy.springtide_config import SpringtideConfig
from pipeline.times import format_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit

CONFIG = SpringtideConfig(mid_reclaim_percent=60)
AS_OF = 1_700_000_010.0
AMOUNT = st.tuples(st.integers(0, 10**6), st.integers(0, 2**50))
PERCENT = st.integers(0, 1000)


def resources_record(**values: Any) -> NodeResourcesRecord:
    fields: dict[str, Any] = {
        "node": "n", "as_of": format_time(AS_OF), "generation": 1, "offset": 1, "epoch": 1,
        "strategy": Overcommit(), "predictor": "percentile",
    }  # fmt: skip
    return NodeResourcesRecord(**(fields | values))


class Node(NamedTuple):
    capacity: tuple[int, int]
    kubelet: tuple[int, int]
    annotated: tuple[int, int]
    system: tuple[int, int]
    prod_apps: tuple[int, int]
    mid_apps: tuple[int, int]
    allocatable: tuple[int, int]
    reclaimable: tuple[int, int]
    usage: tuple[int, int] | None
    peak: tuple[int, int] | None
    own: Colocation


class Pod(NamedTuple):
    of: str
    is_lse: bool
    is_listed: bool
    request: tuple[int, int]
    usage: tuple[int, int] | None


OWN = st.builds(
    Colocation,
    cpu_reclaim_threshold_percent=PERCENT,
    memory_reclaim_threshold_percent=PERCENT,
    cpu_calculate_policy=st.sampled_from(["usage", "request", "maxUsageRequest", "other"]),
    memory_calculate_policy=st.sampled_from(["usage", "request", "maxUsageRequest", "other"]),
    batch_cpu_threshold_percent=st.none() | PERCENT,
    batch_memory_threshold_percent=st.none() | PERCENT,
    mid_cpu_threshold_percent=st.integers(0, 100),
    mid_memory_threshold_percent=st.integers(0, 100),
    mid_unallocated_percent=st.integers(0, 100),
    mid_reclaim_mode=st.none() | st.sampled_from(["static", "dynamic"]),
    mid_static_cpu_reserved_percent=PERCENT,
    mid_static_memory_reserved_percent=PERCENT,
)
NODE = st.builds(Node, *[AMOUNT] * 8, st.none() | AMOUNT, st.none() | AMOUNT, OWN)
POD = st.builds(
    Pod,
    st.sampled_from(list(CLASS_CODES)),
    st.booleans(),
    st.booleans(),
    AMOUNT,
    st.none() | AMOUNT,
).filter(lambda pod: pod.is_listed or pod.usage is not None)
Fleet = list[tuple[Node, list[Pod]]]
FLEET = st.lists(st.tuples(NODE, st.lists(POD, max_size=5)), min_size=1, max_size=4)


def amounts(of: list[tuple[int, int]]) -> Any:
    return np.array(of, np.int64).reshape(len(of), 2)


def columns(fleet: Fleet) -> tuple[NodeAmounts, PodAmounts, PolicyColumns]:
    nodes = [node for node, _ in fleet]
    pods = [(number, pod) for number, (_, on) in enumerate(fleet) for pod in on]

    def column(name: str) -> Any:
        # What is not known may be any number.
        return amounts([getattr(node, name) or (7, 7) for node in nodes])

    return (
        NodeAmounts(
            capacity=column("capacity"),
            allocatable=column("allocatable"),
            kubelet_reserved=column("kubelet"),
            annotated_reserved=column("annotated"),
            usage=column("usage"),
            has_usage=np.array([node.usage is not None for node in nodes], bool),
            system=column("system"),
            prod_apps=column("prod_apps"),
            mid_apps=column("mid_apps"),
            reclaimable=column("reclaimable"),
            prod_peak=column("peak"),
            has_peak=np.array([node.peak is not None for node in nodes], bool),
        ),
        PodAmounts(
            node=np.array([number for number, _ in pods], np.int64),
            class_code=np.array([CLASS_CODES[pod.of] for _, pod in pods], np.int64),
            is_lse=np.array([pod.is_lse for _, pod in pods], bool),
            is_listed=np.array([pod.is_listed for _, pod in pods], bool),
            has_usage=np.array([pod.usage is not None for _, pod in pods], bool),
            request=amounts([pod.request for _, pod in pods]),
            usage=amounts([pod.usage or (7, 7) for _, pod in pods]),
        ),
        PolicyColumns([overcommit_settings(merge(DEFAULTS, node.own), CONFIG) for node in nodes]),
    )
