"""Lists that miss too many objects delete nothing until a second list agrees."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from pipeline.clock import ManualClock
from pipeline.metrics import REGISTRY
from pipeline.sources.cluster.doubtful_lists import CONFIRM_SECONDS, DoubtfulLists
from pipeline.sources.cluster.watched_kinds import Kind, Nodes, Pods, Workloads
from pipeline.sources.compacted_writer import Entry


def manifest(name: str) -> msgspec.Raw:
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}"}
    return msgspec.Raw(json.dumps({"metadata": metadata, "spec": {"nodeName": "n"}}).encode())


class Watched:
    """A kind of object, and lists of it at times of a manual clock."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.clock = ManualClock()
        self.lists = DoubtfulLists(kind, self.clock)

    async def list(self, *names: Any, after: float = 0.0) -> list[Entry] | None:
        """Take a list after so many seconds; return the tombstones, None if it is doubtful."""
        await self.clock.advance(after)
        self.lists.began()
        self.kind.begin()
        for name in names:
            list(self.kind.put(manifest(str(name))))
        if not self.lists.accepts():
            return None
        return list(self.kind.complete())

    @property
    def doubtful(self) -> float | None:
        labels = {"kind": self.kind.name}
        return REGISTRY.get_sample_value("springtide_watcher_doubtful_deletions", labels)


KINDS = pytest.mark.parametrize("kind", [
    lambda: Nodes(lambda *_: None), Pods, lambda: Workloads("Deployment"),
])  # fmt: skip


@KINDS
async def test_a_list_without_a_fifth_of_the_objects_is_confirmed_by_a_second_one(
    kind: Any,
) -> None:
    watched = Watched(kind())
    assert await watched.list(*range(20)) == []
    assert await watched.list(*range(15)) is None
    assert (len(watched.kind), watched.doubtful) == (20, 5)
    # Too early to agree.
    assert await watched.list(*range(15), after=CONFIRM_SECONDS - 1) is None
    assert len(await watched.list(*range(15), after=1) or ()) == 5
    assert (len(watched.kind), watched.doubtful) == (15, 0)


@KINDS
async def test_a_second_list_that_has_the_objects_deletes_nothing(kind: Any) -> None:
    watched = Watched(kind())
    await watched.list(*range(20))
    assert await watched.list() is None
    assert await watched.list(*range(20), after=CONFIRM_SECONDS) == []
    assert await watched.list() is None
    assert len(watched.kind) == 20


@KINDS
async def test_a_second_list_that_misses_other_objects_is_doubtful_again(kind: Any) -> None:
    watched = Watched(kind())
    await watched.list(*range(20))
    assert await watched.list(*range(10)) is None
    assert await watched.list(*range(10, 20), after=CONFIRM_SECONDS) is None
    assert await watched.list(*range(10), after=CONFIRM_SECONDS) is None
    # A few more that vanish meanwhile are usual.
    assert len(await watched.list(*range(8), after=CONFIRM_SECONDS) or ()) == 12


@KINDS
async def test_a_few_missing_objects_of_a_small_cluster_need_no_second_list(kind: Any) -> None:
    watched = Watched(kind())
    await watched.list(*range(4))
    assert len(await watched.list(*range(3)) or ()) == 1
    assert len(await watched.list(*range(1)) or ()) == 2


async def test_a_list_without_any_node_is_always_confirmed() -> None:
    watched = Watched(Nodes(lambda *_: None))
    await watched.list("only")
    assert await watched.list() is None
    assert len(await watched.list(after=CONFIRM_SECONDS) or ()) == 1


async def test_the_next_list_is_due_a_minute_after_a_doubtful_one() -> None:
    async def no_event() -> Any:
        await watched.clock.sleep(1e6)
        yield None

    watched = Watched(Pods())
    await watched.list(*range(20))
    await watched.list()
    waiting = asyncio.create_task(watched.lists.next_event(no_event()))
    await watched.clock.advance(CONFIRM_SECONDS - 1)
    assert not waiting.done()
    await watched.clock.advance(1)
    assert await waiting is None
