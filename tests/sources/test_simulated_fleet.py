"""Event time of the fleet catches up with the clock, follows it, and is never ahead."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError, UsageError
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources import simulated_fleet
from pipeline.sources.simulated_fleet import next_window, run_fleet
from pipeline.topics.sample_rows import read_samples

NOON = 1_700_049_600


class FakeProducer:
    """Stores the written records and counts deliveries in flight."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.in_flight, self.max_in_flight = clock, 0, 0
        self.windows: list[tuple[str, int, int, float]] = []
        self.values: dict[tuple[str, bytes], bytes] = {}
        self.tombstones: Counter[str] = Counter()
        self.fail_after: int | None = None
        self.sends = 0
        self.partitions: set[tuple[bytes, int]] = set()

    async def send_batches(
        self, topic: str, partition: int, records: list[Keyed], headers: Any
    ) -> list[Any]:
        assert headers == [("source", b"fleet")]
        return [self._send(topic, partition, *record) for record in records]

    def _send(self, topic: str, partition: int, key: bytes, value: Any) -> Any:
        self.partitions.add((key.partition(b"/")[0], partition))
        if self.fail_after is not None and len(self.windows) >= self.fail_after:
            raise TimeoutError
        if topic.endswith("samples"):
            header = read_samples(value).header
            self.windows.append(
                (header.node, header.window_start_ms, header.window_end_ms, self.clock.now())
            )
        elif value is None:
            del self.values[topic, key]
            self.tombstones[topic] += 1
        else:
            self.values[topic, key] = value
        self.sends += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        return asyncio.create_task(self._delivered())

    async def _delivered(self) -> None:
        await asyncio.sleep(0)
        self.in_flight -= 1


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(now=NOON + 0.5)
        self.producer = FakeProducer(self.clock)
        self.before: dict[bytes, bytes] = {}

        async def nothing(*_: Any) -> None:
            return None

        async def read_back(kafka: Any, topic: Any, source: str) -> dict[bytes, bytes]:
            assert source == "fleet"
            return dict(self.before) if topic.name == "nodes" else {}

        monkeypatch.setattr(simulated_fleet, "require_topics", nothing)
        monkeypatch.setattr(simulated_fleet, "read_back", read_back)

    @asynccontextmanager
    async def producers(self, kafka: Any, client_id: str) -> AsyncIterator[Any]:
        yield self.producer

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
        settings = Settings(kafka=KafkaSettings(partitions=8))
        given = {"nodes": 3, "pods_per_node": 4, "window_seconds": 30, "hours_back": 1.0, **options}
        task = asyncio.create_task(
            run_fleet(settings, clock=self.clock, producers=self.producers, **given)
        )
        await self.settle(task)
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, BrokerUnavailableError):
                await task

    async def advance(self, task: asyncio.Task[None], seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle(task)

    async def settle(self, task: asyncio.Task[None]) -> None:
        # Wait until the fleet sleeps: it writes nothing for 50 turns of the event loop.
        quiet = 0
        while quiet < 50 and not task.done():
            before = self.producer.sends
            await asyncio.sleep(0)
            is_quiet = self.producer.sends == before and not self.producer.in_flight
            quiet = quiet + 1 if is_quiet else 0

    def spans(self, node: str = "sim-00000") -> list[tuple[int, int]]:
        return [
            (a // 1000 - NOON, b // 1000 - NOON)
            for n, a, b, _ in self.producer.windows
            if n == node
        ]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


async def test_history_has_long_windows_without_gaps(run: Run) -> None:
    async with run.running():
        spans = run.spans()
    assert (spans[0], spans[-1], len(spans)) == ((-3600, -3300), (-300, 0), 12)
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
    assert len(run.producer.windows) == 3 * 12


async def test_windows_follow_the_clock_after_catching_up(run: Run) -> None:
    async with run.running() as task:
        history = len(run.spans())
        await run.advance(task, 29.4)
        assert len(run.spans()) == history, "the window has not ended yet"
        await run.advance(task, 0.2)
        assert run.spans()[history:] == [(0, 30)]
        for _ in range(60):
            await run.advance(task, 1.0)
        assert run.spans()[history:] == [(0, 30), (30, 60), (60, 90)]
    assert all(end / 1000 <= now for _, _, end, now in run.producer.windows)


async def test_no_future_window_if_the_clock_is_set_back(run: Run) -> None:
    async with run.running() as task:
        history = len(run.spans())
        run.clock.jump(-1000)
        await run.advance(task, 40)
        assert len(run.spans()) == history
        run.clock.jump(+1000)
        await run.advance(task, 1)
        assert run.spans()[history:] == [(0, 30)]


async def test_gap_is_filled_if_the_clock_jumps_ahead(run: Run) -> None:
    async with run.running() as task:
        history = len(run.spans())
        run.clock.jump(900)
        await run.advance(task, 1)
        assert run.spans()[history:] == [(0, 300), (300, 600), (600, 900)]


async def test_short_windows_fill_the_last_history_window(run: Run) -> None:
    run.clock.jump(100)
    async with run.running():
        assert run.spans()[-4:] == [(-300, 0), (0, 30), (30, 60), (60, 90)]


async def test_nodes_and_pods_are_published_and_removed(run: Run) -> None:
    async with run.running(hours_back=12.0):
        nodes = {key for topic, key in run.producer.values if topic == "springtide.nodes"}
        pods = [key for topic, key in run.producer.values if topic == "springtide.pods"]
    assert nodes == {b"sim-00000", b"sim-00001", b"sim-00002"}
    assert 3 <= len(pods) <= 12
    assert run.producer.tombstones["springtide.pods"] > 0
    assert all(p == partition_of(node.decode(), 8) for node, p in run.producer.partitions)


async def test_nodes_of_an_earlier_larger_fleet_are_removed(run: Run) -> None:
    run.before = {b"sim-00007": b"{}"}
    run.producer.values = {("springtide.nodes", b"sim-00007"): b"{}"}
    async with run.running():
        assert ("springtide.nodes", b"sim-00007") not in run.producer.values
    assert run.producer.tombstones["springtide.nodes"] == 1


async def test_deliveries_are_awaited(run: Run) -> None:
    async with run.running(nodes=120, hours_back=0.5, pods_per_node=1):
        assert len(run.producer.windows) == 120 * 6
    assert run.producer.max_in_flight < 300


async def test_unavailable_broker_ends_the_fleet(run: Run) -> None:
    run.producer.fail_after = 5
    async with run.running() as task:
        assert task.done()
        assert isinstance(task.exception(), BrokerUnavailableError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "nodes"), ({"nodes": 10**6}, "nodes"), ({"pods_per_node": -1}, "pods"),
        ({"hours_back": -1.0}, "hours"), ({"hours_back": float("nan")}, "hours"),
        ({"window_seconds": 7}, "window of a fleet is 7 s"), ({"window_seconds": 3600}, "window"),
        ({"history_window_seconds": 900}, "history window"),
        ({"window_seconds": 20, "history_window_seconds": 30}, "not a multiple"),
    ],
)  # fmt: skip
async def test_invalid_options_are_refused(run: Run, options: dict[str, Any], message: str) -> None:
    given = {"nodes": 1, "clock": run.clock, "producers": run.producers, **options}
    with pytest.raises(UsageError, match=message):
        await run_fleet(Settings(), **given)


_grid = st.sampled_from([(5, 300), (30, 300), (30, 30), (1, 60), (60, 600)])


@given(_grid, st.integers(0, 10**6), st.floats(0, 10**7))
def test_windows_are_on_the_grid_and_long_ones_have_ended(
    lengths: tuple[int, int], position: int, now: float
) -> None:
    window, history = lengths
    start, end = next_window(position * window, now, window, history)
    length = end - start
    assert (start, start % length) == (position * window, 0)
    assert length == window or (length == history and end <= now)
