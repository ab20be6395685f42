"""Usage from the exporter's socket: a real server, servers that fail or lie, stepped clocks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actuators.node import live_usage
from actuators.node.live_usage import MAX_AGE_SECONDS, LiveUsage
from node_exporter.collection import NODE, SYSTEM, Collection, ContainerGrowth, Entity, Usage
from node_exporter.kernel.parse_files import Pressure, PressureLine, Throttling
from node_exporter.live_socket import LiveServer
from pipeline.clock import ManualClock
from pipeline.processors.node_qos.node_state import PressureLevels

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CPUS = 8
SECOND_NS = 10**9


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exporter.sock"


@pytest.fixture
async def server(path: Path) -> AsyncIterator[LiveServer]:
    server = LiveServer(path, "n1")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def usage(path: Path, clock: ManualClock) -> AsyncIterator[LiveUsage]:
    usage = LiveUsage(path, "n1", clock)
    yield usage
    usage.close()


def pod(id: str, cores: float | None, **more: Any) -> Usage:
    cpu_ns = None if cores is None else round(cores * SECOND_NS)
    return Usage(Entity("pod", id, "Burstable"), cpu_ns, 1.0, 100, 200, None, **more)


def collect(server: LiveServer, clock: ManualClock, *pods: Usage, system: float = 0.25) -> None:
    """The exporter's collection of this moment."""
    usages = (Usage(NODE, 2 * SECOND_NS, 1.0, 5000, 6000, None), *pods)
    of_system = Usage(SYSTEM, round(system * SECOND_NS), 1.0, 3, None, None)
    server.add(Collection(round(clock.now() * 1000), usages, None, of_system))


