"""OOM kills of pods: from their records into the windows of ten minutes."""

from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.agents.cluster_state import ClusterState
from pipeline.processors.join import joined_oom_kills
from pipeline.processors.join.joined_oom_kills import FUTURE_MS, LATEST_MS, REPEATED_MS
from pipeline.times import format_time
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import MOST_OOM_KILLS, OomKill
from tests.agents.fakes import APPENDED_MS
from tests.agents.test_join_agent import NODE, Fixture, put
from tests.agents.test_workload_histories import sample

MINUTE_MS = 60_000
KILLED_MS = APPENDED_MS - 20 * MINUTE_MS
MIB = 2.0**20


class Join(Fixture):
    """A join of a node whose windows end each minute after the first kill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.add_node(NODE)

    def killed(self, uid: str, killed_ms: int = KILLED_MS, **more: Any) -> None:
        """Write the record of a pod whose container was killed."""
        times = {"main": format_time(killed_ms / 1000)}
        requests = Resources(memory_bytes=int(300 * MIB))
        self.add_pod(uid, **{"oom_killed_at": times, "requests": requests} | more)

    async def minutes(self, first: int, end: int) -> list[list[OomKill]]:
        """The kills in windows that end so many minutes after the first kill."""
        before = len(self.windows)
        ends = [KILLED_MS + MINUTE_MS * number for number in range(first, end)]
        await self.cursor.process([
            sample(offset, end_ms, {"web": 0.1}, length_ms=5000)
            for offset, end_ms in enumerate(ends, before)
        ])  # fmt: skip
        return [[*window.node.oom_kills] for window in self.windows[before:]]


KILL = OomKill(pod="web", killed_ms=KILLED_MS, request_bytes=300 * MIB, container="main")


async def test_a_kill_is_in_the_windows_of_ten_minutes() -> None:
    join = Join()
    join.killed("web")
    assert await join.minutes(1, 14) == [[KILL]] * (REPEATED_MS // MINUTE_MS + 1) + [[]] * 2
    assert len(join.cluster_state.oom_kills) == 0
    handed = [record.window and record.window.node for record in join.handed_over]
    assert handed == [window.node for window in join.windows]
    assert b"oom_kills" not in (join.broker.records("t.windows")[-1].value or b"")


async def test_a_window_before_the_kill_has_it_not() -> None:
    join = Join()
    join.killed("web")
    assert await join.minutes(-2, 2) == [[], [], [KILL], [KILL]]


async def test_a_record_that_repeats_a_kill_changes_nothing_and_a_later_kill_replaces_it() -> None:
    join = Join()
    join.killed("web")
    assert await join.minutes(1, 9) == [[KILL]] * 8
    join.killed("web", labels={"a": "b"})
    join.killed("web", KILLED_MS - 1000)
    assert await join.minutes(9, 13) == [[KILL]] * 3 + [[]]
    later = KILLED_MS + 13 * MINUTE_MS
    join.killed("web", later)
    # The container ends for another reason: its status has no kill any more.
    join.add_pod("web")
    kill = replace(KILL, killed_ms=later)
    assert await join.minutes(13, 15) == [[kill]] * 2


async def test_the_last_kill_of_each_container_counts() -> None:
    join = Join()
    times = {name: format_time(KILLED_MS / 1000 - age) for name, age in (("a", 9), ("b", 0))}
    times |= {"c": "yesterday", "d": "0001-01-01T00:00:00Z", "e": "2099-01-01T00:00:00Z"}
    own = Container(name="b", requests=Resources(memory_bytes=int(100 * MIB)))
    join.killed("web", oom_killed_at=times, containers=(Container(name="a"), own))
    first = replace(KILL, killed_ms=KILLED_MS - 9000, container="a")
    last = replace(KILL, container="b", container_request_bytes=100 * MIB)
    assert await join.minutes(1, 2) == [[first, last]]
    # Between two windows another container is killed, and one of the two again.
    later = {"a": KILLED_MS + 61_000, "c": KILLED_MS + 62_000}
    for count in (1, 2):
        some = dict([*later.items()][:count])
        join.killed("web", oom_killed_at={key: format_time(ms / 1000) for key, ms in some.items()})
    again = [replace(KILL, killed_ms=ms, container=name) for name, ms in later.items()]
    assert await join.minutes(2, 3) == [[last, *again]]


@pytest.mark.parametrize(
    "killed_ms",
    [KILLED_MS - LATEST_MS, APPENDED_MS + FUTURE_MS + 1000, -62_135_596_800_000],
    ids=["late", "future", "the-year-1"],
)
async def test_an_impossible_or_late_kill_is_ignored(killed_ms: int) -> None:
    join = Join()
    join.killed("web", killed_ms)
    assert await join.minutes(1, 3) == [[], []]
    assert len(join.cluster_state.oom_kills) == 0


async def test_a_pod_that_ended_or_was_deleted_has_its_kill_in_the_next_window() -> None:
    join = Join()
    join.killed("job", phase="Failed")
    join.cluster_state.apply_pod(put(f"{NODE}/job".encode(), None))
    kill = replace(KILL, pod="job")
    assert await join.minutes(1, 2) == [[kill]]


async def test_kills_that_are_too_many_for_a_window_wait_for_later_ones() -> None:
    join = Join()
    for number in range(MOST_OOM_KILLS + 5):
        join.killed(f"pod-{number}")
    pods = [[kill.pod for kill in kills] for kills in await join.minutes(1, 14)]
    first = [f"pod-{number}" for number in range(MOST_OOM_KILLS)]
    others = [f"pod-{number}" for number in range(MOST_OOM_KILLS, MOST_OOM_KILLS + 5)]
    assert pods == [first] * 11 + [others] * 2


async def test_a_limited_number_of_kills_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_oom_kills, "MOST_KILLS", 3)
    join = Join()
    for number in range(5):
        join.killed(f"pod-{number}")
    (kills,) = await join.minutes(1, 2)
    assert [kill.pod for kill in kills] == ["pod-2", "pod-3", "pod-4"]


async def test_a_node_without_a_record_has_kills_and_a_deleted_one_has_none() -> None:
    join = Join(cluster_state=ClusterState())
    join.cluster_state.nodes.pop(NODE)
    join.killed("web")
    assert await join.minutes(1, 2) == [[KILL]]
    join.cluster_state.apply_node(put(NODE.encode(), None))
    assert len(join.cluster_state.oom_kills) == 0
    join.killed("web")
    assert len(join.cluster_state.oom_kills) == 0


async def test_absurd_requests_do_not_make_a_window_unreadable() -> None:
    join = Join()
    join.killed("web", requests=Resources(memory_bytes=2**63 - 1))
    ((kill,),) = await join.minutes(1, 2)
    assert kill.request_bytes == 2.0**53
