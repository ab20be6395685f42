"""A node of this machine with a real exporter and node actuator, which is given Kubernetes objects
as users write them: a Node, Pods and the ConfigMap `slo-controller-config`.

The objects become a view by the functions of the roles on the way, from the reader of files to the
view agent. It is served as by an extender: no broker is needed.
"""

import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.join.view_documents import node_view, pod_view, with_generation
from pipeline.settings import Settings, WorkerSettings
from pipeline.sources.object_files import PolicyFile, read_objects
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from tests.cgroup_tree import CgroupTree
from tests.processes import environment, springtide

NODE = "wire-test-node"
QOS_DIRECTORIES = {
    "Guaranteed": "kubepods",
    "Burstable": "kubepods/burstable",
    "BestEffort": "kubepods/besteffort",
}


class Views:
    """Serves the newest view of the node, as an extender does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._body, self._generation = b"", 0
        views = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers.get("If-None-Match", "").strip('"')
                status, generation, body = views.newer(known)
                self.send_response(status)
                self.send_header("ETag", f'"{generation}"')
                self.send_header("Content-Length", str(len(body)))
                with suppress(ConnectionError):  # the client may have ended meanwhile
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def put(self, body: bytes) -> None:
        with self._changed:
            self._generation += 1
            self._body = with_generation(body, self._generation)
            self._changed.notify_all()

    def newer(self, known: str) -> tuple[int, int, bytes]:
        """Status, generation and body for a client that has the generation `known`."""
        deadline = time.monotonic() + 20
        with self._changed:
            while not self._generation or str(self._generation) == known:
                if not self._changed.wait(deadline - time.monotonic()):
                    return (304 if self._generation else 503), self._generation, b""
            return 200, self._generation, self._body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class WireNode:
    """An exporter and a node actuator in mode act; `settings` has more of the actuator's.

    Each pod has the container `main` with a cgroup of its own. Nothing is published: a closed port
    stands for the broker.
    """

    def __init__(self, tree: CgroupTree, folder: Path, settings: Mapping[str, Any]) -> None:
        self.tree, self.folder = tree, folder
        self.resources: NodeResourcesRecord | None = None
        """What Springtide offers of the node, for the next view."""
        self._pods: dict[str, dict[str, Any]] = {}
        self._paths: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.views = Views()
        self._policy = PolicyFile(Settings(worker=WorkerSettings(
            nodes_file=folder / "nodes.json", policy_file=folder / "policy.json"
        )))  # fmt: skip
        self.config = folder / "springtide.yaml"
        page = {"metrics_host": "127.0.0.1", "metrics_port": 0}
        document: dict[str, Any] = {
            "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}"},
            "exporter": {
                "node_name": NODE, "cgroup_parent": tree.name, "window_seconds": 1,
                "socket_path": str(folder / "exporter.sock"), **page,
            },
            "node_actuator": {
                "mode": "act", "state_file": str(folder / "state.json"),
                "extender_url": self.views.url, **page, **settings,
            },
        }  # fmt: skip
        self.config.write_text(yaml.safe_dump(document))
        for path in QOS_DIRECTORIES.values():
            tree.make(path)
        self._write("policy.json", _config_map({}))
        self._write("pods.json", _list([]))
        self.node()

    def node(
        self, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None,
        **quantities: str,
    ) -> None:  # fmt: skip
        """Write the Node with these annotations and labels."""
        amounts = {"cpu": "2", "memory": "8Gi", "pods": "110"} | quantities
        node = {
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": NODE, "annotations": dict(annotations or {}),
                         "labels": dict(labels or {})},
            "status": {"capacity": amounts, "allocatable": amounts},
        }  # fmt: skip
        self._write("nodes.json", _list([node]))
        self.publish()

    def policy(self, **keys: Mapping[str, Any]) -> None:
        """Write the ConfigMap; `resource_qos` is the key `resource-qos-config`."""
        data = {f"{key.replace('_', '-')}-config": json.dumps(v) for key, v in keys.items()}
        self.config_map(data)

    def config_map(self, data: Mapping[str, str]) -> None:
        """Write the ConfigMap with these keys."""
        self._write("policy.json", _config_map(data))
        self.publish()

    def pod(
        self, name: str, kube_qos: str, *, requests: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None, priority: int | None = None,
    ) -> str:  # fmt: skip
        """Add or replace a running pod; returns the path of its cgroup."""
        id = (name * 64)[:64].encode().hex()[:64]
        path = f"{QOS_DIRECTORIES[kube_qos]}/pod{name}"
        self._paths[name] = f"{path}/{id}"
        self.tree.make(self._paths[name])
        spec: dict[str, Any] = {
            "nodeName": NODE,
            "containers": [{
                "name": "main", "image": "x",
                "resources": {"requests": dict(requests or {}), "limits": dict(limits or {})},
            }],
        }  # fmt: skip
        if priority is not None:
            spec["priority"] = priority
        self._pods[name] = {
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": "default", "uid": name,
                "labels": dict(labels or {}), "annotations": dict(annotations or {}),
            },
            "spec": spec,
            "status": {
                "phase": "Running", "qosClass": kube_qos,
                "containerStatuses": [{
                    "name": "main", "containerID": f"containerd://{id}", "ready": True,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }],
            },
        }  # fmt: skip
        self._write_pods()
        return path

    def remove_pod(self, name: str) -> None:
        """Remove a pod and its cgroup."""
        del self._pods[name]
        self.tree.remove(self._paths.pop(name).rpartition("/")[0])
        self._write_pods()

    def container(self, name: str) -> str:
        """The path of the cgroup of a pod's container."""
        return self._paths[name]

    def _write_pods(self) -> None:
        self._write("pods.json", _list([*self._pods.values()]))
        self.publish()

    def publish(self) -> None:
        """Serve the view of the objects as they are now."""
        self._policy.read()
        nodes = self._policy.apply(read_objects(self.folder / "nodes.json", "Node"), {})
        (node,) = (decode_json(NodeRecord, e.value or b"") for e in nodes.entries.values())
        pods = read_objects(self.folder / "pods.json", "Pod").entries.values()
        records = (decode_json(PodRecord, entry.value or b"") for entry in pods)
        self.views.put(node_view(node, map(pod_view, records), self.resources))

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.folder / name
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(document))
        temporary.replace(path)

    def start(self, *roles: str) -> None:
        """Start roles, by default all of them."""
        for role in roles or ("exporter", "node-actuator"):
            with self.log_file(role).open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        springtide("--config", str(self.config), role), stdout=log, stderr=log,
                        cwd=self.folder, env=environment(), preexec_fn=die_with_parent,
                    )
                )  # fmt: skip

    def command(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        return subprocess.run(
            springtide("--config", str(self.config), *words), env=environment(), check=True,
            cwd=self.folder, capture_output=True, text=True, timeout=120,
        ).stdout  # fmt: skip

    def log_file(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def log(self) -> str:
        return "".join(
            f"--- {role}\n{self.log_file(role).read_text()[-3000:]}"
            for role in ("node-actuator", "exporter")
            if self.log_file(role).exists()
        )

    def read(self, controller: str, relative: str, file: str) -> str:
        """The text of a file of a cgroup."""
        return (self.tree.directory(controller, relative) / file).read_text().strip()

    def metrics(self, role: str = "node-actuator") -> dict[str, float]:
        """The metrics page of the role that was started last."""
        lines = self.log_file(role).read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        port = [event for event in events if event["event"] == "metrics page"][-1]["port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self.views.close()


def _list(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"kind": "List", "apiVersion": "v1", "items": items}


def _config_map(data: Mapping[str, str]) -> dict[str, Any]:
    return {
        "kind": "ConfigMap", "apiVersion": "v1", "data": data,
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
    }  # fmt: skip
