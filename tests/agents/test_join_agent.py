"""The join: valid samples become windows, invalid ones dead letters, in order."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict

from pipeline.agents import join_agent as module
from pipeline.agents import refusals
from pipeline.agents.cluster_state import ClusterState
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.ownership import Ownership
from pipeline.errors import StateError
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.join.sample_join import join
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import MAX_SAMPLE_BYTES
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window
from tests.agents.fakes import APPENDED_MS, MemoryBroker, MemoryProducer
from tests.metric_values import value_of
from tests.topics.window_values import column, columns

PARTITIONS = 2
NODES = tuple(name for n in range(20) if partition_of(name := f"node-{n}", PARTITIONS) == 0)
ELSEWHERE = next(name for n in range(20) if partition_of(name := f"node-{n}", PARTITIONS) == 1)
NODE, OTHER = NODES[:2]
STRATEGY = Strategy(safety_margin_percent=17.0)


@dataclass
class Fixture:
    """A join cursor over a broker in memory, and the records that join wrote."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    cluster_state: ClusterState = field(default_factory=ClusterState)
    ownership: Ownership = field(default_factory=lambda: Ownership(0, epoch=1))
    unknown_nodes: Sequence[str] = ()

    def __post_init__(self) -> None:
        output: Any = MemoryProducer(self.broker)
        self.output = output
        rules = JoinRules("t", PARTITIONS, future_tolerance_seconds=60, strategy=STRATEGY)
        self.handed_over: list[LogRecord] = []
        self.cursor = JoinCursor(
            self.ownership,
            0,
            self.cluster_state,
            self.output,
            rules,
            self._take,
            unknown_nodes=self.unknown_nodes,
        )

    async def _take(self, records: Sequence[LogRecord]) -> None:
        self.handed_over += records

    @property
    def windows(self) -> list[Window]:
        return [decode_window(record.value or b"") for record in self.broker.records("t.windows")]

    @property
    def joined(self) -> list[int]:
        return [window.sample_offset for window in self.windows]

    def add_node(self, node: str) -> None:
        record = NodeRecord(node=node, allocatable=Resources(cpu_millicores=4000))
        self.cluster_state.apply_node(put(node.encode(), encode_json(record)))

    def add_pod(self, uid: str, **more: Any) -> None:
        """Add a Prod pod of NODE, by default in the cgroup of its UID."""
        usual = {"namespace": "ns", "name": "web", "pod_class": "prod", "cgroup_uid": uid}
        record = PodRecord(node=NODE, uid=uid, **usual | more)
        self.cluster_state.apply_pod(put(pod_key(NODE, uid), encode_json(record)))


def put(key: bytes, value: bytes | None, offset: int = 0) -> LogRecord:
    return LogRecord(0, offset, key, value, APPENDED_MS)


