"""A fake API server with as many pods as one likes: what no machine of ours could have for real.

Owes the benchmark of the watcher: lists in pages, compressed as the real one compresses them,
watches with changes and bookmarks, and leases. Pods are 4.5 KB of JSON each with what a cluster
writes (managedFields, several containers, environment, conditions), made when they are asked for.
It authenticates and authorizes no client.
"""

import asyncio
import gzip
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

CHANGED_AT: Final = "example.com/changed-at"
"""Annotation of a pod that was changed: Unix seconds."""

PODS_OF_A_WORKLOAD: Final = 20

_TIME: Final = "2026-01-05T08:00:00Z"
_ASKED: Final = (("100m", "128Mi"), ("250m", "512Mi"), ("1", "2Gi"), ("2500m", "6Gi"))
_COMPRESSED_FROM: Final = 128 * 1024
_VERSION: Final = 1_000_000
_EMPTY: Final = {"metadata": {"resourceVersion": str(_VERSION)}, "items": []}


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def pod_uid(number: int) -> str:
    return f"{number:08x}-5eed-4000-8000-{number * 2654435761 % 2**48:012x}"


class FakeApiServer:
    """Nodes and pods, of which `changes` a second are changed, for watches."""

    def __init__(self, nodes: int, pods: int, changes: float) -> None:
        self._nodes = nodes
        self._pods = pods
        self._changes = changes
        self._leases: dict[str, Any] = {}
        self._changed: dict[int, tuple[int, str]] = {}
        self._templates = [_pod_template(*asked) for asked in _ASKED]

    def application(self) -> web.Application:
        """The server, for aiohttp to run."""
        made = web.Application()
        made.add_routes([
            web.get("/api/v1/pods", self._get_pods),
            web.get("/api/v1/nodes", self._get_nodes),
            web.get("/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/{name}", self._get_lease),
            web.put("/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/{name}", self._put_lease),
            web.post("/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", self._put_lease),
            web.get("/{any:.*}", self._get_nothing),
        ])  # fmt: skip
        return made

    def pod(self, number: int) -> bytes:
        """A pod as JSON, as it was changed last."""
        version, changed_at = self._changed.get(number, (_VERSION, ""))
        template = self._templates[number % len(self._templates)]
        return template % {
            b"number": b"%08d" % number,
            b"owner": b"%06d" % (number // PODS_OF_A_WORKLOAD),
            # No two workloads ask for the same: what is found once for equal pods is found anew.
            b"asked": b"%d" % (number // PODS_OF_A_WORKLOAD),
            b"uid": pod_uid(number).encode(),
            b"node": node_name(number % self._nodes).encode(),
            b"version": b"%d" % version,
            b"changed": changed_at.encode(),
        }

    def node(self, number: int) -> bytes:
        """A node as JSON."""
        return json.dumps(_node(node_name(number))).encode()

    async def _get_pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, self._changed_pods())
        return _page(request, self._pods, self.pod)

    async def _get_nodes(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, iter(()))
        return _page(request, self._nodes, self.node)

    async def _get_nothing(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, iter(()))
        return web.json_response(_EMPTY)

    def _changed_pods(self) -> Iterator[bytes]:
        for at in itertools.count(1) if self._pods and self._changes else ():
            number = at * 7919 % self._pods
            self._changed[number] = _VERSION + at, f"{time.time():.6f}"
            yield b'{"type":"MODIFIED","object":%s}\n' % self.pod(number)

    async def _watch(self, request: web.Request, changes: Iterator[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        bookmark = {"metadata": {"resourceVersion": request.query["resourceVersion"]}}
        seconds = 60.0
        while True:
            change = next(changes, None)
            if change is None:
                told = {"type": "BOOKMARK", "object": bookmark}
                change = json.dumps(told).encode() + b"\n"
            else:
                seconds = 1 / self._changes
            try:
                await response.write(change)
            except ConnectionResetError:
                return response
            await asyncio.sleep(seconds)

    async def _get_lease(self, request: web.Request) -> web.Response:
        lease = self._leases.get(request.match_info["name"])
        return web.json_response(lease or {"message": "no lease"}, status=200 if lease else 404)

    async def _put_lease(self, request: web.Request) -> web.Response:
        lease = await request.json()
        lease["metadata"]["resourceVersion"] = str(time.monotonic_ns())
        self._leases[lease["metadata"]["name"]] = lease
        return web.json_response(lease)


def _page(request: web.Request, count: int, one: Any) -> web.Response:
    """The objects from where the last page ended."""
    start = int(request.query.get("continue", "0"))
    end = min(start + int(request.query.get("limit", count)), count)
    metadata: dict[str, Any] = {"resourceVersion": str(_VERSION)}
    if end < count:
        metadata |= {"continue": str(end), "remainingItemCount": count - end}
    items = b",".join(map(one, range(start, end)))
    body = b'{"kind":"List","apiVersion":"v1","metadata":%s,"items":[%s]}\n' % (
        json.dumps(metadata).encode(),
        items,
    )
    headers = {"Content-Type": "application/json"}
    if len(body) > _COMPRESSED_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    return web.Response(body=body, headers=headers)


def run(port: int, nodes: int, pods: int, changes: float) -> None:
    """Serve on loopback until killed."""
    server = FakeApiServer(nodes, pods, changes)
    web.run_app(server.application(), host="127.0.0.1", port=port, print=lambda *_: None)


def _node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "263921132Ki", "pods": "110", "ephemeral-storage": "1Ti"}
    conditions = [
        {
            "type": kind, "status": str(kind == "Ready"), "reason": f"Kubelet{kind}",
            "message": "kubelet says so", "lastHeartbeatTime": _TIME, "lastTransitionTime": _TIME,
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]  # fmt: skip
    images = [
        {"names": [f"registry.example.com/app-{i}@sha256:{i:064x}"], "sizeBytes": 10**8 + i}
        for i in range(50)
    ]
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "pool": "general"}
    return {
        "metadata": {
            "name": name, "uid": f"uid-of-{name}", "resourceVersion": str(_VERSION),
            "creationTimestamp": _TIME, "labels": labels, "annotations": {"note": "x" * 60},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud:///zone-a/{name}"},
        "status": {
            "capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images,
            "nodeInfo": {"kernelVersion": "6.1.0", "kubeletVersion": "v1.34.0"},
        },
    }  # fmt: skip


def _pod_template(cpu: str, memory: str) -> bytes:
    """JSON of a pod in which % stands for what differs."""
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    containers = [
        {
            "name": name,
            "image": f"registry.example.com/team/{name}:1.2.3",
            "env": [
                {"name": f"SETTING_{i}", "value": f"a value of some length, {i}"} for i in range(6)
            ],
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
            "resources": resources,
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}},
            "volumeMounts": [
                {"mountPath": "/var/run/secrets/serviceaccount", "name": "token", "readOnly": True}
            ],
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }
        for name in ("main", "proxy")
    ]
    managed: list[dict[str, Any]] = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": _TIME,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                f"f:{part}": {f"f:field{i}": {} for i in range(6)}
                for part in ("metadata", "spec", "status")
            },
        }
        for manager in ("kube-controller-manager", "kubelet")
    ]
    status = [
        {"name": name, "ready": True, "restartCount": 0, "image": f"{name}:1.2.3",
         "containerID": "containerd://" + "ab" * 32, "state": {"running": {"startedAt": _TIME}}}
        for name in ("main", "proxy")
    ]  # fmt: skip
    tolerations = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": 300}
        for what in ("not-ready", "unreachable")
    ]  # fmt: skip
    pod = {
        "metadata": {
            "name": "app-%(owner)s-%(number)s", "generateName": "app-%(owner)s-",
            "namespace": "shop", "uid": "%(uid)s",
            "resourceVersion": "%(version)s", "creationTimestamp": _TIME,
            "labels": {"app": "app-%(owner)s", "pod-template-hash": "6d4cf56db6", "team": "shop"},
            "annotations": {CHANGED_AT: "%(changed)s", "prometheus.io/scrape": "true"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-%(owner)s",
                 "uid": "0" * 36, "controller": True, "blockOwnerDeletion": True}
            ],
            "managedFields": managed,
        },
        "spec": {
            "nodeName": "%(node)s", "containers": containers, "restartPolicy": "Always",
            "initContainers": [
                {"name": "setup", "image": "setup:1",
                 "resources": {"requests": {"memory": "%(asked)sKi"}}}
            ],
            "priority": 9000, "schedulerName": "default-scheduler", "serviceAccountName": "app",
            "tolerations": tolerations,
            "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": []}}],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable", "startTime": _TIME, "podIP": "10.1.2.3",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": _TIME}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": status,
        },
    }  # fmt: skip
    return json.dumps(pod, separators=(",", ":")).encode()