async def test_the_last_minute_comes_first_and_then_what_is_new(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    for second in range(90):
        collect(server, clock, pod("a", second / 100))
        await clock.advance(1)
    history = await usage.refresh(CPUS)
    cores = [entity.cpu_cores for collected in history for entity in collected.entities]
    assert cores == [second / 100 for second in range(30, 90)]
    assert [collected.at for collected in history] == [*range(30, 90)]
    assert await usage.refresh(CPUS) == []
    for number in range(3):
        collect(server, clock, pod("a", 1.0 + number))
        await clock.advance(1)
    new = await usage.refresh(CPUS)
    assert [collected.entities for collected in new] == [
        (("pod", "a", "Burstable", number),) for number in (1, 2, 3)
    ]
    assert usage.of("node", "")[:2] == (2.0, 5000)
    assert usage.of("pod", "a")[:2] == (3.0, 100)
    assert usage.of("tier", "system").cpu_cores == 0.25
    assert usage.of("pod", "b") == (None,) * 5


async def test_a_value_that_is_not_read_now_stays_for_ten_seconds(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    levels = (Pressure(PressureLine(3.0, 0.0, 0.0, 0), None),) * 3
    containers = {"c": ContainerGrowth(SECOND_NS // 2, 1.0, Throttling(10, 4, 1))}
    collect(server, clock, pod("a", 1.5, pressure=levels, containers=containers))
    await usage.refresh(CPUS)
    for _ in range(int(MAX_AGE_SECONDS)):
        assert usage.of("pod", "a").cpu_cores == 1.5
        assert usage.of("pod", "a").cpu_pressure == PressureLevels(3.0, None)
        assert usage.of_container("c").cpu_cores == 0.5
        await clock.advance(1)
        collect(server, clock, pod("a", None), pod("b", 1.0))
        await usage.refresh(CPUS)
    await clock.advance(1)
    collect(server, clock, pod("b", 1.0))
    await usage.refresh(CPUS)
    assert (usage.of("pod", "a").cpu_cores, usage.of("pod", "a").cpu_pressure) == (None, None)
    assert usage.of_container("c") == (None, None)
    assert usage.of("pod", "b").cpu_cores == 1.0


async def test_throttling_counts_once(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    def throttled(periods: int, throttled_periods: int) -> dict[str, Any]:
        growth = Throttling(periods, throttled_periods, 1)
        return {"throttling": growth, "containers": {"c": ContainerGrowth(None, None, growth)}}

    for throttled_periods in (5, 0):
        collect(server, clock, pod("a", 1.0, **throttled(10, throttled_periods)))
        await clock.advance(1)
    await usage.refresh(CPUS)
    assert usage.of("pod", "a").throttled_ratio == 0.25
    assert usage.of_container("c").throttled_ratio == 0.25
    await usage.refresh(CPUS)
    assert usage.of("pod", "a").throttled_ratio is None
    assert usage.of_container("c").throttled_ratio is None
    collect(server, clock, pod("a", 1.0, **throttled(0, 0)))
    await clock.advance(1)
    await usage.refresh(CPUS)
    assert usage.of_container("c").throttled_ratio == 0.0  # a known zero


async def test_absurd_values_are_unknown(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    collect(server, clock, pod("a", 13.5), pod("b", -1.0), pod("c", 8.1), system=14.0)
    (collected,) = await usage.refresh(CPUS)
    assert [entity.cpu_cores for entity in collected.entities] == [None, None, 8.1]
    assert [usage.of("pod", id).cpu_cores for id in "abc"] == [None, None, 8.1]
    assert usage.of("tier", "system").cpu_cores is None


async def test_an_exporter_that_reads_nothing_any_more_does_not_look_fresh(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    collect(server, clock, pod("a", 1.0))
    await clock.advance(2)
    await usage.refresh(CPUS)
    assert usage.age_seconds() == 2
    assert usage.newest_seconds() == clock.now() - 2
    await clock.advance(9)
    await usage.refresh(CPUS)
    assert (usage.age_seconds(), usage.newest_seconds()) == (11, None)
    assert usage.of("pod", "a").cpu_cores is None


async def test_an_exporter_that_stopped_long_ago_is_noticed_at_the_start(
    server: LiveServer, usage: LiveUsage, clock: ManualClock
) -> None:
    collect(server, clock, pod("a", 1.0))
    await clock.advance(3600)
    await usage.refresh(CPUS)
    assert (usage.age_seconds(), usage.newest_seconds()) == (3600, None)
    assert usage.of("pod", "a").cpu_cores is None


@pytest.mark.parametrize("step", [-3600.0, 3600.0, -0.5, 30 * 86_400.0])
async def test_a_step_of_the_clock_makes_no_usage_stale_or_fresh(
    server: LiveServer, usage: LiveUsage, clock: ManualClock, step: float
) -> None:
    collect(server, clock, pod("a", 1.0))
    await usage.refresh(CPUS)
    clock.jump(step)
    assert usage.age_seconds() == 0
    await clock.advance(1)
    collect(server, clock, pod("a", 2.0))
    await usage.refresh(CPUS)
    assert (usage.age_seconds(), usage.of("pod", "a").cpu_cores) == (0, 2.0)
    clock.jump(step)
    await clock.advance(11)
    await usage.refresh(CPUS)
    assert (usage.age_seconds(), usage.of("pod", "a").cpu_cores) == (11, None)


async def test_an_exporter_that_comes_back_is_used_again(
    path: Path, usage: LiveUsage, clock: ManualClock
) -> None:
    for round in range(3):
        assert await usage.refresh(CPUS) == []
        server = LiveServer(path, "n1")
        await server.start()
        await clock.advance(60)
        collect(server, clock, pod("a", float(round)))
        await usage.refresh(CPUS)
        assert usage.of("pod", "a").cpu_cores == round
        await server.stop()
        await clock.advance(1)
        assert usage.of("pod", "a").cpu_cores == round


async def test_attempts_at_an_exporter_that_is_away_get_rare(
    path: Path, usage: LiveUsage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []
    connect = asyncio.open_unix_connection

    async def counted(*args: Any, **options: Any) -> Any:
        attempts.append(clock.monotonic())
        return await connect(*args, **options)

    monkeypatch.setattr(asyncio, "open_unix_connection", counted)
    for _ in range(600):
        assert await usage.refresh(CPUS) == []
        await clock.advance(1)
    assert 40 <= len(attempts) <= 130  # up to every 5 to 15 s


@asynccontextmanager
async def serving(path: Path, serve: Serve) -> AsyncIterator[None]:
    connections = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(ConnectionError):
            await serve(reader, writer)

    server = await asyncio.start_unix_server(accept, path)
    yield
    server.close()
    for writer in connections:
        writer.close()


def line(**fields: Any) -> bytes:
    return msgspec.json.encode({"node": "n1", "time_ms": 1_700_000_000_000, **fields}) + b"\n"


END = msgspec.json.encode({"collections": 1}) + b"\n"
GOOD = line(usages=[{"kind": "pod", "id": "a", "cpu_cores": 1.0}]) + END


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage\n", b"\xff\n", b"[]\n", b"null\n", GOOD[:50], line(node="n2") + END,
     line(usages=[{"kind": "pod"}]) + END, line(usages=[{"kind": "x", "id": "a"}]) + END,
     line(usages=[{"kind": "pod", "id": "a", "cpu_cores": "1"}]) + END, line(time_ms=None) + END,
     line(time_ms=10**400) + END,
     line(usages=[{"kind": "pod", "id": "a", "periods": 1, "throttled_periods": 10**400}]) + END,
     GOOD.replace(b"1.0", b"1e999"), GOOD.replace(b"1.0", b"NaN"), b"[" * 100_000 + b"\n",
     b'{"error": "32 clients are already connected"}\n', b"x" * (5 << 20), None],
)  # fmt: skip
async def test_an_invalid_or_late_answer_changes_nothing_and_the_next_one_counts(
    path: Path, usage: LiveUsage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch,
    answer: bytes | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(live_usage, "HISTORY_ANSWER_SECONDS", 0.3)
    answers = [
        GOOD,
        answer,
        GOOD.replace(b"1.0", b"2.0").replace(b"1700000000000", b"1700000060000"),
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            if (data := answers.pop(0)) is None:
                await asyncio.sleep(60)
                return
            writer.write(data)
            await writer.drain()
            if not data.endswith(END):
                writer.close()
                return

    async with serving(path, serve):
        await usage.refresh(CPUS)
        await clock.advance(1)
        before = live_usage.FAILED._value.get()
        assert await usage.refresh(CPUS) == []
        assert live_usage.FAILED._value.get() == before + 1
        assert usage.of("pod", "a").cpu_cores == 1.0
        await clock.advance(59)
        await usage.refresh(CPUS)
        assert usage.of("pod", "a").cpu_cores == 2.0


async def test_an_endless_answer_is_cut_off(
    path: Path, usage: LiveUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_usage, "_MOST_BYTES", 1 << 20)
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(line())
            await writer.drain()
            sent += len(line())

    async with serving(path, serve):
        assert await usage.refresh(CPUS) == []
    assert 1 << 20 < sent < 8 << 20


async def test_a_slow_machine_gets_less_of_the_past(
    path: Path, usage: LiveUsage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_usage, "HISTORY_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(live_usage, "ANSWER_SECONDS", 0.1)
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readline():
            asked.append(msgspec.json.decode(request)["seconds"])
            if asked[-1] < 10:
                writer.write(GOOD)

    async with serving(path, serve):
        while not await usage.refresh(CPUS):
            await clock.advance(20)
    assert asked == [60, 30, 15, 7.5]


async def test_a_request_that_is_cancelled_leaves_no_answer_behind(
    path: Path, usage: LiveUsage
) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readline():
            writer.write(GOOD[:40])
            if connections > 1:
                writer.write(GOOD[40:])

    async with serving(path, serve):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(usage.refresh(CPUS), 0.2)
        await usage.refresh(CPUS)
    assert usage.of("pod", "a").cpu_cores is not None or usage.age_seconds() is not None
    assert connections == 2
