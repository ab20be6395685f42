"""Simulated machines: pages of node-exporter and cAdvisor for a Prometheus to scrape.

Counters grow with the clock at known rates. Each value has the time at which it was true, so that a
page that comes late has no error.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

MIB: Final = 2**20
BUSY_CORES: Final = 1.5
STOLEN_CORES: Final = 0.25
CPUS: Final = 4
TOTAL_BYTES: Final = 8192 * MIB
AVAILABLE_BYTES: Final = 6144 * MIB
FREE_BYTES: Final = 4096 * MIB


class Container(NamedTuple):
    """A container of cAdvisor; `path` is the cgroup of its pod, "" if unknown."""

    namespace: str
    pod: str
    path: str
    name: str = "main"
    cores: float = 0.25
    rss_bytes: int = 100 * MIB
    working_set_bytes: int = 150 * MIB


def node_page(now: float) -> str:
    """Return the node-exporter page of a node that uses 1.5 of 4 cores and 2 of 8 GiB."""
    lines = []
    for cpu in range(CPUS):
        modes = {
            "user": BUSY_CORES / CPUS * 0.75, "system": BUSY_CORES / CPUS * 0.25,
            "steal": STOLEN_CORES / CPUS, "iowait": 0.05,
            "idle": 1 - (BUSY_CORES + STOLEN_CORES) / CPUS - 0.05,
        }  # fmt: skip
        lines += [
            f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} {rate * now:.6f}'
            for mode, rate in modes.items()
        ]
    lines += [
        f"node_memory_MemTotal_bytes {TOTAL_BYTES}",
        f"node_memory_MemAvailable_bytes {AVAILABLE_BYTES}",
        f"node_memory_MemFree_bytes {FREE_BYTES}",
    ]
    return "\n".join(lines) + "\n"


def cadvisor_page(containers: Sequence[Container], now: float) -> str:
    """Return the cAdvisor page: containers, cgroups of pods, pause containers, and the root."""
    lines = []

    def add(labels: str, cores: float, rss: int, working_set: int) -> None:
        lines.append(f"container_cpu_usage_seconds_total{{{labels}}} {cores * now:.6f}")
        lines.append(f"container_memory_rss{{{labels}}} {rss}")
        lines.append(f"container_memory_working_set_bytes{{{labels}}} {working_set}")

    add('container="",pod="",namespace="",id="/"', BUSY_CORES, 1, 1)
    for container in containers:
        pod = f'namespace="{container.namespace}",pod="{container.pod}"'
        path = container.path
        id = f"{path}/cri-containerd-{container.name}.scope" if path else ""
        used = container.cores, container.rss_bytes, container.working_set_bytes
        add(f'container="{container.name}",{pod},id="{id}"', *used)
        if path and container.name == "main":
            add(f'container="",{pod},id="{path}"', *used)
            add(f'container="POD",{pod},id="{path}/pause"', *used)
    return "\n".join(lines) + "\n"


class Machines:
    """A server of these pages; `pods` has the containers of each node."""

    def __init__(self, pods: dict[str, list[Container]]) -> None:
        self.pods = pods
        self.port = 0

    def jobs(self, *others: str) -> list[dict[str, Any]]:
        """Return the scrape jobs; `others` are node-exporters on machines outside the cluster."""
        return [
            self._job("node-exporter", [*self.pods, *others], "/node"),
            self._job("cadvisor", list(self.pods), "/cadvisor"),
        ]

    def _job(self, name: str, nodes: Sequence[str], path: str) -> dict[str, Any]:
        targets = [
            {
                "targets": [f"127.0.0.1:{self.port}"],
                "labels": {
                    "instance": f"{node}:9100" if name == "node-exporter" else f"{node}:10250",
                    "__metrics_path__": f"{path}/{node}",
                    **({"node": node} if name == "cadvisor" else {}),
                },
            }
            for node in nodes
        ]
        return {"job_name": name, "static_configs": targets}

    def page(self, path: str) -> str:
        _, kind, node = path.split("/")
        time_ms = round(time.time() * 1000)
        now = time_ms / 1000 % 1e6
        page = node_page(now) if kind == "node" else cadvisor_page(self.pods[node], now)
        return "".join(f"{line} {time_ms}\n" for line in page.splitlines())


@contextmanager
def machines(pods: dict[str, list[Container]]) -> Iterator[Machines]:
    """Serve the pages of machines with these pods."""
    running = Machines(pods)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = running.page(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
