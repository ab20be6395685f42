"""Pods that come and go while windows are joined late: Batch is never less than it is in truth."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.agents.cluster_state import ClusterState
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.ownership import Ownership
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SYSTEM_TIER, SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window
from tests.agents.fakes import MemoryBroker, MemoryOutput
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
        cpu_reclaim_threshold_percent=100,
        memory_reclaim_threshold_percent=100,
        promise_once=False,
    ),
)


class Pod(NamedTuple):
    """Runs from `start` to `end`, seconds; listed from `bound` to `deleted`."""

    uid: str
    pod_class: str
    cores: float
    bound: int
    start: int
    end: int
    deleted: int

    def share(self, window: int) -> float:
        """In which part of a window it ran."""
        begin = window * WINDOW
        return max(0, min(self.end, begin + WINDOW) - max(self.start, begin)) / WINDOW


def some_pods(luck: random.Random, classes: Sequence[str]) -> list[Pod]:
    """Four that stay, and short ones."""
    stays = [Pod(f"web-{n}", "prod", 2.0, -9, -5, 10**6, 10**6) for n in range(4)]
    short = []
    for n in range(250):
        start = luck.randrange(WINDOWS * WINDOW)
        end = start + luck.randrange(1, 3 * WINDOW)
        # That a pod is bound is known before its containers run, that it is gone after them.
        deleted = end + luck.randrange(4)
        cores = luck.randrange(1, 9) / 4
        short.append(Pod(f"job-{n}", luck.choice(classes), cores, start - 2, start, end, deleted))
    return stays + short


def events(luck: random.Random, pods: Sequence[Pod]) -> Iterator[tuple[str, Any, int]]:
    """What happens, in its order: pods bound and deleted, windows joined; and when, in seconds."""
    found: list[tuple[int, str, Any]] = []
    for pod in pods:
        found += [(pod.bound, "bound", pod), (pod.deleted, "deleted", pod)]
    at = 0
    for window in range(WINDOWS):
        # As it was sent, or when the join is behind for minutes and does all at once.
        at = max(at, (window + 1) * WINDOW + luck.choice([1, 2, 5, 12, 25, 200]))
        found.append((at, "joined", window))
    yield from ((what, of, at) for at, what, of in sorted(found, key=lambda event: event[0]))


def record(key: bytes, value: bytes | None, at: int, offset: int = 0) -> LogRecord:
    return LogRecord(0, offset, key, value, (START + at) * 1000)


def bound(pod: Pod) -> LogRecord:
    made = PodRecord(
        node=NODE, uid=pod.uid, cgroup_uid=pod.uid, namespace="ns", name=pod.uid,
        pod_class=pod.pod_class, phase="Running",
    )  # fmt: skip
    return record(pod_key(NODE, pod.uid), encode_json(made), pod.bound)


def sample(window: int, pods: Sequence[Pod], at: int) -> LogRecord:
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
    return record(NODE.encode(), encode_samples(SampleBatch(header, rows)), at, window)


def batch_cores(window: Window) -> float:
    nothing = Prod(np.zeros((1, 2)), np.zeros((1, 2)))
    batch = WindowBatch([window], "usageWithoutPageCache")
    found = offers(batch, nothing, [nothing])
    (offer,) = records(batch, found, ["max"], [{"generation": 1, "offset": 1, "epoch": 1}])
    assert offer.batch is not None
    assert offer.batch.cpu_millicores is not None
    return offer.batch.cpu_millicores / 1000


async def simulated(luck: random.Random, pods: Sequence[Pod]) -> list[Window]:
    """The windows that were joined."""
    broker, cluster_state = MemoryBroker(), ClusterState()
    output: Any = MemoryOutput(broker)

    async def hand_on(records: Sequence[LogRecord]) -> None:
        pass

    rules = JoinRules("t", 1, future_tolerance_seconds=60, strategy=Strategy())
    cursor = JoinCursor(Ownership(0, epoch=1), 0, cluster_state, output, rules, hand_on)
    cluster_state.apply_node(record(NODE.encode(), encode_json(RECORD), 0))
    most = 0
    for what, of, at in events(luck, pods):
        if what == "bound":
            cluster_state.apply_pod(bound(of))
        elif what == "deleted":
            cluster_state.apply_pod(record(pod_key(NODE, of.uid), None, at))
        else:
            await cursor.process([sample(of, pods, at)])
        most = max(most, len(cluster_state.deleted_pods))
    # Those of the longest time by which the join is behind, and not all there ever were.
    assert 0 < most < 100
    windows = [decode_window(found.value or b"") for found in broker.records("t.windows")]
    assert len(windows) == WINDOWS
    return windows


@pytest.mark.parametrize("seed", range(5))
async def test_batch_usage_is_exact_while_batch_pods_start_and_end(seed: int) -> None:
    luck = random.Random(seed)
    pods = some_pods(luck, ["batch", "free"])
    windows = await simulated(luck, pods)
    assert [batch_cores(window) for window in windows] == [CORES - SYSTEM - 4 * 2.0] * WINDOWS
    assert {name for window in windows for name in classes_of(window)} == {"prod", "batch", "free"}


@pytest.mark.parametrize("seed", range(5))
async def test_batch_usage_lies_between_average_and_peak(seed: int) -> None:
    # A pod of Prod that is still there will use all the time what it used, one that is gone counts
    # for its part of the window; none counts for more, and those of Batch never.
    luck = random.Random(seed)
    pods = some_pods(luck, ["batch", "free", "prod", "mid"])
    windows = await simulated(luck, pods)
    for number, window in enumerate(windows):
        taken = [pod for pod in pods if pod.pod_class in ("prod", "mid") and pod.share(number)]
        at_once = sum(pod.cores for pod in taken)
        average = sum(pod.cores * pod.share(number) for pod in taken)
        found = CORES - SYSTEM - batch_cores(window)
        # Of each pod whole millicores are counted.
        assert average - 1e-9 <= found <= at_once + 1e-9 + len(taken) / 1000, number
    assert "unknown" not in {name for window in windows for name in classes_of(window)}


def classes_of(window: Window) -> list[str]:
    names = column(window, "pod_class")
    return [name for name in names if name is not None]
