"""A day in which every feed dies in turn: no node gets a Mid or Batch pod beyond what the
undisturbed run allows. With the product's decisions over a simulated cluster and clock.

Usage follows a daily curve that rises by less than the buffer within three minutes, and never above
the predicted peak: these are the promises that the rules rest on.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest

from pipeline.extender import filters
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.refusals import Refusals
from pipeline.processors.kubernetes.object_records import OFFERED
from pipeline.processors.overcommit.offer_decision import OfferInputs, offers_now
from pipeline.processors.overcommit.status_patch import ABSENT, EXTENDED_RESOURCES
from pipeline.processors.placement.enabled_plugins import default_placement
from pipeline.sources.compacted_writer import heartbeat_entry
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES, PODS, RESOURCES, Topic
from pipeline.topics.resource_amounts import Resources, Usage

NODES_OF_DAY: Final = tuple(f"n{i}" for i in range(4))
CORES, GIB = 16_000, 1 << 30
ROOM: Final = Resources(cpu_millicores=CORES, memory_bytes=64 * GIB)
POLICY: Final = Overcommit(buffer_percent=10)
START, HOUR, STEP, WINDOW = 1_700_000_000.0, 3600.0, 20.0, 60.0
REQUESTED, PEAK, HIGHEST_PEAK = 8_000, 6_900, 7_300
MARGIN, OUTSIDE = 6_400, 500

FAULTS: Final = (
    "actuator dead", "actuator slow", "workers dead", "node-state lost", "resources lost",
    "watcher dead", "Kafka away",
)  # fmt: skip
SILENT: Final[Mapping[str, tuple[Topic, ...]]] = {
    "workers dead": (NODE_STATE, RESOURCES),
    "node-state lost": (NODE_STATE,),
    "resources lost": (RESOURCES,),
    "watcher dead": (NODES, PODS, HEARTBEATS),
    "Kafka away": (NODE_STATE, RESOURCES, NODES, PODS, HEARTBEATS),
}
FAULT_SECONDS: Final = 2 * HOUR


class Sent(NamedTuple):
    topic: Topic
    key: bytes
    value: bytes | None


class Bound(NamedTuple):
    pod: PodRecord
    node: str
    ends: float


def used(node: int, now: float) -> int:
    """Millicores that Prod uses: low at night, high by day, with a little noise."""
    day = math.sin(2 * math.pi * ((now - START) / (24 * HOUR) + node / 16)) * 0.5 + 0.5
    noise = 25 * math.sin(now / 37 + node)
    return int(1_500 + 5_300 * day + noise)


def raw_offers(node: int, now: float) -> tuple[int, int]:
    """Mid and Batch in millicores, the buffer included, by the window that ended last."""
    peak = PEAK - 400 * (now - START < 12 * HOUR)
    mid = REQUESTED - peak
    return mid, CORES - MARGIN - OUTSIDE - used(node, now) - mid


class Day:
    """The cluster, the topics, and the product: an extender's decisions, and an actuator's."""

    def __init__(self, seed: int, faults: tuple[str, ...]) -> None:
        self.random = random.Random(seed)
        self.faults = list(faults)
        self.random.shuffle(self.faults)
        self.rules = Rules(default_placement({"cpu": 65, "memory": 95}, 180.0))
        self.table = Table(counting=self.rules.counting)
        self.decisions = Decisions(self.table, self.rules)
        self.now, self.offset = START, 0
        self.undelivered: list[Sent] = []
        self.records: list[dict[str, NodeResourcesRecord]] = []
        self.last_known: dict[str, NodeResourcesRecord] = {}
        self.status: dict[str, tuple[int, ...]] = dict.fromkeys(NODES_OF_DAY, (ABSENT,) * 4)
        self.written = dict.fromkeys(NODES_OF_DAY, START)
        self.bound: dict[str, Bound] = {}
        self.binds, self.excess = Counter[str](), list[str]()

    @property
    def fault(self) -> str:
        """Each fault in turn, after an hour without any."""
        turn, seconds = divmod(self.now - START, HOUR + FAULT_SECONDS)
        is_on = seconds >= HOUR and turn < len(self.faults)
        return self.faults[int(turn)] if is_on else ""

    def send(self, topic: Topic, key: str | bytes, value: bytes | None) -> None:
        self.undelivered.append(Sent(topic, key if isinstance(key, bytes) else key.encode(), value))

    def deliver(self) -> None:
        """Apply what the topics have. A dead watcher writes later what it missed; of windows the
        next ones are enough."""
        silent = SILENT.get(self.fault, ())
        waiting, self.undelivered = self.undelivered, []
        for sent in waiting:
            if sent.topic not in silent:
                apply(self.table, *sent)
            elif sent.topic in (PODS, NODES):
                self.undelivered.append(sent)

    # -- workers and watcher

    def close_window(self) -> None:
        self.offset += 1
        records = {}
        for index, name in enumerate(NODES_OF_DAY):
            mid, batch = raw_offers(index, self.now)
            cores = Usage(cpu_cores=used(index, self.now) / 1000, memory_bytes=8.0 * GIB)
            head: dict[str, Any] = {
                "node": name, "as_of": format_time(self.now), "generation": 1, "epoch": 1,
                "offset": self.offset,
            }  # fmt: skip
            state = NodeStateRecord(
                **head, window_seconds=WINDOW, coverage=1.0, usage=cores,
                allocatable=Usage(cpu_cores=16.0, memory_bytes=64.0 * GIB),
            )  # fmt: skip
            records[name] = NodeResourcesRecord(
                **head, window_seconds=WINDOW, strategy=POLICY, predictor="percentile",
                mid=_less_buffer(mid), batch=_less_buffer(batch),
                mid_lower_bound=_less_buffer(REQUESTED - HIGHEST_PEAK),
                mid_terms=MidTerms(prod_peak=_amount(HIGHEST_PEAK), buffer=_amount(mid // 10)),
                batch_terms=BatchTerms(
                    capacity=ROOM, margin=_amount(MARGIN), outside=_amount(OUTSIDE),
                    buffer=_amount(batch // 10),
                ),
            )  # fmt: skip
            self.send(NODE_STATE, name, encode_json(state))
            self.send(RESOURCES, name, encode_json(records[name]))
        self.records.append(records)

    def beat(self) -> None:
        if self.fault not in ("watcher dead", "Kafka away"):
            self.send(HEARTBEATS, "cluster", heartbeat_entry("cluster", self.now).value)

    # -- the actuator

    def actuate(self) -> None:
        if self.fault == "actuator dead" or not self.records:
            return
        delay = {"actuator slow": 600.0}.get(self.fault, 0.0)
        known = self._known_records(delay)
        inputs = [
            OfferInputs(
                POLICY, known.get(name), {OFFERED: ""}, self.status[name],
                self.now - self.written[name], writes_origin=False,
            )
            for name in NODES_OF_DAY
        ]  # fmt: skip
        for name, offer in zip(NODES_OF_DAY, offers_now(inputs, self.now - delay), strict=True):
            if offer.is_due:
                self.status[name], self.written[name] = offer.amounts, self.now

    def _known_records(self, delay: float) -> dict[str, NodeResourcesRecord]:
        if RESOURCES in SILENT.get(self.fault, ()):
            return self.last_known
        self.last_known = self.records[max(0, len(self.records) - 1 - int(delay / WINDOW))]
        return self.last_known

    # -- the scheduler

    def schedule(self, tier: str, millicores: int) -> None:
        pod = self._pod(tier, millicores)
        index = EXTENDED_RESOURCES.index(f"kubernetes.io/{tier}-cpu")
        fitting = [
            name
            for name in NODES_OF_DAY
            if self._requested(name, tier) + millicores <= self.status[name][index]
        ]
        passed = self.decisions.filter(pod, fitting, self.now).passed
        if not passed:
            return
        best = self.decisions.prioritize(pod, [*passed], self.now).best
        node = [*passed][best or 0]
        self.decisions.place(pod, node, self.now)
        self._bind(pod, node, tier)

    def _pod(self, tier: str, millicores: int) -> PodRecord:
        uid = f"{tier}-{self.random.getrandbits(64):x}"
        scalars = {f"kubernetes.io/{tier}-cpu": millicores, f"kubernetes.io/{tier}-memory": 1 << 20}
        return PodRecord(
            node="", uid=uid, cgroup_uid=uid, namespace="d", name=uid, pod_class=tier,
            scalars=scalars, phase="Running",
        )  # fmt: skip

    def _bind(self, pod: PodRecord, node: str, tier: str) -> None:
        life = self.random.uniform(0.2, 2.0) * HOUR
        self.bound[pod.uid] = Bound(pod, node, self.now + life)
        self.binds[f"{self.fault} {tier}"] += 1
        at = format_time(self.now)
        record = PodRecord(
            node=node, uid=pod.uid, cgroup_uid=pod.uid, namespace="d", name=pod.uid,
            pod_class=tier, scalars=pod.scalars, phase="Running", scheduled_at=at,
        )  # fmt: skip
        self.send(PODS, pod_key(node, pod.uid), encode_json(record))
        allowed = raw_offers(NODES_OF_DAY.index(node), self._window_end())[tier == "batch"]
        requested = self._requested(node, tier)
        if requested > allowed:
            self.excess.append(f"{self.fault}: {node} {tier} {requested} > {allowed}")

    def _window_end(self) -> float:
        return START + (self.now - START) // WINDOW * WINDOW

    def _requested(self, node: str, tier: str) -> int:
        name = f"kubernetes.io/{tier}-cpu"
        pods = (each.pod for each in self.bound.values() if each.node == node)
        return sum((pod.scalars or {}).get(name, 0) for pod in pods)

    def end_pods(self) -> None:
        for uid, each in [*self.bound.items()]:
            if each.ends <= self.now:
                del self.bound[uid]
                self.send(PODS, pod_key(each.node, uid), None)

    def run(self, hours: int) -> "Day":
        for name in NODES_OF_DAY:
            record = NodeRecord(
                node=name, allocatable=ROOM, annotations={OFFERED: ""}, overcommit=POLICY
            )
            self.send(NODES, name, encode_json(record))
        for step in range(int(hours * HOUR / STEP)):
            self.now = START + step * STEP
            if (self.now - START) % WINDOW == 0:
                self.close_window()
            self.end_pods()
            self.beat()
            self.deliver()
            self.actuate()
            for tier, largest in (("mid", 150), ("batch", 500)):
                self.schedule(tier, self.random.randrange(20, largest))
        return self


def _amount(millicores: int) -> Resources:
    return Resources(cpu_millicores=millicores, memory_bytes=8 * GIB)


def _less_buffer(millicores: int) -> Resources:
    return _amount(millicores - millicores // 10)


def test_no_node_gets_pods_beyond_what_the_undisturbed_day_allows() -> None:
    day = Day(1, FAULTS).run(24)
    assert day.excess == []
    counts = day.binds
    assert counts[" mid"] > 100 < counts[" batch"], "the day without faults places pods"
    assert counts["actuator dead batch"] > 0 < counts["watcher dead batch"]


def test_the_day_reveals_an_extender_that_trusts_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "offered", lambda nodes, *_: Refusals.none(len(nodes)))
    day = Day(1, ("actuator dead",) * 2).run(6)
    assert len(day.excess) > 10
