"""A state table of the nodes and pods of a case, asked through the extender's decisions."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock
from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.decisions import Decisions, PrioritizeResult, Rules
from pipeline.extender.scheduler_api import Extender
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.placement.enabled_plugins import Placement, read_config
from pipeline.processors.scorers.scorer import PodDemand
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import Usage

Case = dict[str, Any]
Amounts = Mapping[str, int | None]
LONG_AGO = -2.0e10
"""A Unix time long before any other in a case."""


def quantities(amounts: Amounts | None) -> dict[str, str]:
    """Whole amounts as Kubernetes quantities: cpu is given in millicores."""
    return {
        name: f"{amount}m" if name == "cpu" else str(amount)
        for name, amount in (amounts or {}).items()
        if amount is not None
    }


def usage(amounts: Amounts | None) -> Usage:
    """Millicores and bytes as usage; a missing amount is 0, no amounts are unknown."""
    if amounts is None:
        return Usage()
    return Usage(
        cpu_cores=(amounts.get("cpu") or 0) / 1000, memory_bytes=float(amounts.get("memory") or 0)
    )


def container(requests: Amounts | None, limits: Amounts | None) -> Case:
    return {
        "name": "main",
        "resources": {"requests": quantities(requests), "limits": quantities(limits)},
    }


def pod(
    name: str,
    containers: Sequence[Case],
    *,
    node: str = "",
    priority_class: str | None = None,
    koord_qos: str | None = None,
    kube_qos: str | None = None,
    phase: str = "Running",
    scheduled_at: float | None = None,
    initialized_at: float | None = None,
    daemonset: bool = False,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Case:
    """A Pod as the API server has it."""
    times = {"PodScheduled": scheduled_at, "Initialized": initialized_at}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": format_time(time)}
        for kind, time in times.items()
        if time is not None
    ]
    owner = {"kind": "DaemonSet", "name": "ds", "controller": True}
    labels = {"koordinator.sh/priority-class": priority_class, "koordinator.sh/qosClass": koord_qos}
    return {
        "metadata": {
            "name": name, "namespace": "d", "uid": name,
            "labels": {key: value for key, value in labels.items() if value is not None},
            "annotations": dict(annotations or {}), "ownerReferences": [owner] if daemonset else [],
        },
        "spec": {"nodeName": node, "containers": [*containers], **spec},
        "status": {"phase": phase, "conditions": conditions, "qosClass": kube_qos},
    }  # fmt: skip


def placement(plugin: str, args: Case, *, filters: bool = False) -> Placement:
    """The placement of a configuration that enables one plugin."""
    point = "filter" if filters else "score"
    return read_config(
        {"plugins": {point: {"enabled": [{"name": plugin}]}},
         "pluginConfig": [{"name": plugin, "args": args}]}
    )  # fmt: skip


class World:
    """Nodes and pods as the feed puts them into the table, at `now`."""

    def __init__(self, placement: Placement, now: float) -> None:
        self.rules = Rules(placement, score_steps=100)
        self.table = Table(counting=self.rules.counting)
        self.now = now
        self.decisions = Decisions(self.table, self.rules)

    def node(
        self,
        name: str,
        allocatable: Amounts,
        *,
        capacity: Amounts | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> None:
        """A Node as the watcher publishes it."""
        metadata = {"name": name, "labels": dict(labels or {}), "uid": name}
        metadata["annotations"] = {k: v for k, v in (annotations or {}).items() if v is not None}
        amounts = quantities(allocatable), quantities(capacity or allocatable)
        status = dict(zip(("allocatable", "capacity"), amounts, strict=True))
        record = node_record({"metadata": metadata, "status": status})
        self.table.put_node(decode_json(TableNode, encode_json(record)))

    def report(
        self, name: str, used: Usage, *, at: float, seconds: float = 30.0, **more: Any
    ) -> None:
        """The state of a node after a window that ended then."""
        state = NodeStateRecord(
            node=name, as_of=format_time(at), generation=1, offset=0, epoch=1,
            window_seconds=seconds, coverage=1.0, usage=used, **more,
        )  # fmt: skip
        self.table.put_state(state)

    def runs(self, manifest: Case) -> None:
        """A pod as the watcher publishes it, and as the table reads it."""
        self.table.put_pod(decode_json(CountedPod, encode_json(pod_record(manifest))))

    def candidates(self) -> CandidateNodes:
        return self.decisions.candidates([*self.table], self.now)

    def asked(self, manifest: Case) -> PodDemand:
        return self.decisions.demand(pod_record(manifest))

    def scored(self, manifest: Case, names: Iterable[str] | None = None) -> PrioritizeResult:
        """What prioritize answers about these nodes."""
        record: PodRecord = pod_record(manifest)
        return self.decisions.prioritize(
            record, [*(self.table if names is None else names)], self.now
        )

    def scores(self, manifest: Case, plugin: str) -> dict[str, int]:
        """The scores of nodes by a plugin; all 0 where it was replaced for lack of usage."""
        names = [*self.table]
        scores = self.scored(manifest, names).plugins.get(plugin)
        if scores is None:
            return dict.fromkeys(names, 0)
        return dict(zip(names, scores.tolist(), strict=True))

    def refusals(self, manifest: Case) -> dict[str, str]:
        """The nodes that filter refuses, asked by HTTP as kube-scheduler asks, and why."""
        return asyncio.run(self._refusals(manifest))

    async def _refusals(self, manifest: Case) -> dict[str, str]:
        state = FeedState(caught_up=True, connected=True)
        settings = ExtenderSettings(mode="act")
        extender = Extender(self.table, state, settings, ManualClock(self.now), self.rules)
        question = {"Pod": manifest, "NodeNames": [*self.table]}
        # Nodes that report: without any the extender would assume an outage.
        for number in range(len(self.table) + 1):
            self.node(f"reports-{number}", {})
            self.report(f"reports-{number}", Usage(), at=self.now)
        async with TestClient(TestServer(extender.app())) as client:
            response = await client.post("/filter", data=msgspec.json.encode(question))
            answer = msgspec.json.decode(await response.read())
        reasons: dict[str, str] = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        return reasons
