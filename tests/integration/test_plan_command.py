"""`springtide plan` over a real broker: hot node, pods, their usage, and where they would land."""

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.registry import NODE_STATE, NODES, PODS, RESOURCES, WINDOWS
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import encode_window
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
    assert (ran.returncode, ran.stderr) == (4, "")
    assert "nothing would move: no node is hot" in ran.stdout

    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    ran = run("--policy", str(policy))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "1 pod would move" in ran.stdout
    assert "    shop/web-0 (prod, 1.5 cores and 1 MiB) to calm, score " in ran.stdout
    assert "not to" not in ran.stdout
    ran = run("--policy", str(policy), "-o", "json", "--cpu-threshold-percent", "10")
    assert ran.returncode == 4
    plan: dict[str, Any] = json.loads(ran.stdout)
    stays = {stay["name"]: stay["rejections"] for stay in plan["items"][0]["stays"]}
    assert stays == {"web-0": 1, "web-1": 1}

    policy.write_text("kind: Nothing")
    ran = run("--policy", str(policy))
    assert (ran.returncode, "has no DeschedulerConfiguration" in ran.stderr) == (1, True)
