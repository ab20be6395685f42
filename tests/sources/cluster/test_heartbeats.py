"""Heartbeats: when the watcher may vouch for its topics, and what a late heartbeat does."""

from pathlib import Path

import pytest
from msgspec import Raw

from pipeline.clock import ManualClock
from pipeline.errors import RecordError
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Page
from pipeline.sources.cluster.followed_kinds import SILENCE_SECONDS, FollowedKinds
from pipeline.sources.compacted_writer import heartbeat_entry
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.table.limits import LONGEST_UNCONFIRMED_SECONDS, TENTATIVE_SECONDS
from pipeline.table.table_snapshot import copied, load, save
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


def beat(table: Table, at: float) -> None:
    entry = heartbeat_entry("cluster", at)
    assert apply(table, HEARTBEATS, entry.key, entry.value)


def counted(table: Table, now: float) -> int:
    table.bring_up_to_date(now)
    return table.pods.tentative


def test_placed_pod_counts_until_a_heartbeat_after_it() -> None:
    """A dead watcher writes no record of its bind."""
    table = table_of(node_state("n"))
    beat(table, NOW - 1)
    table.place(any_pod(), "n", NOW)
    assert counted(table, NOW + 600) == 1
    beat(table, NOW + TENTATIVE_SECONDS - 1)
    assert counted(table, NOW + 600) == 1
    beat(table, NOW + TENTATIVE_SECONDS)
    assert counted(table, NOW + 600) == 0


@pytest.mark.parametrize("age", [1, -9000])
def test_placed_pod_expires_some_time_even_without_heartbeats(age: float) -> None:
    """Also if the last heartbeat of a dead watcher is in the future."""
    table = table_of(node_state("n"))
    beat(table, NOW - age)
    table.place(any_pod(), "n", NOW)
    longest = NOW + TENTATIVE_SECONDS + LONGEST_UNCONFIRMED_SECONDS
    assert counted(table, longest - 1) == 1
    assert counted(table, longest) == 0


@pytest.mark.parametrize("at", [None, NOW + 30])
def test_placed_pod_expires_in_time_if_no_heartbeat_is_missing(at: float | None) -> None:
    """Also if the watcher's clock is a little ahead."""
    table = table_of(node_state("n"))
    if at is not None:
        beat(table, at)
    table.place(any_pod(), "n", NOW)
    assert counted(table, NOW + TENTATIVE_SECONDS - 0.1) == 1
    assert counted(table, NOW + TENTATIVE_SECONDS) == 0


def test_heartbeats_and_pending_pods_are_part_of_a_snapshot(tmp_path: Path) -> None:
    """A restarted extender does not read them again."""
    table = table_of(node_state("n"))
    beat(table, NOW)
    table.put_pod(any_pod("waits"))
    save(tmp_path / "snapshot", copied(table, [], NOW, {}))
    restored = load(tmp_path / "snapshot", Table())
    assert restored is not None
    assert restored.table.last_heartbeat == NOW
    assert restored.table.pending == {"waits"}


def test_a_tombstone_removes_the_source() -> None:
    table = Table()
    beat(table, NOW)
    assert table.last_heartbeat == NOW
    assert apply(table, HEARTBEATS, b"cluster", None)
    assert table.last_heartbeat is None


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
    assert table.last_heartbeat is None
