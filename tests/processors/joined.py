"""Samples, cluster facts and windows of the join: by hand, and at random."""

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.processors.join.node_facts import RAW_ALLOCATABLE
from pipeline.processors.join.pod_facts import pod_row as row_of_pod
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.model.training_batch import TrainingBatch
from pipeline.processors.model.window_batch import AverageUsage, WindowBatch
from pipeline.processors.overcommit.mid import FORMULAS
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.nodes import NodeRecord, NodeStrategy, Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import SampleRows, read_rows
from pipeline.topics.samples import (
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleBatch,
    SampleHeader,
    encode_samples,
)
from pipeline.topics.windows import Window, decode_window, encode_window

GIB = float(1 << 30)
WITHOUT_PAGE_CACHE: MemoryCollectPolicy = "usageWithoutPageCache"
END_MS = 1_700_000_040_000
NOTHING = NodeObjects(None, {})
DEFAULT = Strategy(safety_margin_percent=7.0)
Row = dict[str, Any]
NODE_ROW: Row = {
    "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": 4.0, "memory_bytes_avg": 8 * GIB,
    "capacity_cpu_cores": 16.0, "capacity_memory_bytes": 32 * GIB,
}  # fmt: skip


def header(node: str = "node-1", end: int = 0, **changes: Any) -> SampleHeader:
    """Of the window `end` places after the first one on a grid of 30 s."""
    end_ms = END_MS + end * 30_000
    values: dict[str, Any] = {
        "node": node, "machine_id": "m1", "boot_id": "b1", "epoch": 1, "sequence": 1,
        "window_start_ms": end_ms - 30_000, "window_end_ms": end_ms,
    }  # fmt: skip
    return SampleHeader(**(values | changes))


def read(*rows: Row, of: SampleHeader | None = None) -> SampleRows:
    """A sample with these rows as the join reads it."""
    return read_rows(encode_samples(SampleBatch(of or header(), rows)))


def joined(*rows: Row, view: NodeObjects = NOTHING, of: SampleHeader | None = None) -> Window:
    """The window of a sample with these rows."""
    return join(read(*rows, of=of), view, DEFAULT, sample_offset=5, appended_ms=END_MS + 250)


def logged(window: Window) -> Window:
    """The window as the models read it."""
    return decode_window(encode_window(window))


def counting(window: Window, memory_policy: MemoryCollectPolicy) -> Window:
    """The window, joined while the node had this memory policy."""
    strategy = replace(window.node.strategy, memory_collect_policy=memory_policy)
    return replace(window, node=replace(window.node, strategy=strategy))


def training(
    *windows: Window,
    statistic: str = "p90",
    memory_policy: MemoryCollectPolicy = WITHOUT_PAGE_CACHE,
) -> TrainingBatch:
    """The windows as the models learn them."""
    return WindowBatch([counting(each, memory_policy) for each in windows]).training(statistic)


def average(window: Window) -> AverageUsage:
    """The average usage of one window."""
    return WindowBatch([window]).average


def pod_row(uid: str, **values: Any) -> Row:
    return {"kind": "pod", "id": uid, "coverage": 1.0, **values}


def known_pod(uid: str, **values: Any) -> PodRecord:
    """A pod whose cgroup is named by its uid, unless `values` say otherwise."""
    fields = {"node": "node-1", "uid": uid, "cgroup_uid": uid, "namespace": "shop", "name": uid}
    return PodRecord(**(fields | values))


def view_of(*pods: PodRecord, record: NodeRecord | None = None) -> NodeObjects:
    return NodeObjects(record, {pod.cgroup_uid: row_of_pod(pod) for pod in pods})


# -- at random

