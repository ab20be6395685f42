"""New cgroups are noticed at once: on plain directories, and by the kernel's own cgroups."""

import asyncio
import ctypes
import errno
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from actuators.node import cgroup_inotify, node_metrics
from actuators.node.cgroup_inotify import CgroupInotify
from pipeline.processors.node_qos.node_state import NodeState, PodState
from tests.cgroup_tree import cgroup_tree
from tests.metric_values import value_of

PARENTS = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
MOST_EVENTS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
BATCH, WEB = "kubepods/besteffort/podbatch", "kubepods/burstable/podweb"


def state(*pods: str) -> NodeState:
    found = tuple(PodState(uid=path[-4:], path=path, kube_qos="Burstable") for path in pods)
    return NodeState(node="n1", at=0.0, pods=found)


class Watched:
    """A tree of directories that is watched, in which pods may appear."""

    def __init__(self, root: Path) -> None:
        self.root, self.news = root, asyncio.Event()
        for path in PARENTS:
            (root / path).mkdir(exist_ok=True)
        self.inotify = CgroupInotify(str(root), self.news)

    async def notices(self) -> bool:
        """Whether there was news; forgets them."""
        await asyncio.sleep(0.05)
        is_set = self.news.is_set()
        self.news.clear()
        return is_set


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    tree = Watched(tmp_path)
    yield tree
    tree.inotify.close()


async def test_a_new_pod_and_its_containers_are_news(watched: Watched) -> None:
    watched.inotify.follow(state())
    assert await watched.notices()  # what came before the watches
    watched.inotify.follow(state())
    assert not await watched.notices()
    (watched.root / BATCH).mkdir()
    assert await watched.notices()
    # Before any round has seen the pod.
    (watched.root / BATCH / "container").mkdir()
    assert await watched.notices()
    watched.inotify.follow(state(BATCH))
    assert not await watched.notices()


async def test_a_pod_that_a_round_saw_first_is_news_once(watched: Watched) -> None:
    watched.inotify.follow(state())
    (watched.root / WEB / "container").mkdir(parents=True)
    watched.inotify.follow(state(WEB))
    assert await watched.notices()
    watched.inotify.follow(state(WEB))
    assert not await watched.notices()


async def test_files_and_directories_in_containers_are_no_news(watched: Watched) -> None:
    (watched.root / WEB / "container").mkdir(parents=True)
    watched.inotify.follow(state(WEB))
    await watched.notices()
    (watched.root / WEB / "cpu.max").write_text("max")
    (watched.root / WEB / "container/nested").mkdir()
    assert not await watched.notices()


async def test_a_pod_that_ended_is_watched_no_longer_and_again_when_it_returns(
    watched: Watched,
) -> None:
    (watched.root / WEB).mkdir()
    watched.inotify.follow(state(WEB))
    (watched.root / WEB).rmdir()
    await watched.notices()
    watched.inotify.follow(state())
    (watched.root / WEB).mkdir()
    assert await watched.notices()
    (watched.root / WEB / "container").mkdir()
    assert await watched.notices()


async def test_more_events_than_the_queue_holds_are_news() -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        await overflow(Watched(Path(folder)))


async def overflow(watched: Watched) -> None:
    (watched.root / WEB).mkdir()
    watched.inotify.follow(state(WEB))
    watched.news.clear()
    other = watched.root / PARENTS[0] / "storm"
    for number in range(MOST_EVENTS + 10):
        other.with_name(f"storm{number}").mkdir()
        other.with_name(f"storm{number}").rmdir()
    (watched.root / WEB).rmdir()  # unseen
    (watched.root / WEB).mkdir()
    assert await watched.notices()
    while watched.inotify.changed(WEB) is not None:  # the overflow comes last
        await watched.notices()
    watched.inotify.follow(state(WEB))
    assert await watched.notices()
    assert all(watched.inotify.changed(path) for path in (*PARENTS, WEB))
    for path in (BATCH, f"{WEB}/container"):
        (watched.root / path).mkdir()
        assert await watched.notices()
    watched.inotify.close()


async def test_no_more_directories_are_watched_than_a_node_has(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched.inotify.follow(state())
    monkeypatch.setattr(cgroup_inotify, "MOST_WATCHES", 20)
    for number in range(100):
        (watched.root / PARENTS[2] / f"pod{number}").mkdir()
    assert await watched.notices()
    assert value_of(node_metrics.WATCHED) <= 20
    assert len([r for r in caplog.records if "not at once" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("function", "number"),
    [("inotify_init1", errno.EMFILE), ("inotify_add_watch", errno.ENOSPC)],
)
async def test_without_watches_it_is_said_once_and_nothing_fails(
    tmp_path: Path, function: str, number: int, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def refuse(*arguments: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(cgroup_inotify._libc, function, refuse)
    watched = Watched(tmp_path)
    for _ in range(3):
        watched.inotify.follow(state())
        (watched.root / WEB).mkdir(exist_ok=True)
    assert not await watched.notices()
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert os.strerror(number) in record.__dict__["fields"]["why"]
    assert "fs.inotify" in record.__dict__["fields"]["hint"]
    watched.inotify.close()


@pytest.mark.cgroups
@pytest.mark.parametrize("hierarchy", ["cpu", "unified"])  # v1, and v2 without controllers
async def test_cgroups_of_the_kernel_are_noticed_and_removed_ones_forgotten(hierarchy: str) -> None:
    with cgroup_tree("inotify", (hierarchy,)) as tree:
        watched = Watched(tree.directory(hierarchy))
        watched.inotify.follow(state())
        await watched.notices()
        for _ in range(3):
            tree.make(f"{WEB}/container")
            assert await watched.notices()
            watched.inotify.follow(state(WEB))
            await watched.notices()
            tree.remove(WEB)
            watched.inotify.follow(state())
            assert value_of(node_metrics.WATCHED) == len(PARENTS)
        watched.inotify.close()
