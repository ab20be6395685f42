"""Measure how long `springtide report` takes against a real Prometheus with a week of a large
cluster.

    python -m benchmarks.report [--nodes 1000] [--pods 50] [--scrape-seconds 300]

A Prometheus is started and filled by remote write: a container a pod, with cpu and memory at each
scrape; the series of kube-state-metrics every six hours, since a report reads them only at the end.
Usage has a daily rhythm. When the server has written its blocks, the command runs twice. Filling
takes much longer than the report. Reported are wall time, the processor time of the command and of
the server in it, and the amounts that must be right.

Real clusters scrape every 15 to 60 s, and the server's time grows with the number of samples: see
docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.processors.arrays import FloatArray
from pipeline.times import format_time
from tests.http_program import REQUEST_SECONDS
from tests.provider.local_prometheus import local_prometheus

HOURS: Final = 168
END_SECONDS: Final = 1_700_006_400
CORES: Final = 32.0
GIBIBYTE: Final = 2.0**30
_PAGE_BYTES: Final = 4096
_AT_ONCE: Final = 5000
_SAMPLE_BYTES: Final = 18
_STATE_HOURS: Final = 6
_MEMORY_SECONDS: Final = 120.0
_SETTLE_SECONDS: Final = 900.0
_IDLE_SECONDS: Final = 5.0
_IDLE_SHARE: Final = 0.05
_RUNS: Final = 2


class Cluster:
    """Labels of all series, and their values over time."""

    def __init__(self, nodes: int, pods: int) -> None:
        random = np.random.default_rng(1)
        count = nodes * pods
        self.nodes = [f"node-{number:05d}" for number in range(nodes)]
        self.requests = np.tile([0.25, 0.5, 1.0], count)[:count]
        self.mean = self.requests * random.uniform(0.1, 0.6, count)
        self.phase = random.uniform(0.0, 2 * np.pi, count)
        self.memory = random.uniform(0.2, 1.0, count) * GIBIBYTE
        self.counters = np.zeros(count)
        self.names = [
            {"namespace": f"team-{number % 50}", "pod": f"web-{number // 10}-{number}"}
            for number in range(count)
        ]
        self.node_of = [self.nodes[number // pods] for number in range(count)]
        usage = [
            own | {"container": "app", "instance": f"{node}:10250", "id": f"/pods/{i}/app"}
            for i, (own, node) in enumerate(zip(self.names, self.node_of, strict=True))
        ]
        self.cpu_labels = _labels("container_cpu_usage_seconds_total", usage)
        self.memory_labels = _labels("container_memory_working_set_bytes", usage)
        stated = [
            (metric, resource)
            for metric in ("requests", "limits")
            for resource in ("cpu", "memory")
        ]
        placed = [own | {"node": node} for own, node in zip(self.names, self.node_of, strict=True)]
        owners = [
            {"created_by_kind": "ReplicaSet", "created_by_name": f"web-{i // 10}-5f7c9"}
            for i in range(count)
        ]
        self.state_labels = [
            *_labels("kube_pod_info", [a | b for a, b in zip(placed, owners, strict=True)]),
            *_labels("kube_pod_status_phase", [own | {"phase": "Running"} for own in self.names]),
            *(
                line
                for metric, name in stated
                for line in _labels(
                    f"kube_pod_container_resource_{metric}",
                    [own | {"container": "app", "resource": name} for own in placed],
                )
            ),
            *(
                line
                for name in ("cpu", "memory")
                for line in _labels(
                    "kube_node_status_allocatable",
                    [{"node": node, "resource": name} for node in self.nodes],
                )
            ),
        ]
        memory_request = np.full(count, GIBIBYTE)
        self.state_values = np.concatenate(
            [
                np.ones(2 * count), self.requests, memory_request, 2 * self.requests,
                2 * memory_request, np.full(nodes, CORES), np.full(nodes, 128 * GIBIBYTE),
            ]
        )  # fmt: skip

    def usage(self, seconds: int) -> FloatArray:
        """The cores that each pod uses at a time."""
        usage: FloatArray = self.mean * (
            1.0 + 0.5 * np.sin(2 * np.pi * seconds / 86_400 + self.phase)
        )
        return usage


def _labels(metric: str, each: Sequence[dict[str, str]]) -> list[bytes]:
    """The encoded labels of series of one metric, for remote write."""
    encoded = []
    for labels in each:
        pairs = sorted({"__name__": metric, **labels}.items())
        parts = [b"\x0a" + _sized(k.encode()) + b"\x12" + _sized(v.encode()) for k, v in pairs]
        encoded.append(b"".join(b"\x0a" + _sized(part) for part in parts))
    return encoded


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _samples(values: FloatArray, seconds: Sequence[int]) -> bytes:
    """Encoded samples of n series, (n, t): 18 bytes each."""
    encoded = np.zeros((*values.shape, _SAMPLE_BYTES), np.uint8)
    encoded[..., 0:3] = (0x12, _SAMPLE_BYTES - 2, 0x09)
    encoded[..., 3:11] = values.astype("<f8").view(np.uint8).reshape(*values.shape, 8)
    encoded[..., 11] = 0x10
    for column, at in enumerate(seconds):
        encoded[:, column, 12:18] = np.frombuffer(_varint(1000 * at), np.uint8)
    return encoded.tobytes()


def _write(url: str, labels: Sequence[bytes], values: FloatArray, seconds: Sequence[int]) -> None:
    size = _SAMPLE_BYTES * len(seconds)
    for first in range(0, len(labels), _AT_ONCE):
        own = labels[first : first + _AT_ONCE]
        samples = _samples(values[first : first + _AT_ONCE], seconds)
        body = b"".join(
            b"\x0a" + _varint(len(each) + size) + each + samples[i * size : (i + 1) * size]
            for i, each in enumerate(own)
        )
        request = urllib.request.Request(
            f"{url}/api/v1/write",
            pa.compress(body, codec="snappy", asbytes=True),
            {
                "Content-Encoding": "snappy",
                "Content-Type": "application/x-protobuf",
                "X-Prometheus-Remote-Write-Version": "0.1.0",
            },
        )
        urllib.request.urlopen(request, timeout=60 * REQUEST_SECONDS).close()


def _whole_pages(memory_bytes: FloatArray) -> FloatArray:
    """What kernels report."""
    pages: FloatArray = np.round(memory_bytes / _PAGE_BYTES) * _PAGE_BYTES
    return pages


def fill(url: str, cluster: Cluster, scrape_seconds: int) -> int:
    """Write the week, hour after hour, from an hour before it on: servers keep more than they are
    asked for. Return the number of samples."""
    written = 0
    began = time.monotonic()
    for hour in range(-1, HOURS):
        begin = END_SECONDS - (HOURS - hour) * 3600
        seconds = range(begin + scrape_seconds, begin + 3601, scrape_seconds)
        counters, memory = [], []
        for at in seconds:
            cluster.counters += cluster.usage(at) * scrape_seconds
            counters.append(cluster.counters.copy())
            memory.append(_whole_pages(cluster.memory * (1.0 + 0.1 * np.sin(at / 9000))))
        _write(url, cluster.cpu_labels, np.stack(counters, axis=1), seconds)
        _write(url, cluster.memory_labels, np.stack(memory, axis=1), seconds)
        written += len(seconds) * 2 * len(cluster.names)
        if hour % _STATE_HOURS == _STATE_HOURS - 1:
            _write(url, cluster.state_labels, cluster.state_values[:, None], [begin + 3600])
            written += len(cluster.state_labels)
        if hour % 24 == 23:
            print(f"filled {hour + 1} hours in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return written


def measure(nodes: int, pods: int, scrape_seconds: int) -> Iterator[str]:
    """Fill a Prometheus, and yield the lines of the result."""
    cluster = Cluster(nodes, pods)
    flags = ["--web.enable-remote-write-receiver"]
    with local_prometheus([], flags=flags) as prometheus:
        samples = fill(prometheus.url, cluster, scrape_seconds)
        yield (
            f"{nodes:,} nodes, {nodes * pods:,} pods, {samples:,} samples, a scrape each "
            f"{scrape_seconds} s"
        )
        _settle(prometheus.url)
        for _ in range(_RUNS):
            yield from _run(prometheus.url, cluster)


def _run(url: str, cluster: Cluster) -> Iterator[str]:
    """Run the command, and yield the lines of its result."""
    before = _server_seconds(url)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [
            sys.executable, "-m", "pipeline.cli.main", "report", "--prometheus", url, "--until",
            format_time(END_SECONDS), "-o", "json", "--html", str(page),
        ]  # fmt: skip
        began, own = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ)
        wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        page_bytes = page.stat().st_size
    client = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
    server, thousands = _server_seconds(url) - before, len(cluster.names) / 1000
    yield f"wall {wall:.1f} s"
    yield f"processor of the command {client:.1f} s, of the server {server:.1f} s"
    yield f"processor of the server for 1,000 pods {server / thousands:.2f} s"
    yield f"JSON {len(result.stdout) / 1e6:.1f} MB, page {page_bytes / 1e6:.1f} MB"
    yield f"memory of the command {used.ru_maxrss / 1e6:.2f} GB"
    cpu = json.loads(result.stdout)["items"][0]
    assert cpu["pods"] == len(cluster.names)
    assert abs(cpu["requests"] / (1000 * cluster.requests.sum()) - 1) < 1e-9
    share = cpu["usage_mean"] / (1000 * cluster.mean.sum())
    yield f"requests equal; mean usage by the true mean {share:.4f}"


def _settle(url: str) -> None:
    """Wait until the server has written its blocks and is idle."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        before = _server_seconds(url)
        time.sleep(_IDLE_SECONDS)
        if _server_seconds(url) - before < _IDLE_SHARE * _IDLE_SECONDS:
            return
    raise SystemExit(f"Prometheus is not idle after {_SETTLE_SECONDS:.0f} s")


def _server_seconds(url: str) -> float:
    """The processor time of the server so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=_MEMORY_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    name = "process_cpu_seconds_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=50, help="on each node")
    parser.add_argument("--scrape-seconds", type=int, default=300)
    given = parser.parse_args()
    for line in measure(given.nodes, given.pods, given.scrape_seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
