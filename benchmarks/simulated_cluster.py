"""A cluster in memory whose pods replay recorded usage, seen through the product's own parts.

Every 30 seconds all nodes are measured, and their windows go through join, models, detection and
state table as in a worker. Pods are placed by their requests and the extender's filters and scores.
Nothing here decides about evictions.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.usage_series import WINDOW_SECONDS, Demand, Recording, replayed
from pipeline.agents.apply_windows import apply_in_order, encode_applied
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, PartitionModels, PartitionWindow
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.left_nodes import LeftNodes
from pipeline.processors.eviction.migration_limits import (
    Candidate,
    Eviction,
    Situation,
    WorkloadState,
    limits_reached,
)
from pipeline.processors.eviction.migration_policy import MigrationLimits
from pipeline.processors.join.pod_facts import PodRow, pod_row
from pipeline.processors.join.sample_join import ListingFacts, NodeObjects, join, listing_facts
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import encode_arrays, read_rows
from pipeline.topics.samples import SampleHeader
from pipeline.topics.windows import Window, as_decoded, encode_window
from pipeline.topics.workloads import Workload

RESOURCES: Final = ("cpu", "memory")
HIGH: Final = {"cpu": 75.0, "memory": 80.0}
LOW: Final = {"cpu": 45.0, "memory": 55.0}
"""Thresholds of Koordinator's example, in percent of allocatable."""
START: Final = 1_700_006_400
"""A midnight (Unix time): the first window begins then."""
HOUR: Final = 3600 // WINDOW_SECONDS
"""Windows of an hour."""
WARM_UP_WINDOWS: Final = 10
"""A window before evictions begin is as long as so many others."""
LEAVE_WINDOWS: Final = 1
DOWN_WINDOWS: Final = 2
"""An evicted pod runs for so long, and its replacement starts so long after it has ended."""
REPLICAS: Final = 10
"""Of each workload; one of them is simulated."""
_POINTS: Final = 6
_SYSTEM: Final = 0.02
_SCALES: Final = np.array([1e-3, 1.0])
"""From millicores and bytes to cores and bytes."""
_PREFIX: Final = "relief"


class Scenario(NamedTuple):
    """What all arms of a seed share. `load` is the mean usage, and `requested` the sum of requests,
    as a share of allocatable. `missing` is the share of windows that are lost, `unknown` that of
    pods whose usage a window lacks."""

    nodes: int = 8
    pods: int = 64
    warm_up_hours: int = 3
    hours: int = 4
    load: float = 0.5
    requested: float = 0.8
    missing: float = 0.05
    unknown: float = 0.01


class Pod(NamedTuple):
    """A pod; `place` is its place in the demand, `moves` how often it was evicted before."""

    place: int
    record: PodRecord
    moves: int = 0

    @property
    def node(self) -> str:
        return self.record.node


class Measured(NamedTuple):
    """What was measured in a window that ended at `end` (Unix time).

    `pods` are those on nodes, `node` (p,) the number of each one's node, `usage` (p, 2) in
    millicores and bytes, NaN where it is not measured. `system` and `node_usage` are (nodes, 2).
    The reports of nodes that are `lost` (nodes,) did not arrive. `wanted` (nodes, 2) is what pods
    and system would use if CPU were not limited, as a share of allocatable.
    """

    end: float
    pods: list[Pod]
    node: IntArray
    usage: FloatArray
    system: FloatArray
    node_usage: FloatArray
    lost: BoolArray
    wanted: FloatArray


class Load(NamedTuple):
    """The demand of a seed, the room of each node (2,), and the factor of requests (2,)."""

    demand: Demand
    capacity: FloatArray
    request_factor: FloatArray

    def request(self, place: int, generation: int) -> FloatArray:
        """What a pod requests, at most half a node."""
        request = self.demand.requests[place, generation] * self.request_factor
        return np.maximum(np.rint(np.minimum(request, self.capacity / 2)), 1.0)


def load_of(recording: Recording, scenario: Scenario, seed: int) -> Load:
    """The demand of a seed, and nodes for it."""
    windows = HOUR * (scenario.warm_up_hours + scenario.hours)
    chance = np.random.default_rng(seed)
    demand = replayed(recording, scenario.pods, windows, chance)
    mean = demand.wanted[HOUR * scenario.warm_up_hours :].mean(axis=0).sum(axis=0)
    capacity = np.ceil(mean / scenario.nodes / (scenario.load - _SYSTEM))
    requests = np.sum([demand.requests[place, 0] for place in range(scenario.pods)], axis=0)
    factor = scenario.requested * scenario.nodes * capacity / requests
    return Load(demand, capacity, factor)