BAD = (math.nan, -1.0, math.inf, -math.inf, 1e300, -0.0)
NUMBERS = st.none() | st.floats(0, 100) | st.sampled_from(BAD) | st.floats()
AMOUNTS = st.none() | st.integers(0, 10**12) | st.integers() | st.just(10**400)
TIMES = st.none() | st.sampled_from(
    ["2023-11-14T21:13:30Z", "2099-01-01T00:00:00.5+01:00", "0000-01-01T00:00:00Z", "soon", ""]
)
UIDS = tuple(f"uid-{i}" for i in range(5))

_RESOURCES = st.builds(Resources, cpu_millicores=AMOUNTS, memory_bytes=AMOUNTS)
PERCENTS = st.integers(0, 200)
OVERCOMMITS = st.builds(
    Overcommit,
    cpu_reclaim_threshold_percent=PERCENTS,
    memory_reclaim_threshold_percent=PERCENTS,
    cpu_calculate_policy=st.sampled_from(["usage", "maxUsageRequest"]),
    memory_calculate_policy=st.sampled_from(["usage", "request", "maxUsageRequest"]),
    mid_unallocated_percent=st.integers(0, 100),
    mid_reclaim_mode=st.sampled_from(["", "static"]),
    mid_static_cpu_reserved_percent=PERCENTS,
    mid_formula=st.sampled_from([*FORMULAS, "tomorrow"]),
    promise_once=st.booleans(),
    buffer_percent=st.integers(0, 100),
)
_STRATEGIES = st.builds(
    NodeStrategy,
    safety_margin_percent=st.floats(0, 100),
    cold_start_seconds=st.sampled_from([0.0, 60.0, 86_400.0]),
)
_NODES = st.builds(
    NodeRecord,
    node=st.just("node-1"),
    allocatable=_RESOURCES,
    capacity=_RESOURCES,
    strategy=st.none() | _STRATEGIES,
    strategy_hash=st.text(max_size=3),
    overcommit=st.none() | OVERCOMMITS,
    host_apps=st.dictionaries(st.sampled_from(UIDS), st.sampled_from(["prod", "mid", "batch", ""])),
    annotations=st.sampled_from(
        [
            {},
            {RESERVATION: '{"resources":{"cpu":"1","memory":"1Gi"}}'},
            {RESERVATION: "{", RAW_ALLOCATABLE: '{"cpu":"8"}'},
            {RAW_ALLOCATABLE: '{"cpu":-1,"memory":"x"}'},
        ]
    ),
)
_PODS = st.builds(
    known_pod,
    st.sampled_from(UIDS),
    owner=st.none() | st.just(Owner(kind="Job", name="j")),
    pod_class=st.sampled_from(["prod", "mid", "batch", "free", "none", "unknown", "tomorrow"]),
    qos=st.text(max_size=3),
    requests=_RESOURCES,
    limits=_RESOURCES,
    phase=st.sampled_from(["", "Running", "Pending", "Succeeded", "Failed"]),
    created_at=TIMES,
    deleted_at=TIMES,
)
VIEWS = st.builds(lambda record, pods: view_of(*pods, record=record), st.none() | _NODES,
                  st.lists(_PODS, max_size=4))  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Sequence[Row]:
    """The rows of a valid sample in which any number may be wrong."""
    names = draw(st.lists(st.sampled_from(NUMBER_COLUMNS), max_size=12, unique=True))
    usual = ("coverage", "cpu_cores_p90", "memory_bytes_p90", "cpu_cores_avg", "memory_bytes_avg")
    values = st.fixed_dictionaries(dict.fromkeys(dict.fromkeys([*names, *usual]), NUMBERS))
    points = st.none() | st.lists(NUMBERS, max_size=3)
    others = draw(
        st.lists(
            st.tuples(st.sampled_from(["pod", "pod", "tier", "host_app"]), st.sampled_from(UIDS)),
            max_size=6,
            unique=True,
        )
    )
    node: Row = {
        "kind": "node",
        "id": "",
        **draw(values),
        **{n: draw(points) for n in LIST_COLUMNS},
    }
    result = [node, *({"kind": kind, "id": uid, **draw(values)} for kind, uid in others)]
    return draw(st.permutations(result))
