"""Windows over time: clock steps, missed ticks, incomplete windows, the bounded buffer."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node_exporter import exporter_metrics, exporter_service
from node_exporter.exporter_service import WindowMaker
from node_exporter.node_policy import NodePolicy
from node_exporter.publisher import Publisher
from node_exporter.sampler import Sampler
from node_exporter.ticks import Tick
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import ManualClock, SystemClock
from pipeline.settings import KafkaSettings
from pipeline.tasks import cancel_tasks
from pipeline.topics.samples import SampleBatch
from tests.metric_values import value_of
from tests.node_exporter.fake_node import FakeNode

START = 1_700_000_000_000  # a multiple of the window length


class MakerHarness:
    """A window maker with a fake node and a clock that the test controls."""

    def __init__(
        self,
        folder: Path,
        *,
        emit_first_window: bool = True,
        window_seconds: int = 10,
        start: float = 0,
    ) -> None:
        self.node = FakeNode(folder)
        self.node.pod("a", 0)
        self.clock = ManualClock(START / 1000 + start)
        settings = msgspec.structs.replace(self.node.settings(), window_seconds=window_seconds)
        sampler = Sampler(settings, self.clock)
        self.maker = WindowMaker(settings, "fake", sampler, 42, emit_first_window=emit_first_window)
        self.finished: list[SampleBatch] = []

    def finish(self) -> None:
        if (batch := self.maker.finish(self.clock.now())) is not None:
            self.finished.append(batch)

    async def tick(self, *seconds: float, jump: float = 0.0) -> None:
        """Collect at these seconds of the wall clock after the start."""
        self.clock.jump(jump)
        for second in seconds:
            await self.clock.advance(second - self.clock.now() + START / 1000)
            self.finished += self.maker.collect(Tick(START + round(second * 1000), 0, 0.0))[1]

    @property
    def ends(self) -> list[float]:
        return [(b.header.window_end_ms - START) / 1000 for b in self.finished]

    def coverages(self, id: str = "") -> list[Any]:
        return [
            round(row["coverage"], 6) for b in self.finished for row in b.rows if row["id"] == id
        ]


async def test_consecutive_windows_leave_no_gap(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 31))
    assert harness.ends == [10, 20, 30]
    assert harness.coverages() == [0.9, 1.0, 1.0]  # the first reading has no previous one
    assert [b.header.sequence for b in harness.finished] == [0, 1, 2]
    assert {b.header.epoch for b in harness.finished} == {42}
    header = harness.finished[0].header
    assert header.window_end_ms - header.window_start_ms == 10_000


async def test_windows_of_a_new_length_neither_overlap_nor_leave_a_gap(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 25))
    harness.maker.apply_policy(NodePolicy(report_interval_seconds=22.0))
    await harness.tick(*range(25, 75))
    # At 30 a window of 20 s would begin within the last one.
    assert harness.ends == [10, 20, 30, 40, 60]
    harness.maker.apply_policy(NodePolicy())
    await harness.tick(*range(75, 101))
    assert harness.ends[5:] == [80, 90, 100]
    assert harness.coverages()[1:] == [1.0] * 7
    spans = [(b.header.window_start_ms, b.header.window_end_ms) for b in harness.finished]
    assert all(end == start for (_, end), (start, _) in pairwise(spans))


async def test_window_after_a_change_to_another_grid_starts_at_the_end_of_the_last_one(
    tmp_path: Path,
) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 15))
    harness.maker.apply_policy(NodePolicy(report_interval_seconds=45.0))
    await harness.tick(*range(15, 120))
    assert harness.ends == [10, 20, 55, 100]  # START + 10 is a multiple of 45
    spans = [(b.header.window_start_ms, b.header.window_end_ms) for b in harness.finished]
    assert all(end == start for (_, end), (start, _) in pairwise(spans))
    assert harness.coverages()[1:] == [1.0] * 3


async def test_windows_of_another_length_repeat_no_end_after_a_clock_step(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 42))
    harness.maker.apply_policy(NodePolicy(report_interval_seconds=20.0))
    await harness.tick(*range(42, 62))
    await harness.tick(*range(13, 81), jump=-49)
    assert harness.ends == [10, 20, 30, 40, 50, 60, 80]


async def test_long_window_is_cut_to_the_default_length_at_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    harness = MakerHarness(tmp_path)
    harness.maker.apply_policy(NodePolicy(report_interval_seconds=80.0))
    await harness.tick(*range(1, 24))
    harness.finish()
    assert (harness.ends, harness.coverages()) == ([30], [pytest.approx(22 / 30)])


async def test_cpu_time_between_windows_is_counted(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    for second in range(1, 31):
        harness.node.pod("a", second**2 * 10**7)
        await harness.tick(second)
    average = [row["cpu_cores_avg"] for b in harness.finished for row in b.rows if row["id"] == "a"]
    assert average[1:] == pytest.approx([(20**2 - 10**2) / 1000, (30**2 - 20**2) / 1000])


@pytest.mark.parametrize(
    ("until", "then", "jump", "ends", "coverages"),
    [
        # Stopped from 15 to 26: three intervals of the pause count.
        (15, range(27, 41), 0, [10, 20, 30, 40], [0.9, 0.4, 0.6, 1.0]),
        (13, range(104, 111), 91, [10, 20, 110], [0.9, 0.2, 0.7]),
        # Back within the window, which is not cut: at most 1.
        (18, range(15, 21), -3, [10, 20], [0.9, 1.0]),
        # The window to 40 was cut at 32; 10 to 40 are not repeated.
        (33, range(7, 51), -26, [10, 20, 30, 40, 50], [0.9, 1.0, 1.0, 0.2, 1.0]),
    ],
    ids=["missed ticks", "set forward", "set back", "set back across windows"],
)
async def test_missed_ticks_and_clock_steps_lower_the_coverage_and_repeat_no_end(
    tmp_path: Path, until: int, then: range, jump: int, ends: list[int], coverages: list[float]
) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, until))
    await harness.tick(*then, jump=jump)
    assert (harness.ends, harness.coverages()) == (ends, coverages)


async def test_coverage_of_a_new_pod_is_its_lifetime_within_the_window(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 14))
    harness.node.pod("b", 0)
    await harness.tick(*range(14, 21))
    assert harness.coverages("b") == [0.6]
    assert harness.coverages("a") == [0.9, 1.0]


async def test_incomplete_window_is_emitted_with_its_coverage(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    await harness.tick(*range(1, 14))
    harness.finish()
    assert (harness.ends, harness.coverages()) == ([10, 20], [0.9, 0.3])
    assert harness.maker.close() is None


async def test_consecutive_processes_emit_no_end_twice(tmp_path: Path) -> None:
    old = MakerHarness(tmp_path / "old", emit_first_window=False)
    await old.tick(*range(1, 14))
    old.finish()
    new = MakerHarness(tmp_path / "new", emit_first_window=False, start=14)
    await new.tick(*range(15, 41))
    assert (old.ends, new.ends) == ([20], [30, 40])
    assert new.coverages() == [1.0, 1.0]
    assert [batch.header.sequence for batch in new.finished] == [0, 1]
    # A process that starts and stops within one window.
    short = MakerHarness(tmp_path / "short", emit_first_window=False, start=41)
    await short.tick(42, 43)
    short.finish()
    assert short.ends == []


async def test_window_that_ends_far_in_the_future_is_dropped_at_the_end(tmp_path: Path) -> None:
    dropped = exporter_metrics.WINDOWS_DROPPED.labels("ends_too_far_ahead")
    for stopped, ends, count in ((95, [40], 1), (105, [40, 160], 0)):
        before = value_of(dropped)
        harness = MakerHarness(tmp_path / str(stopped), window_seconds=120)
        await harness.tick(*range(1, stopped))
        harness.finish()
        assert harness.ends == ends
        assert value_of(dropped) - before == count


async def test_buffer_drops_the_oldest_windows_and_preserves_the_order() -> None:
    buffer = WindowBuffer(100)
    windows = [EncodedWindow(i, bytes(30)) for i in range(8)]
    assert [buffer.append(window) for window in windows] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert (len(buffer), buffer.bytes) == (3, 90)
    for end_ms in (5, 6, 7):
        for _ in range(2):  # until remove_first()
            assert (await buffer.first()).end_ms == end_ms
        buffer.remove_first()
    assert (len(buffer), buffer.bytes) == (0, 0)
    await buffer.wait_empty()


async def test_buffer_never_drops_the_window_in_flight() -> None:
    buffer = WindowBuffer(100)
    buffer.append(EncodedWindow(0, bytes(60)))
    sending = await buffer.first()
    assert [buffer.append(EncodedWindow(i, bytes(60))) for i in (1, 2)] == [0, 1]
    assert await buffer.first() is sending
    buffer.remove_first()
    assert (await buffer.first()).end_ms == 2


async def test_window_larger_than_the_buffer_is_sent() -> None:
    buffer = WindowBuffer(10)
    assert buffer.append(EncodedWindow(0, bytes(60))) == 0
    assert (await buffer.first()).end_ms == 0


async def test_the_last_log_event_counts_published_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(
        exporter_service.log, "info", lambda event, **fields: events.append((event, fields))
    )
    publisher = Publisher(WindowBuffer(100), KafkaSettings(), "n", SystemClock())
    publishing = asyncio.create_task(asyncio.sleep(60))
    await exporter_service._flush(publisher, publishing)
    await cancel_tasks(publishing)
    assert events == [("exporter stopped", {"published": 0})]


async def test_an_exporter_that_cannot_read_its_node_is_not_ready(tmp_path: Path) -> None:
    harness = MakerHarness(tmp_path)
    sampler = harness.maker.sampler
    publisher = Publisher(WindowBuffer(100), KafkaSettings(), "n", SystemClock())
    await harness.tick(1)
    assert exporter_service._trouble(sampler, publisher) == "connecting to Kafka"
    publisher.trouble = ""
    assert exporter_service._trouble(sampler, publisher) == ""
    (harness.node.proc / "stat").write_text("garbage")
    await harness.tick(2)
    assert "stat" in exporter_service._trouble(sampler, publisher)
    harness.node.node(100)
    await harness.tick(3)
    assert exporter_service._trouble(sampler, publisher) == ""