class Cluster:
    """Nodes and pods from the begin of the warm-up on. Pods change at the ends of windows."""

    def __init__(self, scenario: Scenario, load: Load, policy: HotNodePolicy, seed: int) -> None:
        self.scenario, self.load, self.policy = scenario, load, policy
        self.names = [f"node-{number:03}" for number in range(scenario.nodes)]
        self.window = 0
        rules = rules_of(ExtenderSettings(mode="act"))
        self.table = Table(counting=rules.counting, pod_windows=60)
        self.left = LeftNodes()
        self.decisions = Decisions(self.table, rules, self.left)
        self.pods: dict[str, Pod] = {}
        self.pending: dict[int, tuple[int, Pod]] = {}
        self.evictions: list[Eviction] = []
        self.evicted_again = 0
        self.down_windows = 0
        self._leaving: dict[str, int] = {}
        self._chance = np.random.default_rng([seed, 1])
        self._worker = _Worker(self)
        self._put_nodes(None)

    # -- time

    @property
    def now(self) -> float:
        """The end of the last window (Unix time)."""
        return float(START + WINDOW_SECONDS * self.window)

    def warm_up(self) -> None:
        """Let models learn, before evictions begin."""
        while self.window < HOUR * self.scenario.warm_up_hours:
            self._pass(WARM_UP_WINDOWS)
        self._put_nodes(self.policy)
        self.down_windows = 0

    def pass_window(self) -> Measured:
        """Let a window pass, and measure it."""
        return self._pass(1)

    def _pass(self, windows: int) -> Measured:
        self._end_pods(windows)
        self._place_pending()
        measured = self._measure(windows)
        self.window += windows
        self._worker.take(measured._replace(end=self.now), windows)
        self.down_windows += windows * len(self.pending)
        return measured._replace(end=self.now)

    # -- pods

    def candidate(self, pod: Pod) -> Candidate:
        """The pod as limits of evictions see it."""
        owner = pod.record.owner
        assert owner is not None
        workload = Workload(pod.record.namespace, owner.kind, owner.name)
        return Candidate(pod.record.uid, pod.node, pod.record.namespace, pod.record.name, workload)

    def is_leaving(self, uid: str) -> bool:
        """Whether a pod is being evicted."""
        return uid in self._leaving

    def may_evict(self, uid: str, limits: MigrationLimits, now: float) -> bool:
        """Whether the pod exists, is not leaving and no limit forbids its eviction."""
        pod = self.pods.get(uid)
        if pod is None or uid in self._leaving:
            return False
        candidate = self.candidate(pod)
        recent = [each for each in self.evictions if each.at > now - limits.history_seconds]
        situation = Situation(
            now=now,
            leaving=[self.candidate(self.pods[other]) for other in self._leaving],
            history=recent,
            of_workload=[each for each in recent if each.pod.workload == candidate.workload],
            state=WorkloadState(replicas=REPLICAS),
        )
        return next(limits_reached(candidate, situation, limits), None) is None

    def evict(self, uid: str, now: float) -> None:
        """Ask a pod to leave."""
        pod = self.pods[uid]
        self.evictions.append(Eviction(self.candidate(pod), now))
        self.evicted_again += pod.moves > 0
        self._leaving[uid] = self.window + LEAVE_WINDOWS
        record = msgspec.structs.replace(pod.record, deleted_at=format_time(now + WINDOW_SECONDS))
        self._put_pod(pod._replace(record=record))

    def _put_pod(self, pod: Pod) -> None:
        self.pods[pod.record.uid] = pod
        self.table.put_pod(pod.record)

    def _drop_pod(self, uid: str) -> Pod:
        pod = self.pods.pop(uid)
        self._leaving.pop(uid, None)
        self.table.drop_pod(pod.node, uid)
        return pod

    def _end_pods(self, windows: int) -> None:
        """Remove pods that ended, with those that were evicted."""
        for uid in [uid for uid, end in self._leaving.items() if end <= self.window]:
            pod = self._drop_pod(uid)
            moved = self._new_pod(pod.place, pod.moves + 1)
            self.pending[pod.place] = self.window + DOWN_WINDOWS, moved
        demand = self.load.demand
        since = max(self.window - windows + 1, 0)
        is_new = np.logical_or.reduce(
            [demand.is_new(window) for window in range(since, self.window + 1)]
        )
        places = {pod.place: uid for uid, pod in self.pods.items()}
        for place in np.flatnonzero(is_new).tolist():
            if place in places:
                self._drop_pod(places[place])
            self.pending[place] = self.window, self._new_pod(place, 0)

    def _new_pod(self, place: int, moves: int) -> Pod:
        generation = int(self.load.demand.generation[self.window, place])
        cpu, memory = self.load.request(place, generation).astype(int).tolist()
        requests = Resources(cpu_millicores=cpu, memory_bytes=memory)
        name = f"app-{place}-{generation}"
        record = PodRecord(
            node="", uid=f"{name}-{moves}", cgroup_uid=f"{name}-{moves}", namespace="default",
            name=f"{name}-{moves}", owner=Owner(kind="StatefulSet", name=name), priority=9000,
            pod_class="prod", qos="LS", requests=requests, phase="Pending",
            created_at=format_time(self.now),
        )  # fmt: skip
        return Pod(place, record, moves)

    def _place_pending(self) -> None:
        """Place the pods that may start, those that request most first: they are hard to place."""
        due = [(place, pod) for place, (at, pod) in self.pending.items() if at <= self.window]
        due.sort(key=lambda each: -(_amounts(each[1].record.requests) / self.load.capacity).max())
        for place, pod in due:
            node = self._choose_node(pod.record)
            if node is None:
                continue
            del self.pending[place]
            at = format_time(self.now)
            record = msgspec.structs.replace(
                pod.record, node=node, phase="Running", scheduled_at=at, initialized_at=at,
                started_at=at,
            )  # fmt: skip
            self._put_pod(pod._replace(record=record))

    def _choose_node(self, record: PodRecord) -> str | None:
        """The node that a scheduler with the extender chooses: requests, filters, scores."""
        free = np.tile(self.load.capacity, (len(self.names), 1))
        number = {name: index for index, name in enumerate(self.names)}
        for pod in self.pods.values():
            free[number[pod.node]] -= _amounts(pod.record.requests)
        fits = np.flatnonzero((free >= _amounts(record.requests)).all(axis=1)).tolist()
        if not fits:
            return None
        passed = self.decisions.filter(record, [self.names[i] for i in fits], self.now).passed
        if not passed:
            return None
        best = self.decisions.prioritize(record, passed, self.now).best
        return passed[best or 0]

    # -- measurements

    def _measure(self, windows: int) -> Measured:
        """Measure the next windows, in which no pod changes."""
        demand, capacity, chance = self.load.demand, self.load.capacity, self._chance
        nodes, pods = len(self.names), [*self.pods.values()]
        number = {name: index for index, name in enumerate(self.names)}
        node = np.array([number[pod.node] for pod in pods], np.intp)
        places = np.array([pod.place for pod in pods], np.intp)
        wanted = demand.wanted[self.window : self.window + windows].mean(axis=0)[places]
        # Chance is used up alike in all arms, wherever their pods are.
        lost: BoolArray = np.less(chance.uniform(size=nodes), self.scenario.missing)
        places_drawn = chance.uniform(size=demand.wanted.shape[1])
        unmeasured: BoolArray = np.less(places_drawn, self.scenario.unknown)
        system = np.tile(_SYSTEM * capacity, (nodes, 1))
        total = np.stack(
            [np.bincount(node, wanted[:, r], nodes) + system[:, r] for r in range(2)], axis=1
        )
        # A full node gives each pod less CPU, in proportion.
        given: FloatArray = np.minimum(capacity[0] / np.maximum(total[:, 0], 1.0), 1.0)
        usage = wanted.copy()
        usage[:, 0] *= given[node]
        node_usage = total.copy()
        node_usage[:, 0] *= given
        usage[unmeasured[places]] = np.nan
        system[:, 0] *= given
        return Measured(self.now, pods, node, usage, system, node_usage, lost, total / capacity)

    def _put_nodes(self, policy: HotNodePolicy | None) -> None:
        cpu, memory = self.load.capacity.astype(int).tolist()
        room = Resources(cpu_millicores=cpu, memory_bytes=memory)
        for name in self.names:
            self.table.put_node(
                TableNode(node=name, allocatable=room, capacity=room, hot_nodes=policy)
            )
        self._worker.records = {
            name: NodeRecord(node=name, allocatable=room, capacity=room, hot_nodes=policy)
            for name in self.names
        }


