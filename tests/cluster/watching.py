"""A watcher as a process, and what the topics must say after it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.local.control_plane import ControlPlane
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.kubernetes.workload_records import read_workload
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import Settings, variable_name
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import pod_key
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from pipeline.topics.workloads import workload_key
from tests.cluster.objects import items, latest

_KINDS = {
    "Deployment": "deployments",
    "ReplicaSet": "replicasets",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
    "PodDisruptionBudget": "poddisruptionbudgets",
}


class Role:
    """A process of the command `role`, which ends with the test."""

    def __init__(self, role: str, settings: Settings, *flags: str) -> None:
        kafka, kubernetes = settings.kafka, settings.kubernetes
        self.log = Path(tempfile.mkstemp(prefix=f"{role}-", suffix=".log")[1])
        told = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.topic_prefix": kafka.topic_prefix,
            "kafka.partitions": kafka.partitions,
            "kubernetes.kubeconfig": kubernetes.kubeconfig,
            "kubernetes.config_name": kubernetes.config_name,
            "watcher.metrics_port": 0,
            "actuator.metrics_port": 0,
        }
        environment = os.environ | {variable_name(key): str(of) for key, of in told.items()}
        argv = [sys.executable, "-m", "pipeline.cli.main", role, *flags]
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
        return self._process.wait(20)

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return self.log.read_text()

    def __enter__(self) -> "Role":
        return self

    def __exit__(self, *_: object) -> None:
        # So that its lease is free for the next one.
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()


def wanted(plane: ControlPlane, name: str) -> dict[str, dict[str, bytes]]:
    """What each topic must say, from what kubectl says; `name` is that of the ConfigMap."""
    listing = items(plane, "configmaps", "-n", "koordinator-system")
    data = next((of.get("data", {}) for of in listing if of["metadata"]["name"] == name), None)
    policies, _ = load_policies(data)
    nodes = [with_policy(node_record(of), policies)[0] for of in items(plane, "nodes")]
    pods = [pod_record(of) for of in items(plane, "pods", "-A")]
    workloads: dict[str, bytes] = {}
    for kind, plural in _KINDS.items():
        for of in items(plane, plural, "-A"):
            record = read_workload(json.dumps(of).encode(), kind)
            key = workload_key(record.namespace, kind, record.name).decode()
            workloads[key] = encode_json(record)
    return {
        NODES.name: {of.node: encode_json(of) for of in nodes},
        PODS.name: {pod_key(of.node, of.uid).decode(): encode_json(of) for of in pods},
        WORKLOADS.name: workloads,
    }


async def said(settings: Settings) -> dict[str, Any]:
    """What each topic says."""
    return {topic.name: await latest(settings.kafka, topic) for topic in (NODES, PODS, WORKLOADS)}


async def in_step(plane: ControlPlane, settings: Settings) -> bool:
    """Whether the topics say what the cluster says."""
    return await said(settings) == wanted(plane, settings.kubernetes.config_name)


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    kafka = settings.kafka
    argv = [
        *(sys.executable, "-m", "pipeline.cli.main", "worker", "--no-supervise"),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix),
        *("--partitions", str(kafka.partitions), "--metrics-port", "0", "--id", kafka.topic_prefix),
    ]
    with Path(os.devnull).open("w") as nothing:
        process = subprocess.Popen(argv, stdout=nothing, stderr=nothing, preexec_fn=die_with_parent)
    try:
        yield
    finally:
        process.kill()
        process.wait()
