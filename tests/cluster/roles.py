"""Roles as processes, and the topics that a watcher must have written."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pipeline.local.control_plane import ControlPlane
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.kubernetes.workload_records import read_workload
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import Settings, variable_name
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import pod_key
from pipeline.topics.registry import NODE_VIEWS, NODES, PODS, WORKLOADS
from pipeline.topics.workloads import workload_key
from tests.broker import latest
from tests.cluster.objects import items, named
from tests.processes import springtide, until

_KINDS = {
    "Deployment": "deployments", "ReplicaSet": "replicasets", "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets", "Job": "jobs", "PodDisruptionBudget": "poddisruptionbudgets",
}  # fmt: skip

# Removed when the test process ends.
_LOGS = tempfile.TemporaryDirectory(prefix="roles-", ignore_cleanup_errors=True)
_RECENT_SECONDS, _LAST_LINES = 120, 25


class Role:
    """A process of a role; leaving the context terminates it. Its wall clock is ahead by the
    seconds in `clock_file`."""

    def __init__(
        self, role: str, settings: Settings, *flags: str, clock_file: Path | None = None
    ) -> None:
        kafka, kubernetes = settings.kafka, settings.kubernetes
        self.log = Path(tempfile.mkstemp(prefix=f"{role}-", suffix=".log", dir=_LOGS.name)[1])
        values = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.topic_prefix": kafka.topic_prefix, "kafka.partitions": kafka.partitions,
            "kubernetes.kubeconfig": kubernetes.kubeconfig or "",
            "kubernetes.config_name": kubernetes.config_name,
            "kubernetes.descheduler_config_name": kubernetes.descheduler_config_name,
            "watcher.metrics_port": 0,
            "actuator.metrics_port": 0, "evictor.metrics_port": 0,
            "planner.metrics_port": 0, "worker.metrics_port": 0,
            "webhook.metrics_port": 0,
        }  # fmt: skip
        if kafka.sasl_password is not None:
            values |= {
                "kafka.security_protocol": kafka.security_protocol,
                "kafka.sasl_mechanism": kafka.sasl_mechanism,
                "kafka.sasl_username": kafka.sasl_username,
                "kafka.sasl_password": kafka.sasl_password.reveal(),
                "kafka.ssl_ca_file": kafka.ssl_ca_file,
            }
        environment = os.environ | {variable_name(key): str(value) for key, value in values.items()}
        argv = springtide(role, *flags)
        if clock_file is not None:
            entry = [sys.executable, "-m", "tests.chaos.role_entry", str(clock_file), ""]
            argv = [*entry, role, *flags]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return self.log.read_text()

    async def logs(self, text: str, count: int = 1, seconds: float = 120) -> None:
        """Return when the log has the text at least `count` times."""
        await until(lambda: self.text().count(text) >= count, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A clean end releases the lease.
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()


def recent_logs() -> list[tuple[str, str]]:
    """The file and the last lines of each log that a role wrote to in the last two minutes."""
    since = time.time() - _RECENT_SECONDS
    logs = [path for path in Path(_LOGS.name).glob("*.log") if path.stat().st_mtime > since]
    return [
        (log.name, "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:]))
        for log in sorted(logs)
    ]


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    """A worker, which is killed at the end."""
    # A member with an instance id does not wait until the session of a killed one ends.
    group = ("--id", settings.kafka.topic_prefix, "--instance-id", "worker-0")
    with Role("worker", settings, "--no-supervise", *group) as role:
        try:
            yield
        finally:
            role.kill()


def expected_topics(plane: ControlPlane, config_map: str) -> dict[str, dict[str, bytes]]:
    """The newest records of each topic that follow from the objects that kubectl prints."""
    policy = named(plane, "configmaps", "-n", "koordinator-system").get(config_map, {})
    policies, _ = load_policies(policy.get("data"))
    nodes = [with_policy(node_record(item), policies)[0] for item in items(plane, "nodes")]
    pods = [pod_record(item) for item in items(plane, "pods", "-A")]
    workloads: dict[str, bytes] = {}
    for kind, plural in _KINDS.items():
        for item in items(plane, plural, "-A"):
            record = read_workload(json.dumps(item).encode(), kind)
            key = workload_key(record.namespace, kind, record.name).decode()
            workloads[key] = encode_json(record)
    return {
        NODES.name: {record.node: encode_json(record) for record in nodes},
        PODS.name: {pod_key(pod.node, pod.uid).decode(): encode_json(pod) for pod in pods},
        WORKLOADS.name: workloads,
    }


async def worker_in_step(settings: Settings) -> bool:
    """Whether the worker's views have every pod on a node, and the policy of every node: it joins
    samples with what views show."""
    kafka = settings.kafka
    policies = {
        name: decode_json(NodeRecord, value).overcommit
        for name, value in (await latest(kafka, NODES)).items()
    }
    pods = [key for key in await latest(kafka, PODS) if not key.startswith("/")]
    views = {
        name: decode_json(NodeViewRecord, value)
        for name, value in (await latest(kafka, NODE_VIEWS)).items()
    }
    found = {name: view.overcommit for name, view in views.items()}
    return found == policies and sum(len(view.pods) for view in views.values()) == len(pods)


async def in_step(plane: ControlPlane, settings: Settings) -> bool:
    """Whether the topics agree with the cluster."""
    actual: dict[str, Any] = {
        topic.name: await latest(settings.kafka, topic) for topic in (NODES, PODS, WORKLOADS)
    }
    name = settings.kubernetes.config_name
    return actual == await asyncio.to_thread(expected_topics, plane, name)
