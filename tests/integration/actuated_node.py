"""A node of this machine with a real exporter and a real node actuator, a Batch and a Prod pod."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.registry import NODE_VIEWS
from pipeline.topics.resource_amounts import Resources
from tests.broker import flags_of, send
from tests.cgroup_tree import CgroupTree
from tests.processes import environment, springtide

NODE = "actuator-test-node"
BEST_EFFORT = "kubepods/besteffort"
BATCH, PROD = f"{BEST_EFFORT}/podbatch", "kubepods/burstable/podprod"


class Node:
    """An exporter and an actuator of one node, and its cgroups."""

    def __init__(
        self,
        kafka: KafkaSettings,
        tree: CgroupTree,
        folder: Path,
        exporter: Sequence[str] = (),
        cgroups: Sequence[str] = (BATCH, PROD),
    ) -> None:
        """`exporter` has more flags of the exporter. Makes `cgroups`, by default those of a Batch
        and a Prod pod."""
        self.kafka, self.tree, self.folder = kafka, tree, folder
        for path in cgroups:
            tree.make(path)
        self.generation = 0
        self.exporter = self.start("exporter", "--window-seconds=1", *exporter)
        self.actuator: subprocess.Popen[bytes] | None = None

    def start(self, role: str, *flags: str) -> subprocess.Popen[bytes]:
        words = [
            f"--node-name={NODE}", f"--cgroup-parent={self.tree.name}", "--metrics-port=0",
            f"--socket-path={self.folder / 'exporter.sock'}", "--metrics-host=127.0.0.1", *flags,
        ]  # fmt: skip
        with self.log_file(role).open("ab") as log:
            return subprocess.Popen(
                springtide(role, *flags_of(self.kafka), *words), stdout=log, stderr=log,
                cwd=self.folder, env=environment(), preexec_fn=die_with_parent,
            )  # fmt: skip

    def act(self, *flags: str) -> subprocess.Popen[bytes]:
        state = self.folder / "state.json"
        self.actuator = self.start("node-actuator", f"--state-file={state}", *flags)
        return self.actuator

    def log_file(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def log(self, role: str = "node-actuator") -> str:
        return self.log_file(role).read_text()

    def page(self) -> dict[str, float]:
        """The metrics of the actuator that was started last."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        port = [line for line in lines if line["event"] == "metrics page"][-1]["port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def view(self, slo: dict[str, Any]) -> None:
        self.generation += 1
        pods = (
            ViewPod(
                uid="batch", cgroup_uid="batch", namespace="x", name="batch", pod_class="batch",
                qos="BE", phase="Running",
            ),
            ViewPod(
                uid="prod", cgroup_uid="prod", namespace="x", name="prod", pod_class="prod",
                qos="LS", phase="Running", requests=Resources(cpu_millicores=500),
            ),
        )  # fmt: skip
        cpus = Resources(cpu_millicores=2000, memory_bytes=2**34)
        view = NodeViewRecord(
            node=NODE, generation=self.generation, capacity=cpus, allocatable=cpus, pods=pods,
            slo=msgspec.Raw(json.dumps(slo).encode()),
        )  # fmt: skip
        await send(self.kafka, NODE_VIEWS, (NODE, encode_json(view)))

    def quota_us(self) -> int:
        return int((self.tree.directory("cpu", BEST_EFFORT) / "cpu.cfs_quota_us").read_text())

    def limits(self) -> dict[str, str]:
        """The text of every file that limits something in this tree."""
        names = ("shares", "cfs_quota_us", "cfs_burst_us", "idle", "limit_in_bytes")
        return {
            str(path): path.read_text()
            for controller in self.tree.controllers
            for path in sorted(self.tree.directory(controller).rglob("*"))
            if path.name.partition(".")[2] in names
        }

    def stop(self) -> None:
        for process in (self.actuator, self.exporter):
            if process is not None:
                process.kill()
                process.wait()
