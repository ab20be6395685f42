"""Windows over time: clock steps, missed ticks, half windows, memory that does not grow."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node_exporter import exporter_metrics
from node_exporter.exporter_service import WindowMaker
from node_exporter.sampler import Sampler
from node_exporter.ticks import Tick
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import ManualClock
from pipeline.topics.samples import SampleBatch
from tests.node_exporter.fake_node import FakeNode

START = 1_700_000_000_000  # a whole multiple of the window


class Maker:
    """A window maker over a fake node whose wall and monotonic time the test sets."""

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
        """Read at these seconds after the start, by the wall clock."""
        self.clock.jump(jump)
        for second in seconds:
            await self.clock.advance(second - self.clock.now() + START / 1000)
            tick = Tick(START + round(second * 1000), self.clock.monotonic(), 0, 0.0)
            self.finished += self.maker.collect(tick)[1]

    @property
    def ends(self) -> list[float]:
        return [(b.header.window_end_ms - START) / 1000 for b in self.finished]

    def coverages(self, id: str = "") -> list[Any]:
        return [
            round(row["coverage"], 6) for b in self.finished for row in b.rows if row["id"] == id
        ]


async def test_whole_windows_follow_one_another_without_a_gap(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 31))
    assert made.ends == [10, 20, 30]
    assert made.coverages() == [0.9, 1.0, 1.0]  # the first reading has nothing to compare with
    assert [b.header.sequence for b in made.finished] == [0, 1, 2]
    assert {b.header.epoch for b in made.finished} == {42}
    header = made.finished[0].header
    assert header.window_end_ms - header.window_start_ms == 10_000


async def test_windows_grow_where_the_policy_asks_and_neither_overlap_nor_leave_a_gap(
    tmp_path: Path,
) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 25))
    made.maker.set_report_interval(22.0)
    await made.tick(*range(25, 75))
    # At 30 a window of 20 s would begin within the last one.
    assert made.ends == [10, 20, 30, 40, 60]
    made.maker.set_report_interval(None)
    await made.tick(*range(75, 101))
    assert made.ends[5:] == [80, 90, 100]
    assert made.coverages()[1:] == [1.0] * 7
    spans = [(b.header.window_start_ms, b.header.window_end_ms) for b in made.finished]
    assert all(end == start for (_, end), (start, _) in pairwise(spans))


async def test_windows_of_another_length_repeat_no_end_after_a_step_of_the_clock(
    tmp_path: Path,
) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 42))
    made.maker.set_report_interval(20.0)
    await made.tick(*range(42, 62))
    await made.tick(*range(13, 81), jump=-49)
    assert made.ends == [10, 20, 30, 40, 50, 60, 80]


async def test_a_long_window_in_hand_ends_with_the_process_where_a_usual_one_would(
    tmp_path: Path,
) -> None:
    made = Maker(tmp_path)
    made.maker.set_report_interval(80.0)
    await made.tick(*range(1, 24))
    made.finish()
    assert (made.ends, made.coverages()) == ([30], [pytest.approx(22 / 30)])


async def test_cpu_between_the_windows_is_not_lost(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    for second in range(1, 31):
        made.node.pod("a", second**2 * 10**7)
        await made.tick(second)
    average = [row["cpu_cores_avg"] for b in made.finished for row in b.rows if row["id"] == "a"]
    assert average[1:] == pytest.approx([(20**2 - 10**2) / 1000, (30**2 - 20**2) / 1000])


async def test_a_window_cut_by_missed_ticks_says_how_much_it_saw(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 15))
    await made.tick(*range(27, 41))  # stopped from 15 to 26
    assert made.ends == [10, 20, 30, 40]
    assert made.coverages() == [0.9, 0.4, 0.6, 1.0]  # of the pause three intervals count


async def test_a_pod_that_appears_mid_window_has_the_coverage_of_its_life(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 14))
    made.node.pod("b", 0)
    await made.tick(*range(14, 21))
    assert made.coverages("b") == [0.6]
    assert made.coverages("a") == [0.9, 1.0]


async def test_a_clock_set_forward_cuts_the_window_in_hand(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 13))
    await made.tick(*range(104, 111), jump=91)
    assert made.ends == [10, 20, 110]
    assert made.coverages()[1:] == [0.2, 0.7]


async def test_a_clock_set_back_repeats_no_end(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 33))
    assert made.ends == [10, 20, 30]
    await made.tick(*range(7, 51), jump=-26)
    assert made.ends == [10, 20, 30, 40, 50]  # 40 as it was cut at 32; 10 to 40 not again
    assert made.coverages()[3:] == [0.2, 1.0]


async def test_a_clock_set_back_within_the_window_cuts_nothing(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 18))
    await made.tick(*range(15, 21), jump=-3)
    assert made.ends == [10, 20]
    assert made.coverages() == [0.9, 1.0]  # never more than all of it


async def test_half_a_window_is_given_out_at_the_end_as_what_it_is(tmp_path: Path) -> None:
    made = Maker(tmp_path)
    await made.tick(*range(1, 14))
    batch = made.maker.close()
    assert batch is not None
    assert (batch.header.window_end_ms - START, batch.rows[0]["coverage"]) == (20_000, 0.3)
    assert made.maker.close() is None


async def test_no_end_is_given_out_by_two_processes_that_follow_one_another(
    tmp_path: Path,
) -> None:
    old = Maker(tmp_path / "old", emit_first_window=False)
    await old.tick(*range(1, 14))
    old.finish()
    new = Maker(tmp_path / "new", emit_first_window=False, start=14)
    await new.tick(*range(15, 41))
    assert (old.ends, new.ends) == ([20], [30, 40])
    assert new.coverages() == [1.0, 1.0]
    assert [batch.header.sequence for batch in new.finished] == [0, 1]
    short = Maker(
        tmp_path / "short", emit_first_window=False, start=41
    )  # started and stopped in one
    await short.tick(42, 43)
    short.finish()
    assert short.ends == []


async def test_a_window_that_would_end_in_the_future_is_not_given_out_at_the_end(
    tmp_path: Path,
) -> None:
    dropped = exporter_metrics.WINDOWS_DROPPED.labels("ends_too_far_ahead")
    for stopped, ends, count in ((95, [40], 1), (105, [40, 160], 0)):
        before = dropped._value.get()
        made = Maker(tmp_path / str(stopped), window_seconds=120)
        await made.tick(*range(1, stopped))
        made.finish()
        assert made.ends == ends
        assert dropped._value.get() - before == count


async def test_the_buffer_drops_the_oldest_and_keeps_the_order() -> None:
    buffer = WindowBuffer(100)
    windows = [EncodedWindow(i, bytes(30)) for i in range(8)]
    assert [buffer.append(window) for window in windows] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert (len(buffer), buffer.bytes) == (3, 90)
    seen = []
    while len(buffer):
        seen.append((await buffer.first()).end_ms)
        assert (await buffer.first()).end_ms == seen[-1]  # it stays until it is done with
        buffer.remove_first()
    assert seen == [5, 6, 7]
    assert buffer.bytes == 0
    await buffer.wait_empty()


async def test_the_window_that_is_being_sent_is_never_dropped() -> None:
    buffer = WindowBuffer(100)
    buffer.append(EncodedWindow(0, bytes(60)))
    sending = await buffer.first()
    assert [buffer.append(EncodedWindow(i, bytes(60))) for i in (1, 2)] == [0, 1]
    assert await buffer.first() is sending
    buffer.remove_first()
    assert (await buffer.first()).end_ms == 2


async def test_a_window_larger_than_the_buffer_is_still_sent() -> None:
    buffer = WindowBuffer(10)
    assert buffer.append(EncodedWindow(0, bytes(60))) == 0
    assert (await buffer.first()).end_ms == 0