def sample(
    offset: int, node: str = NODE, *, key: bytes | None = None, ahead_seconds: float = 0, **row: Any
) -> LogRecord:
    """Return a sample of `node` whose window ends `ahead_seconds` after its append time."""
    end = APPENDED_MS + round(ahead_seconds * 1000)
    header = SampleHeader(
        node=node, machine_id="m", boot_id="b", epoch=1, sequence=offset,
        window_start_ms=end - 5000, window_end_ms=end,
    )  # fmt: skip
    rows = [
        {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": 2.0, **row},
        {"kind": "pod", "id": "uid-1", "coverage": 1.0, "cpu_cores_avg": 0.5},
    ]
    value = encode_samples(SampleBatch(header, rows))
    return put(node.encode() if key is None else key, value, offset)


def count(metric: Any, *labels: str) -> float:
    return value_of(metric.labels(*labels) if labels else metric)


async def test_samples_become_windows_in_order_with_their_offsets() -> None:
    join = Fixture()
    await join.cursor.process([sample(7), sample(8, OTHER), sample(11)])
    written = join.broker.records("t.windows")
    assert (join.joined, join.cursor.next_offset) == ([7, 8, 11], 12)
    assert [record.key for record in written] == [name.encode() for name in (NODE, OTHER, NODE)]
    assert [record[:5] for record in join.handed_over] == [record[:5] for record in written]
    assert [window.appended_ms for window in join.windows] == [APPENDED_MS] * 3


async def test_a_window_has_the_facts_of_its_node_and_pods() -> None:
    join = Fixture()
    await join.cursor.process([sample(0)])
    join.add_node(NODE)
    join.add_pod("api", cgroup_uid="uid-1")
    await join.cursor.process([sample(1)])
    before, after = join.windows
    assert (before.node.known, after.node.known) == (False, True)
    assert before.node.strategy == after.node.strategy == STRATEGY
    assert column(before, "pod_class") == [None, "unknown"]
    assert [column(after, name) for name in ("pod_class", "name")] == [
        [None, "prod"],
        [None, "web"],
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (put(NODE.encode(), b""), "undecodable"),
        (put(NODE.encode(), None), "undecodable"),
        (put(NODE.encode(), b'{"node": "a"}'), "undecodable"),
        (put(NODE.encode(), (sample(0).value or b"")[:-40]), "undecodable"),
        (put(NODE.encode(), encode_samples(SampleBatch(SampleHeader(
            node=NODE, machine_id="", boot_id="", epoch=1, sequence=1, window_start_ms=0,
            window_end_ms=5000)))), "invalid"),
        (sample(0, key=OTHER.encode()), "key_mismatch"),
        (sample(0, key=b"\xff\xfe"), "key_mismatch"),
        (sample(0, ELSEWHERE), "invalid"),
        (sample(0, "n" * 300), "invalid"),
        (sample(0, "node with spaces"), "invalid"),
        (sample(0, ahead_seconds=61), "future_window"),
    ],
)  # fmt: skip
async def test_an_invalid_sample_becomes_a_dead_letter(record: LogRecord, reason: str) -> None:
    join, before = Fixture(), count(refusals.DEAD, "samples", reason)
    await join.cursor.process([sample(0), record._replace(offset=1), sample(2)])
    assert (join.joined, join.cursor.next_offset) == ([0, 2], 3)
    (letter,) = join.output.letters
    where = {"topic": b"t.samples", "partition": b"0", "offset": b"1"}
    assert dict(letter.headers).items() >= {**where, "reason": reason.encode()}.items()
    assert letter.value == (record.value or b"")
    assert count(refusals.DEAD, "samples", reason) - before == 1


async def test_refusals_of_a_batch_are_delivered_together() -> None:
    """A hostile producer would else hold up the partition by a delivery per record."""
    join, before = Fixture(), count(refusals.DEAD, "samples", "undecodable")
    await join.cursor.process([put(NODE.encode(), b"junk", offset) for offset in range(500)])
    assert (len(join.output.letters), join.output.deliveries) == (500, 1)
    assert count(refusals.DEAD, "samples", "undecodable") - before == 500
    assert join.cursor.next_offset == 500


def break_join(monkeypatch: pytest.MonkeyPatch, nodes: Sequence[str]) -> None:
    """Let the join fail for samples of these nodes."""

    def join_or_fail(sample: Any, *objects: Any, **facts: Any) -> Any:
        if sample.header.node in nodes:
            raise ZeroDivisionError("a bug")
        return join(sample, *objects, **facts)

    monkeypatch.setattr(module, "join", join_or_fail)


