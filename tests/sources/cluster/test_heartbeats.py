"""Heartbeats: when the watcher may vouch for its topics, and what a late heartbeat does."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Raw

from pipeline.clock import ManualClock
from pipeline.errors import RecordError
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Page
from pipeline.settings import Settings
from pipeline.sources.cluster.followed_kinds import SILENCE_SECONDS, FollowedKinds
from pipeline.sources.cluster.watcher import Watcher
from pipeline.sources.compacted_writer import Entry, heartbeat_entry
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.table.limits import LONGEST_UNCONFIRMED_SECONDS, TENTATIVE_SECONDS
from pipeline.table.table_snapshot import copied, load, save
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.heartbeats import HEARTBEAT_SECONDS, HeartbeatRecord
from pipeline.topics.registry import HEARTBEATS
from tests.table.records import NOW, any_pod, node_state, table_of

PODS, NODES = "Pod", "Node"


def followed(clock: ManualClock) -> FollowedKinds:
    kinds = FollowedKinds((NODES, PODS), clock)
    for kind in (NODES, PODS):
        kinds.observe(kind, Began())
        kinds.observe(kind, Complete())
    return kinds


def test_kinds_are_followed_once_all_lists_are_complete() -> None:
    kinds = FollowedKinds((NODES, PODS), ManualClock())
    assert not kinds.are_complete
    for kind, event in (
        (NODES, Began()), (NODES, Complete()), (PODS, Began()), (PODS, Page([])),
        ("Job", Complete()), (PODS, Alive()),
    ):  # fmt: skip
        kinds.observe(kind, event)
        assert not kinds.are_complete
    kinds.observe(PODS, Complete())
    assert kinds.are_complete


def test_kind_that_is_listed_again_is_not_followed() -> None:
    kinds = followed(ManualClock())
    kinds.observe(PODS, Began())
    kinds.observe(PODS, Changed(Raw(b"{}"), is_deleted=False))
    assert not kinds.are_complete
    kinds.observe(PODS, Complete())
    assert kinds.are_complete


async def test_the_first_bookmark_of_a_quiet_kind_may_take_two_minutes() -> None:
    """An API server that was restarted sent it after 123 s."""
    clock = ManualClock()
    kinds = followed(clock)
    await clock.advance(123)
    assert kinds.are_complete


async def test_a_silent_watch_vouches_for_nothing() -> None:
    clock = ManualClock()
    kinds = followed(clock)
    await clock.advance(SILENCE_SECONDS - 1)
    kinds.observe(NODES, Alive())
    assert kinds.are_complete
    await clock.advance(1)
    assert not kinds.are_complete
    kinds.observe(PODS, Alive())
    assert kinds.are_complete


async def test_heartbeats_go_on_while_lists_are_read_again() -> None:
    """They show that the watcher lives, and repeat until when its topics are complete."""
    clock = ManualClock()
    watcher = Watcher(SimpleNamespace(clock=clock), Settings())  # type: ignore[arg-type]
    sending = asyncio.create_task(watcher._send_heartbeats())
    sent: list[str | None] = []

    async def pass_by(seconds: float) -> None:
        await clock.advance(seconds)
        while not watcher._queue.empty():
            entry = watcher._queue.get_nowait()
            assert isinstance(entry, Entry)
            assert entry.value is not None
            sent.append(decode_json(HeartbeatRecord, entry.value).at)

    await pass_by(0.0)
    assert sent == [None]
    for kind in (NODES, PODS):
        watcher._followed.observe(kind, Complete())
    await pass_by(HEARTBEAT_SECONDS)
    complete = format_time(clock.now())
    watcher._followed.observe(PODS, Began())
    for _ in range(3):
        await pass_by(HEARTBEAT_SECONDS)
    assert sent == [None, *[complete] * 4]
    watcher._followed.observe(PODS, Complete())
    await pass_by(HEARTBEAT_SECONDS)
    assert sent[-1] == format_time(clock.now())
    await cancel_tasks(sending)


def beat(table: Table, at: float | None) -> None:
    entry = heartbeat_entry(at)
    assert apply(table, HEARTBEATS, entry.key, entry.value)


def counted(table: Table, now: float) -> int:
    table.bring_up_to_date(now)
    return table.pods.tentative


def test_placed_pod_counts_until_a_heartbeat_after_it() -> None:
    """A dead watcher writes no record of its bind, and one that lists again does so later."""
    table = table_of(node_state("n"))
    beat(table, NOW - 1)
    table.place(any_pod(), "n", NOW)
    assert counted(table, NOW + 600) == 1
    for at in (None, NOW - 1, NOW + TENTATIVE_SECONDS - 1):
        beat(table, at)
        assert counted(table, NOW + 600) == 1
    beat(table, NOW + TENTATIVE_SECONDS)
    assert counted(table, NOW + 600) == 0


@pytest.mark.parametrize("at", [NOW - 1, NOW + 9000, None])
def test_placed_pod_expires_some_time_even_without_heartbeats(at: float | None) -> None:
    """Also if the clock of a dead watcher was ahead, and if it has read no list yet."""
    table = table_of(node_state("n"))
    beat(table, at)
    table.bring_up_to_date(NOW)
    table.place(any_pod(), "n", NOW)
    longest = NOW + TENTATIVE_SECONDS + LONGEST_UNCONFIRMED_SECONDS
    assert counted(table, longest - 1) == 1
    assert counted(table, longest) == 0


@pytest.mark.parametrize("ahead", [None, 0, 30, 9000])
def test_placed_pod_expires_in_time_if_no_heartbeat_is_missing(ahead: float | None) -> None:
    """Also if the watcher's clock is ahead."""
    table = table_of(node_state("n"))
    table.place(any_pod(), "n", NOW)
    for seconds, expected in ((0, 1), (TENTATIVE_SECONDS - 0.1, 1), (TENTATIVE_SECONDS, 0)):
        if ahead is not None:
            beat(table, NOW + ahead + seconds)
        assert counted(table, NOW + seconds) == expected


def test_heartbeats_and_pending_pods_are_part_of_a_snapshot(tmp_path: Path) -> None:
    """A restarted extender does not read them again."""
    table = table_of(node_state("n"))
    beat(table, NOW)
    table.put_pod(any_pod("waits"))
    save(tmp_path / "snapshot", copied(table, [], NOW, {}))
    restored = load(tmp_path / "snapshot", Table())
    assert restored is not None
    assert restored.table.heartbeats.complete_until == NOW
    assert restored.table.heartbeats.have_come
    assert restored.table.pending == {"waits"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"cluster", b"{"),
        (b"cluster", b'{"version":1,"source":"other","at":"2023-11-14T22:13:20Z"}'),
        (b"other", b'{"version":1,"source":"other","at":"2023-11-14T22:13:20Z"}'),
        (b"cluster", b'{"version":1,"source":"cluster","at":"yesterday"}'),
        (None, b'{"version":1,"source":"cluster","at":"2023-11-14T22:13:20Z"}'),
    ],
)
def test_invalid_heartbeats_are_refused(key: bytes | None, value: bytes) -> None:
    table = Table()
    with pytest.raises(RecordError):
        apply(table, HEARTBEATS, key, value)
    assert not table.heartbeats.have_come
