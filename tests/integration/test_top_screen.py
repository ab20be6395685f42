"""`springtide top` on a real terminal, over a real broker."""

import asyncio
import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import msgspec

from pipeline.clock import SystemClock
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.registry import NODE_STATE, NODE_VIEWS, NODES, PREDICTIONS, RESOURCES
from tests.integration.test_extender import PARTITIONS, Cluster, cluster, fresh
from tests.processes import eventually, springtide
from tests.pseudo_terminal import on_terminal
from tests.topics.golden import PREDICTION

__all__ = ["cluster"]
COLOURS = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|9[0-7]|38;[0-9;]+)m")


def top(cluster: Cluster, *arguments: str) -> list[str]:
    return springtide("top", "--partitions", str(PARTITIONS), *cluster.flags, *arguments)


def state(pid: int) -> str:
    """The state of a process as /proc has it: T while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def publish(cluster: Cluster) -> None:
    """Two nodes, and a prediction of one, with the name of one of its two pods."""
    await cluster.create(NODE_STATE, NODES, PREDICTIONS, RESOURCES, NODE_VIEWS)
    await cluster.states(fresh("db-1", cpu=3.9), fresh("n2", cpu=1.0))
    prediction = msgspec.structs.replace(
        PREDICTION, node="db-1", as_of=format_time(SystemClock().now() - 5)
    )
    uid = PREDICTION.pods.uid[0]
    pod = ViewPod(uid=uid, cgroup_uid=uid, namespace="shop", name="[red]web\x1b[2J")
    view = NodeViewRecord(node="db-1", generation=1, pods=(pod,))
    await cluster.send(PREDICTIONS, ("db-1", encode_json(prediction)))
    await cluster.send(NODE_VIEWS, ("db-1", encode_json(view)))


def test_terminal_shows_nodes_a_node_and_an_absent_broker_and_is_restored(
    cluster: Cluster,
) -> None:
    asyncio.run(publish(cluster))
    with on_terminal(top(cluster)) as terminal:
        assert terminal.shows("2 nodes", "db-1", "!!98%", "n2"), terminal.text()
        assert COLOURS.search(terminal.written)
        before = terminal.press("\r")
        assert terminal.shows("node db-1: ", r"shop/[red]web\x1b[2J", "margin", since=before)
        assert PREDICTION.pods.uid[1] in terminal.text(before)
        before = terminal.press("\x1b")
        assert terminal.shows("sorted by cpu", since=before)
        terminal.resize(30, 80)
        before = terminal.press("n")
        assert terminal.shows("sorted by name", since=before)
        pid = cluster.broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            before = len(terminal.written)
            assert terminal.shows("not up to date", "away", since=before), terminal.text(before)
        finally:
            os.kill(pid, signal.SIGCONT)
        before = terminal.press("c")
        asyncio.run(cluster.states(fresh("new-1", cpu=0.1)))
        assert terminal.shows("new-1", since=before)
        terminal.press("q")
        assert terminal.ended() == 0
    assert "Traceback" not in terminal.text()


def test_signals_and_a_closed_window_end_the_view_and_no_color_has_none(cluster: Cluster) -> None:
    asyncio.run(publish(cluster))
    with ExitStack() as stack:
        plain = stack.enter_context(on_terminal(top(cluster), NO_COLOR="1"))
        coloured = stack.enter_context(on_terminal(top(cluster)))
        closed = stack.enter_context(on_terminal(top(cluster)))
        once = stack.enter_context(on_terminal(top(cluster, "--once")))
        for terminal in (plain, coloured, closed):
            assert terminal.shows("!!98%"), terminal.text()
        before = plain.press("\x1a")
        assert eventually(lambda: state(plain.process.pid) == "T")
        assert b"\x1b[?1049l" in plain.written[before:]
        plain.process.send_signal(signal.SIGCONT)
        assert plain.shows("!!98%", since=before)
        plain.process.send_signal(signal.SIGINT)
        coloured.process.send_signal(signal.SIGTERM)
        closed.close_terminal()
        assert (plain.ended(), coloured.ended()) == (0, 0)
        assert [bool(COLOURS.search(each.written)) for each in (plain, coloured)] == [False, True]
        closed.process.wait(60)
        assert once.process.wait(60) == 0
        assert once.shows("db-1")
        assert b"\x1b[?1049h" not in once.written
