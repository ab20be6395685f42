"""A node actuator that answers a container runtime, on a described tree or on real cgroups."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from actuators.action_log import Actions
from actuators.node import node_metrics
from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.container_start import ContainerStart
from actuators.node.newest_view import NewestView
from actuators.node.node_actuator import NodeActuator
from actuators.node.node_service import feature_modes
from actuators.node.nri_messages import ContainerEvent, ContainerResources
from actuators.node.nri_plugin import NriPlugin
from actuators.node.original_values import OriginalValues
from actuators.node.runtime_values import RuntimeValues
from node_exporter.kernel.cgroup import detect_layout
from pipeline.clock import ManualClock
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS
from pipeline.processors.node_qos.cgroup_values import Place
from pipeline.processors.node_qos.changes import Change
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.extended_resource_spec import ANNOTATION
from pipeline.processors.node_qos.features import built_features
from pipeline.settings import ExporterSettings, KafkaSettings, NodeActuatorSettings
from pipeline.topics.node_views import ViewPod
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH
from tests.actuators.node.test_node_reading import reading_of
from tests.actuators.node.views import NODE, view

MIB = 2**20
UID = "0c1a7a44-58a0-4b0f-b8b6-7a5a3c0a9f10"
ID = "a1" * 32
AMOUNTS = dict(zip(BATCH, (500, 64 * MIB), strict=True))
BEST_EFFORT = ContainerResources(cpu_shares=2, cpu_quota_us=0, cpu_period_us=100_000)
"""What the kubelet asks of the runtime for a container without native amounts."""


class RecordingWriter(CgroupWriter):
    """Keeps what it had to change."""

    changes: list[Change]

    def apply(
        self, decisions: Mapping[Place, Decision], answered: Iterable[Place] = ()
    ) -> list[Change]:
        made = super().apply(decisions, answered)
        self.changes = [*getattr(self, "changes", []), *made]
        return made


class Starting:
    """The actuator, and its answers. `socket` is where it expects the runtime."""

    def __init__(self, settings: ExporterSettings, folder: Path, **section: Any) -> None:
        self.clock, news = ManualClock(), asyncio.Event()
        self.view = NewestView(NODE, self.clock, news)
        reading = reading_of(settings, folder / "exporter.sock", self.view, self.clock)
        hierarchies = detect_hierarchies(str(settings.cgroup_root))
        self.files = CgroupFiles(hierarchies)
        self.originals = OriginalValues(folder / "state.json", "boot", self.files.value_of)
        self.writer = RecordingWriter(self.files, self.originals)
        self.writer.changes = []
        self.replaced = RuntimeValues(self.files, self.originals, self.clock)
        features = built_features(None, None)
        node = NodeActuatorSettings(**{"mode": "act", **section})
        modes = feature_modes(node, [feature.name for feature in features])
        self.actuator = NodeActuator(
            node, modes, features, reading, self.writer, self.replaced, lambda state: None, [],
            Actions(KafkaSettings(), node_metrics.ACTIONS_LOST), self.clock, news,
        )  # fmt: skip
        layout = detect_layout(str(settings.cgroup_root))
        self.starts = ContainerStart(
            self.view, CgroupFiles(hierarchies), self.originals, layout, settings.cgroup_parent
        )
        self.socket = folder / "nri.sock"
        self.plugin = NriPlugin(
            self.socket, self.starts, self.actuator.copy, self.replaced, self.clock
        )
        self._generation = 0

    def show(
        self,
        *pods: ViewPod,
        slo: Any = None,
        reserved: str = "",
        confirmed: bool = True,
        **fields: Any,
    ) -> None:
        """A newer view, with CPUs reserved for the system; without `confirmed` it is stale."""
        self._generation += 1
        if reserved:
            fields["annotations"] = {RESERVATION: json.dumps({"reservedCPUs": reserved})}
        raw = msgspec.Raw(json.dumps(slo or {}).encode())
        assert self.view.receive(view(self._generation, pods=pods, slo=raw, **fields))
        self.view.confirm(self.clock.monotonic() - (0 if confirmed else 1e6))

    def answer(self, event: ContainerEvent, *, is_update: bool = False) -> ContainerResources:
        """The answer without a socket between; empty if there is none."""
        copy = self.actuator.copy()
        answer = copy and self.starts.answer(event, copy, is_update=is_update)
        if not answer:
            return ContainerResources()
        assert self.replaced.add(answer.replaced)
        return answer.adjustment.resources

    def close(self) -> None:
        self.originals.close()
        self.files.close()


def batch_pod(*ids: str, uid: str = UID, **fields: Any) -> ViewPod:
    """A pod of the class BE with a container `main`, which has an id once it runs."""
    known: dict[str, Any] = {
        "uid": f"object-{uid}", "cgroup_uid": uid, "namespace": "d", "name": "batch", "qos": "BE",
        "pod_class": "batch", "phase": "Running", "labels": {LABEL_QOS_CLASS: "BE"},
        "containers": (Container(name="main", scalars=AMOUNTS),),
        "container_ids": dict(zip(["main"], ids, strict=False)),
    }  # fmt: skip
    return ViewPod(**{**known, **fields})


def event(resources: ContainerResources = BEST_EFFORT, **fields: Any) -> ContainerEvent:
    """The container `main` of that pod is created, with the driver cgroupfs."""
    known: dict[str, Any] = {
        "pod_uid": UID, "pod_namespace": "d", "pod_name": "batch", "labels": {},
        "annotations": {}, "id": ID, "name": "main", "resources": resources,
        "cgroups_path": f"/kubepods/besteffort/pod{UID}/{ID}",
    }  # fmt: skip
    return ContainerEvent(**{**known, **fields})


def extended(container: str = "main") -> dict[str, str]:
    """The annotation of Koordinator's webhook with the amounts of a container."""
    quantities = {name: str(amount) for name, amount in AMOUNTS.items()}
    amounts = {"requests": quantities, "limits": quantities}
    return {ANNOTATION: json.dumps({"containers": {container: amounts}})}
