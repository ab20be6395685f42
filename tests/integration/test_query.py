"""The query interface over a real broker."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.clock import SystemClock
from pipeline.extender.service import serve
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed, Table
from pipeline.table.apply_records import apply_point
from pipeline.table.table_feed import HISTORY_TOPICS, NODE_TOPICS, VIEW_TOPICS
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.registry import (
    ACTIONS,
    ALERTS,
    EVICTION_PLANS,
    NODE_STATE,
    NODE_VIEWS,
    NODES,
    PODS,
    RESOURCES,
)
from pipeline.topics.resource_amounts import Resources, Usage
from tests.integration.test_extender import Cluster, cluster, fresh
from tests.processes import springtide, until
from tests.processors.console.test_node_actions import action
from tests.table.records import node_state

__all__ = ["cluster"]


def a_pod(uid: str, name: str, node: str = "", owner: str = "") -> tuple[str, bytes]:
    record = PodRecord(
        owner=Owner(kind="ReplicaSet", name=owner) if owner else None,
        labels={"pod-template-hash": owner.rpartition("-")[2]} if owner else {},
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=name,
        created_at="2023-11-14T22:13:20Z", pod_class="prod", phase="Running" if node else "Pending",
        requests=Resources(cpu_millicores=500, memory_bytes=1 << 30),
    )  # fmt: skip
    return pod_key(node, uid).decode(), encode_json(record)


def test_a_pod_is_explained_from_the_topics(cluster: Cluster, tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = springtide(*arguments, *cluster.flags, "--partitions", "3")
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    ran = run("why-not", "shop/web-0", "calm")
    assert (ran.returncode, "springtide topics apply" in ran.stderr) == (3, True)
    asyncio.run(cluster.create(NODE_STATE, NODES, RESOURCES, PODS))
    asyncio.run(cluster.states(fresh("calm"), fresh("hot", cpu=3.9)))
    moved, gone = a_pod("u1", "web-0"), a_pod("u2", "gone", "calm")
    asyncio.run(cluster.send(PODS, moved, gone, (moved[0], None), (gone[0], None)))
    asyncio.run(cluster.send(PODS, a_pod("u1", "web-0", "hot"), a_pod("u3", "web-1")))

    ran = run("why-not", "shop/web-1", "calm")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("calm would take shop/web-1\n  score ")
    ran = run("why-not", "shop/web-0", "hot", "-o", "json")
    assert ran.returncode == 4
    found: dict[str, Any] = json.loads(ran.stdout)
    assert (found["pod"]["node"], found["items"][0]["verdict"]) == ("hot", "refused")
    assert run("why-not", "shop/web-0", "hot", "--cpu-threshold-percent", "0").returncode == 0
    ran = run("why-not", "shop/gone", "calm")
    assert (ran.returncode, "there is no pod shop/gone" in ran.stderr) == (2, True)
    ran = run("why-not", "web-1", "calm")
    assert (ran.returncode, "did you mean shop/web-1" in ran.stderr) == (2, True)
    ran = run("why-not", "shop/web", "calm")  # pods of their own, without a workload
    assert (ran.returncode, "did you mean shop/web-0, shop/web-1?" in ran.stderr) == (2, True)

    asyncio.run(cluster.send(PODS, a_pod("u4", "api-5d4-x", owner="api-5d4")))
    asyncio.run(cluster.send(PODS, a_pod("u5", "api-5d4-y", "hot", owner="api-5d4")))
    for name in ("shop/api", "deploy/shop/ap", "rs/shop/api-5d4"):
        ran = run("why-not", name, "calm")
        assert (ran.returncode, ran.stderr) == (0, ""), name
        assert ran.stdout.startswith("calm would take shop/api-5d4-x\n"), name
    ran = run("why-not", "sts/shop/api", "calm")
    assert (ran.returncode, "no pod of statefulset shop/api" in ran.stderr) == (2, True)

    file = tmp_path / "job.yaml"
    file.write_text("kind: Job\nspec: {template: {spec: {containers: [{name: c}]}}}")
    command = springtide("score", "-f", str(file), "--no-headers", *cluster.flags)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["calm", "hot"]


async def test_a_view_reaches_a_waiting_client(cluster: Cluster) -> None:
    def view(generation: int, node: str = "a") -> tuple[str, bytes]:
        return node, encode_json(NodeViewRecord(node=node, generation=generation))

    await cluster.create(NODE_STATE, NODES)
    clock = SystemClock()
    feed, views = (
        Feed(Table(), client=cluster.client, prefix=cluster.prefix, clock=clock, topics=topics)
        for topics in (NODE_TOPICS, VIEW_TOPICS)
    )
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = ExtenderSettings(host="127.0.0.1", port=0)
    serving = asyncio.create_task(
        serve(feed, settings, clock, stop, port.set_result, linger_seconds=0.0, views=views)
    )
    base = f"http://127.0.0.1:{await asyncio.wait_for(port, 60)}"
    async with aiohttp.ClientSession(base) as session:
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        async with session.get("/readyz") as response:
            assert response.status == 200
        async with session.get("/v1/nodes/a/view") as response:
            assert response.status == 503
            assert "waiting for topic" in (await response.json())["Error"]
        await cluster.create(NODE_VIEWS)
        await cluster.send(NODE_VIEWS, view(1), view(2), view(7, "b"), ("b", None))
        await asyncio.wait_for(views.wait_caught_up(), 60)

        # The feed may have caught up with the topic while it was empty.
        async def has_second() -> bool:
            async with session.get("/v1/nodes/a/view") as response:
                return response.headers.get("ETag") == '"2"'

        await until(has_second)
        async with session.get("/v1/nodes/a/view") as response:
            assert await response.read() == view(2)[1]
        async with session.get("/v1/nodes/b/view") as response:
            assert response.status == 404
        known = {"If-None-Match": '"2"'}
        waiting = asyncio.create_task(session.get("/v1/nodes/a/view?wait=30", headers=known))
        await asyncio.sleep(0.1)
        await cluster.send(NODE_VIEWS, view(1), view(3))
        newer = await asyncio.wait_for(waiting, 60)
        assert (newer.status, newer.headers["ETag"]) == (200, '"3"')
    stop.set()
    await asyncio.wait_for(serving, 60)


@asynccontextmanager
async def extender(cluster: Cluster) -> AsyncIterator[str]:
    """Start the command; return its address when the history is loaded."""
    command = springtide(
        "extender", *cluster.flags, "--host", "127.0.0.1", "--port", "0", "--log-format", "json"
    )
    process = await asyncio.create_subprocess_exec(
        *command, stderr=subprocess.PIPE, preexec_fn=die_with_parent
    )
    assert process.stderr is not None
    try:
        port, left = 0, {"history caught up", "table caught up"}
        async with asyncio.timeout(120):
            while left:
                said = json.loads(await process.stderr.readline())
                port = said["port"] if said["event"] == "listening" else port
                left.discard(said["event"])
        yield f"http://127.0.0.1:{port}"
    finally:
        # Killed, so that it cannot save anything.
        process.kill()
        await process.communicate()


async def test_fifteen_minutes_are_served_before_and_after_a_restart(cluster: Cluster) -> None:
    """Points of 15 minutes, and average and percentile of the last seconds."""
    await cluster.create(NODE_STATE, NODES, PODS, RESOURCES, NODE_VIEWS)
    # Whole seconds, so that times are equal to the last digit.
    end = float(int(SystemClock().now()))
    states = [
        replace(
            node_state(node, cpu=i % 7 / 2, memory=float(i)),
            as_of=format_time(end - 30 * (29 - i)),
            offset=i,
            peaks={"percentile": Usage(cpu_cores=3.0 + i)},
        )
        for i in range(30)
        for node in ("a", "b")
    ]
    await cluster.states(*states)

    async def answers(base: str) -> list[Any]:
        found = []
        # The time is given, so that the answer does not depend on the clock.
        since = {"from": format_time(end - 450)}
        async with aiohttp.ClientSession(base) as session:
            for query in ({}, since, {**since, "resource": "cpu"}):
                async with session.get("/v1/nodes/a/series", params=query) as response:
                    assert response.status == 200
                    found.append({**await response.json(), "now": None})
            async with session.get("/v1/nodes/a/series", params={"last": "900"}) as response:
                assert (await response.json())["statistics"]["cpu_cores"]["points"] >= 15
            async with session.get("/v1/nodes/a/peaks", params={"resource": "cpu"}) as response:
                found.append(await response.json())
        return found

    async with extender(cluster) as base:
        before = await answers(base)
    whole, half, cpu, peaks = before
    cores = [i % 7 / 2 for i in range(30)]
    assert (whole["usage"]["cpu_cores"], whole["usage"]["memory_bytes"]) == (cores, list(range(30)))
    last = sorted(cores[14:])
    assert half["statistics"]["cpu_cores"]["avg"] == pytest.approx(sum(last) / 16)
    assert half["statistics"]["cpu_cores"]["p90"] == last[16 * 90 // 100 - 1]
    assert cpu["usage"] == {"cpu_cores": half["usage"]["cpu_cores"]}
    steps = [int(end - 30 * (29 - i)) // 300 for i in range(30)]
    first = [3.0 + steps.index(step) for step in dict.fromkeys(steps)]
    assert peaks["peaks"] == {"percentile": {"cpu_cores": first}}
    async with extender(cluster) as base:
        assert await answers(base) == before
        await cluster.states(
            replace(node_state("a", cpu=9.0), as_of=format_time(end + 30), offset=30)
        )
        async with aiohttp.ClientSession(base) as session, asyncio.timeout(60):
            found: dict[str, Any] = {"as_of": []}
            while len(found["as_of"]) < 31:
                async with session.get("/v1/nodes/a/series") as response:
                    found = await response.json()
        assert found["usage"]["cpu_cores"] == [*cores, 9.0]


async def test_what_a_node_actuator_did_is_served(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES, PODS, RESOURCES, NODE_VIEWS)
    # One feed reads these.
    await cluster.create(ACTIONS, ALERTS, EVICTION_PLANS)
    before = action("a", before={"besteffort cpu.max": "max"}, after={"besteffort cpu.max": "9"})
    await cluster.send(ACTIONS, ("a", action("a", actuator="cluster")), ("a", before))

    async def actions(session: aiohttp.ClientSession, least: int) -> list[Any]:
        async with asyncio.timeout(60):
            while True:
                async with session.get("/v1/nodes/a/actions") as response:
                    items = (await response.json()).get("items", [])
                if len(items) >= least:
                    return list(items)
                await asyncio.sleep(0.1)

    async with extender(cluster) as base, aiohttp.ClientSession(base) as session:
        (first,) = await actions(session, 1)
        assert first["changes"] == [{"name": "besteffort cpu.max", "before": "max", "after": "9"}]
        # A record that is invalid keeps nothing else out.
        await cluster.send(ACTIONS, ("b", action("a")), ("a", action("a", why="it is over")))
        assert [of["why"] for of in await actions(session, 2)] == ["it is over", first["why"]]


async def test_only_the_requested_part_of_the_past_is_read(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE)
    await cluster.states(node_state("old", offset=1))
    await asyncio.sleep(0.5)
    since = time.time()
    await asyncio.sleep(0.5)
    await cluster.states(node_state("young", offset=2))

    class Paused(SystemClock):
        """Its time of the day stands still: a second after `since`."""

        def now(self) -> float:
            return since + 1.0

    feed = Feed(
        Table(), client=cluster.client, prefix=cluster.prefix, clock=Paused(),
        topics=HISTORY_TOPICS, apply_record=apply_point, recent_seconds=1.0, name="history",
    )  # fmt: skip
    task = asyncio.create_task(feed.run())
    await asyncio.wait_for(feed.wait_caught_up(), 60)
    assert feed.table.history.get("old") is None
    assert feed.table.history.get("young") is not None
    await cancel_tasks(task)
