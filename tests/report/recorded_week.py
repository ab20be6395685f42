"""A week of series as a Prometheus with kube-state-metrics and cAdvisor records them, made from a
trace of tests/data.

Each pod has two containers, with two thirds and one third of its usage. One container restarts in
the middle of the week: another series continues its counter from 0. Counters are sampled each five
minutes, as cAdvisor's are each 30 seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.trace import Trace
from pipeline.sources.trace_folders import read_dataset

TRACES: Final = Path(__file__).parents[1] / "data" / "traces"
HOURS: Final = 168
STEP_SECONDS: Final = 300
END_SECONDS: Final = 1_700_006_400
"""A whole hour."""
STEPS: Final = HOURS * 3600 // STEP_SECONDS
NODES: Final = ("g0-node-000", "g0-node-001", "g0-node-002")
ALLOCATABLE: Final = (36.0, 192.0 * 2**30)
CAPACITY: Final = (36.5, 200.0 * 2**30)
SYSTEM_CORES: Final = 0.25
SYSTEM_BYTES: Final = 2.0**30
SHARES: Final = {"app": 2 / 3, "sidecar": 1 / 3}
MEBIBYTE: Final = 2.0**20


class Series(NamedTuple):
    """A series: metric, labels, values (STEPS + 1,) from the beginning of the week on, NaN without
    a sample."""

    metric: str
    labels: dict[str, str]
    values: FloatArray


@dataclass
class RecordedPod:
    """A pod of the week: usage of each step in cores and bytes (STEPS, 2), NaN where it does not
    run."""

    name: str
    node: str
    controller: tuple[str, str]
    requests: tuple[float, float]
    usage: FloatArray
    restarts_at: int | None = None

    @property
    def first(self) -> int:
        """The step in which the pod begins."""
        return int((~np.isnan(self.usage[:, 0])).argmax())

    @property
    def end(self) -> int:
        """The step after the last one of the pod."""
        return STEPS - int((~np.isnan(self.usage[::-1, 0])).argmax())


@dataclass
class RecordedWeek:
    """The pods, and every series."""

    pods: list[RecordedPod] = field(default_factory=list)

    def series(self) -> Iterator[Series]:
        """All series of the week."""
        always = np.ones(STEPS + 1)
        for node in NODES:
            for name, amounts in (("allocatable", ALLOCATABLE), ("capacity", CAPACITY)):
                for resource, amount in zip(("cpu", "memory"), amounts, strict=True):
                    labels = {"node": node, "resource": resource}
                    yield Series(f"kube_node_status_{name}", labels, always * amount)
            pool = "big" if node == NODES[0] else "small"
            yield Series("kube_node_labels", {"node": node, "label_agentpool": pool}, always)
            root = {"id": "/", "node": node, "instance": f"{node}:10250"}
            own = [pod.usage for pod in self.pods if pod.node == node]
            total = np.nansum(own, axis=0) + np.array((SYSTEM_CORES, SYSTEM_BYTES))
            yield _counter(root, total[:, 0])
            memory = np.concatenate([total[:1, 1], total[:, 1]])
            yield Series("container_memory_working_set_bytes", root, memory)
        for pod in self.pods:
            yield from _pod_series(pod)
        # A pod of this name and node before, which requested more.
        former = {"namespace": "shop", "pod": self.pods[0].name, "node": self.pods[0].node}
        former |= {"container": "app", "resource": "cpu", "uid": "former"}
        before = np.where(np.arange(STEPS + 1) < STEPS // 2, 9.0, np.nan)
        yield Series("kube_pod_container_resource_requests", former, before)
        deployment = {
            "namespace": "shop", "replicaset": "web-5f7c9", "owner_kind": "Deployment",
            "owner_name": "web",
        }  # fmt: skip
        yield Series("kube_replicaset_owner", deployment, always)

    def open_metrics(self) -> Iterator[str]:
        """The lines of an OpenMetrics file with all samples. Series of kube-state-metrics have one
        an hour."""
        by_metric: dict[str, list[Series]] = {}
        for series in self.series():
            by_metric.setdefault(series.metric, []).append(series)
        for metric, own in by_metric.items():
            is_counter = metric.endswith("_total")
            yield f"# TYPE {metric.removesuffix('_total')} {'counter' if is_counter else 'gauge'}"
            for series in own:
                labels = ",".join(f"{k}={json.dumps(v)}" for k, v in series.labels.items())
                every = 12 if metric.startswith("kube_") else 1
                for step in np.flatnonzero(~np.isnan(series.values)).tolist():
                    if step % every:
                        continue
                    seconds = END_SECONDS - (STEPS - step) * STEP_SECONDS
                    yield f"{metric}{{{labels}}} {float(series.values[step])!r} {seconds}"
        yield "# EOF"


def recorded_week(running: int = 4, ended: int = 1) -> RecordedWeek:
    """A week of some nodes of the trace: on each so many pods that run at its end, and pods that
    ended before."""
    (trace,) = read_dataset(TRACES, "google_jobs")
    week = RecordedWeek()
    begin = trace.steps - STEPS
    for node in NODES:
        number = trace.nodes.index(node)
        stays = [
            stay
            for stay in np.flatnonzero(trace.node_index == number).tolist()
            if trace.end[stay] >= begin + 288
        ]
        at_end = [stay for stay in stays if trace.end[stay] == trace.steps]
        before = [stay for stay in stays if trace.end[stay] < trace.steps]
        for stay in at_end[:running] + before[-ended:]:
            week.pods.append(_pod(trace, stay, begin, node, len(week.pods)))
    week.pods[1].restarts_at = STEPS // 2 + 5  # within an hour
    return week


def _pod(trace: Trace, stay: int, begin: int, node: str, number: int) -> RecordedPod:
    usage = np.full((STEPS, 2), np.nan)
    first, end = max(int(trace.start[stay]) - begin, 0), int(trace.end[stay]) - begin
    skipped = begin + first - int(trace.start[stay])
    cores = trace.stay_usage(stay)[skipped:, 0] / 1000
    usage[first:end, 0] = np.where(np.isnan(cores), 0.01, cores)
    # The trace has no memory: a fixed part, and a part that follows cpu.
    usage[first:end, 1] = (300 + 512 * usage[first:end, 0]) * MEBIBYTE
    controller = ("ReplicaSet", "web-5f7c9") if number % 2 else ("StatefulSet", f"db-{number % 3}")
    requests = (float(trace.requests[stay, 0]) / 1000, (1024.0 + 64 * (number % 5)) * MEBIBYTE)
    if number == 4:
        requests = (0.0, 0.0)
    return RecordedPod(f"pod-{number}", node, controller, requests, usage)


def _counter(labels: dict[str, str], cores: FloatArray) -> Series:
    """A counter of cpu seconds; NaN before the first step and after the last."""
    values = np.full(len(cores) + 1, np.nan)
    (known,) = (~np.isnan(cores)).nonzero()
    if len(known):
        first, end = int(known[0]), int(known[-1]) + 1
        values[first] = 0.0
        values[first + 1 : end + 1] = np.cumsum(cores[first:end] * STEP_SECONDS)
    return Series("container_cpu_usage_seconds_total", labels, values)


def _pod_series(pod: RecordedPod) -> Iterator[Series]:
    kind, owner = pod.controller
    named: dict[str, Any] = {"namespace": "shop", "pod": pod.name}
    runs = np.full(STEPS + 1, np.nan)
    runs[pod.first : pod.end + 1] = 1.0
    info = {"node": pod.node, "created_by_kind": kind, "created_by_name": owner}
    yield Series("kube_pod_info", named | info, runs)
    yield Series("kube_pod_status_phase", named | {"phase": "Running"}, runs)
    yield Series("kube_pod_status_phase", named | {"phase": "Failed"}, runs * 0.0)
    for container, share in SHARES.items():
        labels = named | {"node": pod.node, "container": container}
        for resource, request in zip(("cpu", "memory"), pod.requests, strict=True):
            for what, amount in (("requests", request / 2), ("limits", request)):
                if request:
                    stated = labels | {"resource": resource}
                    metric = f"kube_pod_container_resource_{what}"
                    yield Series(metric, stated, runs * amount)
        scraped = named | {"container": container, "instance": f"{pod.node}:10250"}
        ends = [pod.first, pod.restarts_at or pod.end, pod.end]
        for number, (first, end) in enumerate(pairwise(ends)):
            if first == end:
                continue
            usage = np.full((STEPS, 2), np.nan)
            usage[first:end] = pod.usage[first:end] * share
            own = scraped | {"id": f"/kubepods/{pod.name}/{container}/{number}"}
            yield _counter(own, usage[:, 0])
            memory = np.full(STEPS + 1, np.nan)
            memory[first + 1 : end + 1] = usage[first:end, 1]
            yield Series("container_memory_working_set_bytes", own, memory)