class _Worker:
    """What exporter, join and model agent do with what was measured."""

    def __init__(self, cluster: Cluster) -> None:
        self.records: dict[str, NodeRecord] = {}
        self._cluster = cluster
        self._facts: dict[str, ListingFacts] = {}
        self._rows: dict[str, tuple[PodRecord, PodRow]] = {}
        self._offset = 0
        self._models = PartitionModels(
            Ownership(partition=0, epoch=1), Bank(ModelConfig()),
            ModelRules(_PREFIX, "p90", node_metrics=False), {}, {}, {},
        )  # fmt: skip

    def take(self, measured: Measured, windows: int) -> None:
        """Apply the windows that are not lost, and put their results into the table."""
        sources = [*self._windows(measured, windows)]
        if not sources:
            return
        applied = apply_in_order(sources).values()
        reports = encode_applied([each for each in applied if each is not None])
        table = self._cluster.table
        for source, report in zip(sources, reports, strict=True):
            table.put_state(decode_json(NodeStateRecord, report.node_state))
            table.pod_history.put(source.window)

    def _windows(self, measured: Measured, windows: int) -> Iterator[PartitionWindow]:
        order = np.argsort(measured.node, kind="stable")
        bounds = np.searchsorted(measured.node[order], np.arange(len(measured.lost) + 1))
        for number in np.flatnonzero(~measured.lost).tolist():
            own = order[bounds[number] : bounds[number + 1]].tolist()
            window = self._window(measured, number, own, windows)
            yield PartitionWindow(self._models, self._offset, window)
            self._offset += 1

    def _window(self, measured: Measured, number: int, own: list[int], windows: int) -> Window:
        name = self._cluster.names[number]
        end_ms, length_ms = round(1000 * measured.end), 1000 * WINDOW_SECONDS * windows
        header = SampleHeader(
            node=name, machine_id=name, boot_id="boot", epoch=1,
            sequence=round(measured.end) // WINDOW_SECONDS, window_start_ms=end_ms - length_ms,
            window_end_ms=end_ms,
        )  # fmt: skip
        usage = np.vstack([measured.node_usage[number], measured.usage[own]]) * _SCALES
        capacity = [*(self._cluster.load.capacity * _SCALES), *[None] * (2 * len(own))]
        cores, memory = usage[0].tolist()
        step = length_ms / 1000 / _POINTS
        points = [(step * (point + 1), cores, memory) for point in range(_POINTS)]
        pods = [measured.pods[index].record for index in own]
        data = encode_arrays(
            header,
            kinds=["node", *["pod"] * len(own)],
            ids=["", *(pod.cgroup_uid for pod in pods)],
            statistics={
                "coverage": pa.array([1.0] * len(usage)),
                "cpu_cores_avg": pa.array(usage[:, 0], from_pandas=True),
                "memory_bytes_avg": pa.array(usage[:, 1], from_pandas=True),
                "capacity_cpu_cores": pa.array([capacity[0], *[None] * len(own)], pa.float64()),
                "capacity_memory_bytes": pa.array([capacity[1], *[None] * len(own)], pa.float64()),
            },
            points=pa.array(np.ravel(points)),
        )
        sample = read_rows(data)
        rows = {pod.cgroup_uid: self._row(pod) for pod in pods}
        facts = listing_facts(sample.listing, rows, self._facts.get(name))
        self._facts[name] = facts
        window = join(
            sample, NodeObjects(self.records[name], rows), Strategy(), sample_offset=self._offset,
            appended_ms=end_ms, pod_facts=facts,
        )  # fmt: skip
        return as_decoded(window, encode_window(window))

    def _row(self, pod: PodRecord) -> PodRow:
        if pod.uid not in self._rows or self._rows[pod.uid][0] is not pod:
            self._rows[pod.uid] = pod, pod_row(pod)
        return self._rows[pod.uid][1]


def _amounts(resources: Resources) -> FloatArray:
    return np.array([resources.cpu_millicores or 0, resources.memory_bytes or 0], np.float64)


def hot_nodes(wanted: FloatArray) -> BoolArray:
    """The nodes that are above a threshold; `wanted` (nodes, 2) is a share of allocatable."""
    is_over: BoolArray = np.greater(100.0 * wanted, [HIGH[name] for name in RESOURCES])
    hot: BoolArray = np.logical_or.reduce(is_over, axis=1)
    return hot
