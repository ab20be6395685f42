"""`springtide plan` over a real broker: hot node, pods, their usage, and where they would land."""

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.registry import (
    ACTIONS,
    EVICTION_PLANS,
    EVICTION_REQUESTS,
    NODE_STATE,
    NODES,
    PODS,
    RESOURCES,
    WINDOWS,
    WORKLOADS,
)
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import encode_window
from pipeline.topics.workloads import WorkloadRecord
from tests.integration.test_extender import Cluster, cluster, fresh
from tests.processes import springtide
from tests.processors.joined import END_MS, NODE_ROW, header, joined, known_pod, pod_row, view_of

__all__ = ["cluster"]

POLICY = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: a
  plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args: {highThresholds: {cpu: 50}, lowThresholds: {cpu: 30}}
"""


def _node(name: str, high: float) -> tuple[str, bytes]:
    policy = HotNodePolicy(high_percent={"cpu": high}, low_percent={"cpu": 40.0})
    room = Resources(cpu_millicores=4000, memory_bytes=16 << 30)
    return name, encode_json(NodeRecord(node=name, allocatable=room, hot_nodes=policy))


def _pod(uid: str, node: str, millicores: int) -> tuple[str, bytes]:
    record = PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=uid, pod_class="prod",
        owner=Owner(kind="ReplicaSet", name="web"), phase="Running",
        created_at="2023-11-14T22:13:20Z", scheduled_at=format_time(time.time() - 9000),
        requests=Resources(cpu_millicores=millicores, memory_bytes=1 << 28),
    )  # fmt: skip
    return pod_key(node, uid).decode(), encode_json(record)


def _window(node: str, **cores: float) -> tuple[str, bytes]:
    places = int((time.time() * 1000 - END_MS) // 30_000)
    rows = [pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=1e6) for uid, used in cores.items()]
    pods = [known_pod(uid, name=uid) for uid in cores]
    window = joined(NODE_ROW, *rows, view=view_of(*pods), of=header(node, places))
    return node, encode_window(window)


def _refused(uid: str, node: str) -> ActionRecord:
    return ActionRecord(
        node=node, at=format_time(time.time()), actuator="evictor", action="evict",
        outcome="refused", why="", before={f"shop/{uid}": uid}, plan="p/1",
        error="ExpectedReplicas: 1 replicas, of which 1 may move and 1 be missing",
    )  # fmt: skip


def _request(node: str) -> EvictionRequestRecord:
    now = time.time()
    return EvictionRequestRecord(
        node=node, id="r", at=format_time(now), valid_until=format_time(now + 300),
        requester="agent", why="memory is reclaimed", cpu_millicores=100, classes=("prod",),
    )  # fmt: skip


def test_pods_of_a_hot_node_would_move_to_a_calm_one(cluster: Cluster, tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = springtide("plan", *arguments, *cluster.flags)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    ran = run()
    assert (ran.returncode, "springtide topics apply" in ran.stderr) == (4, True)
    asyncio.run(cluster.create(NODE_STATE, NODES, RESOURCES, PODS, WINDOWS))
    ran = run()
    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr.startswith("error: no usage of any node is known")

    asyncio.run(cluster.states(fresh("calm", cpu=0.4), fresh("hot", cpu=3.0)))
    asyncio.run(cluster.send(NODES, _node("calm", 80.0), _node("hot", 80.0)))
    asyncio.run(cluster.send(PODS, _pod("web-0", "hot", 1000), _pod("web-1", "hot", 200)))
    asyncio.run(cluster.send(WINDOWS, _window("hot", **{"web-0": 1.5, "web-1": 0.2})))
    ran = run()
    former = (ACTIONS, EVICTION_PLANS, EVICTION_REQUESTS, WORKLOADS)
    assert (ran.returncode, ran.stderr.splitlines()) == (
        4,
        [
            f"warning: there is no topic {cluster.name(topic)}: what it would say counts as nothing"
            for topic in former
        ],
    )
    assert "nothing would move: no node is hot" in ran.stdout
    asyncio.run(cluster.create(*former))

    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    ran = run("--policy", str(policy))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "1 pod would move" in ran.stdout
    assert "    shop/web-0 (prod, 1500m and 1Mi) to calm, score " in ran.stdout
    assert "not to" not in ran.stdout
    ran = run("--policy", str(policy), "-o", "json", "--cpu-threshold-percent", "10")
    assert ran.returncode == 4
    plan: dict[str, Any] = json.loads(ran.stdout)
    stays = {stay["name"]: stay["rejections"] for stay in plan["items"][0]["stays"]}
    assert stays == {"web-0": 1, "web-1": 1}

    # What the planner knows: the evictor refused the pod for a reason that lasts.
    refused = _refused("web-0", "hot")
    asyncio.run(cluster.send(ACTIONS, ("hot", encode_json(refused)), ("hot", b"nonsense")))
    ran = run("--policy", str(policy))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "shop/web-1 (prod, 200m and 1Mi) to calm" in ran.stdout
    assert f"shop/web-0 stays: the evictor refused to evict it: {refused.error}" in ran.stdout

    asyncio.run(cluster.send(EVICTION_REQUESTS, ("hot", encode_json(_request("hot")))))
    ran = run()
    assert ran.stderr.startswith(
        "warning: node hot asks for relief, which is planned with --policy"
    )
    requests = POLICY.replace("{name: LowNodeLoad}", "{name: NodeRequests}")
    policy.write_text(f"{requests}  - {{name: NodeRequests, args: {{}}}}\n")
    ran = run("--policy", str(policy))
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "NodeRequests: 1 pod would move" in ran.stdout
    assert "hot: the node asks for relief: agent: memory is reclaimed" in ran.stdout
    assert "shop/web-1 (prod, 200m and 1Mi) to calm" in ran.stdout

    only = WorkloadRecord(namespace="shop", kind="ReplicaSet", name="web", replicas=1)
    asyncio.run(cluster.send(WORKLOADS, ("shop/ReplicaSet/web", encode_json(only))))
    ran = run("--policy", str(policy))
    assert (ran.returncode, ran.stderr) == (4, "")
    assert "shop/web-1 stays: 1 replicas, of which 1 may move" in ran.stdout

    policy.write_text("kind: Nothing")
    ran = run("--policy", str(policy))
    assert (ran.returncode, "has no DeschedulerConfiguration" in ran.stderr) == (1, True)
