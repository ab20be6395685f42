"""The cluster watcher beside a large cluster: peak memory, and when the topics are in step.

    python -m benchmarks.watcher [--nodes 10000] [--pods 100]

A broker and `springtide watcher` run as they would; the API server is a fake, which has so many
nodes and pods, answers lists in pages as the real one does (pods of 6 KiB, a third of that what
field managers say), and tells of no change. Twice: with empty topics, and again with what the first
run has left there, as after a restart. Goals: 1 GiB, in step after 120 s.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web

from benchmarks.roles import springtide
from pipeline.local.kafka import local_kafka
from pipeline.local.probe import free_port
from pipeline.settings import Settings, load_settings
from pipeline.topics.admin import apply_topics

PREFIX: Final = "watched"
GOAL_MIB: Final = 1024
GOAL_SECONDS: Final = 120
PATIENCE_SECONDS: Final = 1200
_VERSION: Final = "1000"
_NODES: Final = "/api/v1/nodes"
_PODS: Final = "/api/v1/pods"
_KINDS: Final = ("Node", "Pod", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job",
                 "PodDisruptionBudget")  # fmt: skip


def pod_bytes(number: int, node: str) -> bytes:
    """The pod with this number, as an API server writes it."""
    uid = str(uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128, version=4))
    head, tail = _POD
    return b"%s%s%s" % (head % (number, uid.encode()), node.encode(), tail)


def node_bytes(name: str) -> bytes:
    return json.dumps({
        "metadata": {"name": name, "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
                     "labels": {"kubernetes.io/hostname": name, "pool": "general"},
                     "managedFields": _managed(20)},
        "status": {"capacity": {"cpu": "64", "memory": "256Gi"},
                   "allocatable": {"cpu": "62", "memory": "248Gi"},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }).encode()  # fmt: skip


def _managed(fields: int) -> list[Any]:
    keys = {f"f:field-{i}": {"f:name": {}, "f:value": {}, ".": {}} for i in range(fields)}
    by = {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1"}
    when = {"time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": keys}
    return [by | when]


def _pod_template() -> tuple[bytes, bytes]:
    """A pod before and after the name of its node; the first part wants its number and uid."""
    container = {
        "name": "main", "image": "registry.example/shop/cart:1.2.3", "imagePullPolicy": "Always",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "env": [{"name": f"SETTING_{i}", "value": f"value of {i}"} for i in range(20)],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
    }  # fmt: skip
    pod = {
        "metadata": {
            "name": "cart-NUMBER", "namespace": "shop", "uid": "UID", "resourceVersion": "999",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "cart", "tier": "back", "pod-template-hash": "5d7c9f"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-5d7c",
                                 "uid": str(uuid.UUID(int=5)), "controller": True}],
            "managedFields": _managed(30),
        },
        "spec": {
            "nodeName": "NODE", "priority": 9000, "containers": [container],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                             "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:05Z",
            "conditions": [{"type": kind, "status": "True", "lastProbeTime": None,
                            "lastTransitionTime": "2026-01-01T00:00:09Z"}
                           for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
        },
    }  # fmt: skip
    text = json.dumps(pod, separators=(",", ":")).replace("%", "%%")
    head, tail = text.replace("NUMBER", "%d").replace('"UID"', '"%s"').split("NODE")
    return head.encode(), tail.encode()


_POD: Final = _pod_template()


class FakeApiServer:
    """A fake: lists of nodes and pods, empty ones of all else, watches that say nothing, a lease
    that anybody may have."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._names = [f"node-{n:05}" for n in range(nodes)]
        self._pods = pods
        self._lease: Any = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "/leases" in request.path:
            return await self._leases(request)
        if request.query.get("watch"):
            return await self._silence(request)
        count = self._count(request.path)
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        end = min(start + limit, count)
        if request.path == _NODES:
            listed: Iterable[bytes] = map(node_bytes, self._names[start:end])
        else:
            listed = (pod_bytes(i, self._names[i // self._pods]) for i in range(start, end))
        more = {"continue": str(end)} if end < count else {}
        head = json.dumps({"resourceVersion": _VERSION, **more}).encode()
        body = b'{"kind":"List","apiVersion":"v1","metadata":%s,"items":[%s]}\n'
        return web.Response(body=body % (head, b",".join(listed)), content_type="application/json")

    def _count(self, path: str) -> int:
        nodes = len(self._names)
        return {_NODES: nodes, _PODS: nodes * self._pods}.get(path, 0)

    async def _silence(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": _VERSION}}}
        with suppress(ConnectionResetError):
            while True:
                await answer.write(json.dumps(mark).encode() + b"\n")
                await asyncio.sleep(10)
        return answer

    async def _leases(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self._lease = await request.json()
        return web.json_response(self._lease or {}, status=200 if self._lease else 404)


def serve(port: int, nodes: int, pods: int) -> None:
    """Be the fake, for ever."""
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", "/{path:.*}", FakeApiServer(nodes, pods).handle)
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=False, access_log=None)


class Run(NamedTuple):
    """Seconds to be in step, the watcher's seconds of CPU, and its peak memory."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def in_step(settings: Settings, kubeconfig: Path, pods: int, log: Path) -> Run:
    """A watcher from its start until the topics are in step."""
    port = free_port()
    kafka = settings.kafka
    began = time.monotonic()
    with springtide(
        "watcher", "--kubeconfig", str(kubeconfig), "--metrics-port", str(port),
        "--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", PREFIX, log=log,
    ) as child:  # fmt: skip
        while time.monotonic() < began + PATIENCE_SECONDS:
            time.sleep(0.5)
            if child.poll() is not None:
                raise SystemExit(f"the watcher has ended:\n{log.read_text()[-2000:]}")
            page = _page(port)
            if all(page.get(f'springtide_watcher_in_step{{kind="{k}"}}') == 1 for k in _KINDS):
                break
        else:
            raise SystemExit(f"not in step after {PATIENCE_SECONDS} s, see {log}")
        seconds = time.monotonic() - began
        if page['springtide_watcher_objects{kind="Pod"}'] != pods:
            raise SystemExit(f"not {pods} pods: {page}")
        peak = int(_status(child.pid)["VmHWM"].split()[0]) / 1024
        return Run(seconds, page["process_cpu_seconds_total"], peak)


def _page(port: int) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=100, help="of each node")
    given = parser.parse_args()
    whole = given.nodes * given.pods
    port = free_port()
    fake = multiprocessing.get_context("spawn").Process(
        target=serve, args=(port, given.nodes, given.pods), daemon=True
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fake.start()
        stack.callback(fake.terminate)
        kafka = stack.enter_context(local_kafka(folder / "kafka"))
        settings = load_settings(
            None,
            {},
            {"kafka.bootstrap_servers": kafka.bootstrap_servers, "kafka.topic_prefix": PREFIX},
        )
        asyncio.run(apply_topics(settings.kafka))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "users": [{"name": "fake", "user": {}}],
        }))  # fmt: skip
        print(f"{given.nodes:,} nodes, {whole:,} pods of {len(pod_bytes(0, 'node-00000')):,} bytes")
        print(f"{'topics':12}{'in step':>10}{'cpu':>10}{'peak':>12}")
        runs = {}
        for name in ("empty", "full"):
            print(f"{name}: running", file=sys.stderr, flush=True)
            runs[name] = in_step(settings, kubeconfig, whole, folder / f"{name}.log")
            found = runs[name]
            print(f"{name:12}{found.seconds:8.1f} s{found.cpu_seconds:8.1f} s"
                  f"{found.peak_mib:8.0f} MiB", flush=True)  # fmt: skip
        print(f"goals: {GOAL_SECONDS} s, {GOAL_MIB} MiB")


if __name__ == "__main__":
    main()