async def test_a_sample_that_cannot_be_joined_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker would else end, and each that takes the partition over."""
    break_join(monkeypatch, [NODE])
    join = Fixture()
    await join.cursor.process([sample(0), sample(1, OTHER), sample(2), sample(3, OTHER)])
    assert (join.output.reasons, join.joined) == (["unjoined", "unjoined"], [1, 3])
    assert join.cursor.next_offset == 4


async def test_a_join_that_fails_for_many_nodes_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FAILING_NODES", 2)
    break_join(monkeypatch, NODES)
    join = Fixture()
    with pytest.raises(StateError, match="samples of more than 2 nodes of partition 0"):
        await join.cursor.process([sample(n, node) for n, node in enumerate(NODES[:3])])
    assert (join.windows, join.output.letters, join.cursor.next_offset) == ([], [], 0)


async def test_nodes_whose_samples_failed_long_ago_do_not_end_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FAILING_NODES", 2)
    break_join(monkeypatch, NODES)
    join = Fixture()
    for day, node in enumerate(NODES[:5]):
        record = sample(day, node)
        appended_ms = record.appended_ms + 86_400_000 * day
        await join.cursor.process([record._replace(appended_ms=appended_ms)])
    assert join.output.reasons == ["unjoined"] * 5


async def test_nodes_whose_samples_cannot_be_joined_take_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNKNOWN_NODES", 2)
    break_join(monkeypatch, NODES[:2])
    join = Fixture()
    await join.cursor.process([sample(offset, node) for offset, node in enumerate(NODES[:4])])
    assert [window.header.node for window in join.windows] == list(NODES[2:4])


async def test_nodes_without_a_record_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNKNOWN_NODES", 2)
    join, before = Fixture(unknown_nodes=[NODES[0]]), count(module.UNKNOWN)
    join.add_node(NODES[3])
    await join.cursor.process([sample(offset, node) for offset, node in enumerate(NODES[:5])])
    assert [window.header.node for window in join.windows] == [NODES[0], NODES[1], NODES[3]]
    assert count(module.UNKNOWN) - before == 2
    assert (join.output.letters, join.cursor.next_offset) == ([], 5)
    # A node that gets a record, and one that departs, make room.
    join.add_node(NODES[1])
    await join.cursor.depart(NODES[0], APPENDED_MS)
    await join.cursor.process([sample(5 + n, node) for n, node in enumerate(NODES[:5])])
    joined = [window.header.node for window in join.windows[4:]]
    assert joined == [NODES[0], NODES[1], NODES[2], NODES[3]]
    assert count(module.UNKNOWN) - before == 3


async def test_a_window_a_minute_ahead_is_accepted() -> None:
    join = Fixture()
    await join.cursor.process([sample(0, ahead_seconds=60)])
    assert join.joined == [0]


async def test_a_sample_that_was_small_only_while_compressed_becomes_a_dead_letter() -> None:
    join = Fixture()
    await join.cursor.process([put(NODE.encode(), bytes(MAX_SAMPLE_BYTES + 1))])
    assert (join.joined, join.output.reasons, join.cursor.next_offset) == ([], ["oversized"], 1)


async def test_a_sample_with_an_oversized_window_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = Fixture()
    monkeypatch.setattr(module, "LARGEST_VALUE_BYTES", 1000)
    await join.cursor.process([sample(0)])
    assert (join.joined, join.output.reasons, join.cursor.next_offset) == ([], ["oversized"], 1)


@pytest.mark.parametrize("value", [float("nan"), -0.1, float("inf"), 1e300])
async def test_an_invalid_value_becomes_null_and_is_counted(value: float) -> None:
    join, before = Fixture(), count(module.BAD_VALUES, "cpu_cores_max")
    await join.cursor.process([sample(0, cpu_cores_max=value)])
    (window,) = join.windows
    assert [column(window, f"cpu_cores_{name}")[0] for name in ("max", "avg")] == [None, 2.0]
    assert window.bad_values == {"cpu_cores_max": 1}
    assert count(module.BAD_VALUES, "cpu_cores_max") - before == 1
    assert join.output.letters == []


async def test_samples_of_a_deleted_node_are_dropped() -> None:
    join, before = Fixture(), count(module.IGNORED)
    join.add_node(NODE)
    join.add_node(OTHER)
    join.cluster_state.apply_node(put(NODE.encode(), None))
    await join.cursor.process([sample(0), sample(1, OTHER)])
    assert (join.joined, join.cursor.next_offset, join.output.letters) == ([1], 2, [])
    assert count(module.IGNORED) - before == 1


async def test_a_recreated_node_is_joined_again() -> None:
    join = Fixture()
    join.add_node(OTHER)
    join.add_node(NODE)
    join.cluster_state.apply_node(put(NODE.encode(), None))
    join.add_node(NODE)
    await join.cursor.process([sample(0)])
    assert join.joined == [0]


async def test_a_deleted_pod_is_forgotten_after_a_later_window_without_it() -> None:
    join, key = Fixture(), pod_key(NODE, "old")
    join.add_pod("old")
    join.cluster_state.apply_pod(put(key, None)._replace(appended_ms=APPENDED_MS - 60_000))
    assert len(join.cluster_state.deleted_pods) == 1
    await join.cursor.process([sample(0)])
    assert len(join.cluster_state.deleted_pods) == 0


async def test_a_departure_is_appended_to_the_log() -> None:
    join = Fixture()
    await join.cursor.depart(NODE, APPENDED_MS)
    (window,) = join.windows
    assert (window.type, window.header.node, window.sample_offset) == ("departure", NODE, -1)
    assert [record.key for record in join.broker.records("t.windows")] == [NODE.encode()]


async def test_a_revoked_partition_is_not_written() -> None:
    join = Fixture()
    join.ownership.owned = False
    await join.cursor.process([sample(0), put(NODE.encode(), b"junk", 1)])
    await join.cursor.depart(NODE, APPENDED_MS)
    assert (join.windows, join.output.letters, join.cursor.next_offset) == ([], [], 0)


async def test_a_partition_revoked_during_a_dead_letter_is_not_joined() -> None:
    join = Fixture()
    write = join.output.dead_letters

    async def lose(*arguments: Any) -> None:
        join.ownership.owned = False
        await write(*arguments)

    join.output.dead_letters = lose
    await join.cursor.process([put(NODE.encode(), b"junk"), sample(1)])
    # If the partition returns, the worker resumes here.
    assert (join.windows, join.cursor.next_offset) == ([], 0)


async def test_a_failed_delivery_raises_and_the_cursor_stays() -> None:
    join = Fixture()
    join.output.refuses = lambda topic: topic == "t.windows"
    with pytest.raises(ConnectionError):
        await join.cursor.process([sample(0), sample(1)])
    assert join.cursor.next_offset == 0


async def test_appends_do_not_overlap() -> None:
    join, inside, concurrent = Fixture(), 0, 0
    append = join.output.append

    async def slow(*arguments: Any) -> Any:
        nonlocal inside, concurrent
        inside += 1
        concurrent = max(concurrent, inside)
        await asyncio.sleep(0.01)
        offsets = await append(*arguments)
        inside -= 1
        return offsets

    join.output.append = slow
    work = [
        join.cursor.process([sample(0)]),
        join.cursor.depart(NODE, 0),
        join.cursor.process([sample(1)]),
    ]
    await asyncio.gather(*work, join.cursor.idle())
    assert concurrent == 1
    assert [window.type for window in join.windows] == ["window", "departure", "window"]
    assert [r[:4] for r in join.handed_over] == [r[:4] for r in join.broker.records("t.windows")]


async def test_idle_waits_for_appends_in_progress() -> None:
    join, done = Fixture(), asyncio.Event()
    append = join.output.append

    async def slow(*arguments: Any) -> Any:
        await done.wait()
        return await append(*arguments)

    join.output.append = slow
    work = asyncio.create_task(join.cursor.process([sample(0)]))
    await asyncio.sleep(0)
    idle = asyncio.create_task(join.cursor.idle())
    await asyncio.sleep(0.01)
    assert not idle.done()
    done.set()
    await idle
    assert join.joined == [0]
    await work


def plain(value: Any) -> Any:
    """All that a window says, in values that can be compared with their types."""
    if isinstance(value, Window):
        others = {name: plain(each) for name, each in asdict(value).items() if name != "rows"}
        return others, repr(columns(value)), plain(value.rows.listing)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    return repr(value)


@pytest.mark.parametrize(
    "row", [{}, {"cpu_cores_p90": 1.5, "memory_bytes_p90": None}, {"cpu_cores_avg": float("nan")},
            {"memory_bytes_max": -1.0}, {"cpu_cores_last": -0.0}],
)  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
async def test_handed_over_windows_equal_those_of_the_log(row: dict[str, Any], known: bool) -> None:
    """Models learn the same from both, to the last bit."""
    join = Fixture()
    if known:
        join.add_node(NODE)
        join.add_pod("uid-1", requests=Resources(cpu_millicores=250))
    await join.cursor.process([sample(0), sample(1, **row), sample(2, OTHER, **row)])
    handed_over_windows = [record.window for record in join.handed_over if record.window]
    for window, read in zip(handed_over_windows, join.windows, strict=True):
        assert plain(window) == plain(read)
        handed_over, from_log = (WindowBatch([each]) for each in (window, read))
        assert bits(handed_over.training("p90")) == bits(from_log.training("p90"))
        assert bits(handed_over.average) == bits(from_log.average)


def bits(value: Any) -> Any:
    """Convert the inputs of models to comparable values, arrays to their bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if is_dataclass(value):
        return [bits(getattr(value, each.name)) for each in fields(value)]
    return [bits(item) for item in value] if isinstance(value, list | tuple) else repr(value)


async def test_refused_samples_are_not_handed_over() -> None:
    """For instance with an append time in nanoseconds, which no decoder accepts."""
    join = Fixture()
    await join.cursor.process([sample(0)._replace(appended_ms=1 << 60), sample(1)])
    assert (join.joined, [record.window is None for record in join.handed_over]) == ([1], [False])
