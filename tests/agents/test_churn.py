"""Batch resources while pods start and end and windows are joined late."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.agents.cluster_state import ClusterState
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.ownership import Ownership
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SYSTEM_TIER, SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.topics.window_values import column

NODE = "node-1"
START = 1_700_000_010
WINDOW = 30
WINDOWS = 40
CORES, SYSTEM = 256.0, 0.5
RECORD = NodeRecord(
    node=NODE,
    capacity=Resources(cpu_millicores=256_000, memory_bytes=1 << 40),
    allocatable=Resources(cpu_millicores=256_000, memory_bytes=1 << 40),
    overcommit=Overcommit(
        cpu_reclaim_threshold_percent=100, memory_reclaim_threshold_percent=100, promise_once=False,
    ),
)  # fmt: skip


class Pod(NamedTuple):
    """A pod that runs from `start` to `end` and is listed from `bound` to `deleted`, in seconds."""

    uid: str
    pod_class: str
    cores: float
    bound: int
    start: int
    end: int
    deleted: int

    def share(self, window: int) -> float:
        """Return the fraction of a window in which the pod ran."""
        begin = window * WINDOW
        return max(0, min(self.end, begin + WINDOW) - max(self.start, begin)) / WINDOW


def some_pods(rng: random.Random, classes: Sequence[str]) -> list[Pod]:
    """Return four pods that run all the time, and 250 short ones."""
    stays = [Pod(f"web-{n}", "prod", 2.0, -9, -5, 10**6, 10**6) for n in range(4)]
    short = []
    for n in range(250):
        start = rng.randrange(WINDOWS * WINDOW)
        end = start + rng.randrange(1, 3 * WINDOW)
        # A pod is bound before its containers start and deleted after they end.
        deleted = end + rng.randrange(4)
        cores = rng.randrange(1, 9) / 4
        short.append(Pod(f"job-{n}", rng.choice(classes), cores, start - 2, start, end, deleted))
    return stays + short


def events(rng: random.Random, pods: Sequence[Pod]) -> Iterator[tuple[str, Any, int]]:
    """Yield (event, pod or window, second) in order: pods bound and deleted, windows joined."""
    timeline: list[tuple[int, str, Any]] = []
    for pod in pods:
        timeline += [(pod.bound, "bound", pod), (pod.deleted, "deleted", pod)]
    second = 0
    for window in range(WINDOWS):
        # Joined when sent, or minutes later together with others.
        second = max(second, (window + 1) * WINDOW + rng.choice([1, 2, 5, 12, 25, 200]))
        timeline.append((second, "joined", window))
    ordered = sorted(timeline, key=lambda event: event[0])
    yield from ((what, subject, second) for second, what, subject in ordered)


def record(key: bytes, value: bytes | None, second: int, offset: int = 0) -> LogRecord:
    return LogRecord(0, offset, key, value, (START + second) * 1000)


def bound(pod: Pod) -> LogRecord:
    pod_record = PodRecord(
        node=NODE, uid=pod.uid, cgroup_uid=pod.uid, namespace="ns", name=pod.uid,
        pod_class=pod.pod_class, phase="Running",
    )  # fmt: skip
    return record(pod_key(NODE, pod.uid), encode_json(pod_record), pod.bound)


def sample(window: int, pods: Sequence[Pod], second: int) -> LogRecord:
    ran = [pod for pod in pods if pod.share(window)]
    used = SYSTEM + sum(pod.cores * pod.share(window) for pod in ran)
    memory = {"memory_bytes_avg": 0.0}
    rows: list[dict[str, Any]] = [
        {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": used, **memory},
        {"kind": "tier", "id": SYSTEM_TIER, "coverage": 1.0, "cpu_cores_avg": SYSTEM, **memory},
        *({"kind": "pod", "id": pod.uid, "coverage": pod.share(window),
           "cpu_cores_avg": pod.cores, **memory} for pod in ran),
    ]  # fmt: skip
    start_ms = (START + window * WINDOW) * 1000
    header = SampleHeader(
        node=NODE, machine_id="m", boot_id="b", epoch=1, sequence=window,
        window_start_ms=start_ms, window_end_ms=start_ms + WINDOW * 1000,
    )  # fmt: skip
    return record(NODE.encode(), encode_samples(SampleBatch(header, rows)), second, window)


def batch_cores(window: Window) -> float:
    nothing = Prod(np.zeros((1, 2)), np.zeros((1, 2)))
    batch = WindowBatch([window])
    available = offers(batch, nothing, [nothing])
    (offer,) = records(batch, available, ["max"], [{"generation": 1, "offset": 1, "epoch": 1}])
    return ((offer.batch or Resources()).cpu_millicores or 0) / 1000


async def simulated(rng: random.Random, pods: Sequence[Pod]) -> list[Window]:
    """Join all windows, and return them."""
    broker, cluster_state = MemoryBroker(), ClusterState()
    output: Any = MemoryProducer(broker)

    async def ignore(records: Sequence[LogRecord]) -> None:
        pass

    rules = JoinRules("t", 1, future_tolerance_seconds=60, strategy=Strategy())
    cursor = JoinCursor(Ownership(0, epoch=1), 0, cluster_state, output, rules, ignore)
    cluster_state.apply_node(record(NODE.encode(), encode_json(RECORD), 0))
    most = 0
    for what, subject, second in events(rng, pods):
        if what == "bound":
            cluster_state.apply_pod(bound(subject))
        elif what == "deleted":
            cluster_state.apply_pod(record(pod_key(NODE, subject.uid), None, second))
        else:
            await cursor.process([sample(subject, pods, second)])
        most = max(most, len(cluster_state.deleted_pods))
    # Deleted pods of the longest lag are kept, not all that ever existed.
    assert 0 < most < 100
    windows = [decode_window(record.value or b"") for record in broker.records("t.windows")]
    assert len(windows) == WINDOWS
    return windows


@pytest.mark.parametrize("seed", range(5))
async def test_batch_usage_is_exact_while_batch_pods_start_and_end(seed: int) -> None:
    rng = random.Random(seed)
    windows = await simulated(rng, some_pods(rng, ["batch", "free"]))
    assert [batch_cores(window) for window in windows] == [CORES - SYSTEM - 4 * 2.0] * WINDOWS
    classes = {name for window in windows for name in column(window, "pod_class")}
    assert classes == {None, "prod", "batch", "free"}


@pytest.mark.parametrize("seed", range(5))
async def test_batch_usage_lies_between_average_and_peak(seed: int) -> None:
    # A pod of Prod that still exists counts with its usage, a deleted one with its share of the
    # window. Pods of Batch do not count.
    rng = random.Random(seed)
    pods = some_pods(rng, ["batch", "free", "prod", "mid"])
    windows = await simulated(rng, pods)
    for number, window in enumerate(windows):
        taken = [pod for pod in pods if pod.pod_class in ("prod", "mid") and pod.share(number)]
        at_once = sum(pod.cores for pod in taken)
        average = sum(pod.cores * pod.share(number) for pod in taken)
        counted = CORES - SYSTEM - batch_cores(window)
        # Usage is rounded up to whole millicores per pod.
        assert average - 1e-9 <= counted <= at_once + 1e-9 + len(taken) / 1000, number
    assert all("unknown" not in column(window, "pod_class") for window in windows)
