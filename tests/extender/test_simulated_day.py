"""A day in which every feed dies in turn: no node gets a Mid or Batch pod beyond what the same day
without faults allows. With the product's decisions over a simulated cluster and clock.

Usage follows a daily curve that rises by less than the buffer within three minutes, and never above
the predicted peak: these are the promises that the rules rest on.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
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
from pipeline.table.apply_records import Headers, apply
from pipeline.table.node_columns import bound_column
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.heartbeats import WATCHER
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import SOURCE_HEADER, NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES, PODS, RESOURCES, Topic
from pipeline.topics.resource_amounts import Resources, Usage

NODES_OF_DAY: Final = tuple(f"n{i}" for i in range(4))
CORES, GIB = 16_000, 1 << 30
ROOM: Final = Resources(cpu_millicores=CORES, memory_bytes=64 * GIB)
POLICY: Final = Overcommit(buffer_percent=10)
START, HOUR, STEP, WINDOW = 1_700_000_000.0, 3600.0, 30.0, 60.0
REQUESTED, PEAK, HIGHEST_PEAK = 8_000, 6_900, 7_300
MARGIN, OUTSIDE = 6_400, 500
TIERS: Final = {"mid": 150, "batch": 500}
"""The largest request of a pod, in millicores."""

SILENT: Final[Mapping[str, tuple[Topic, ...]]] = {
    "exporters dead": (NODE_STATE, RESOURCES),
    "workers dead": (NODE_STATE, RESOURCES),
    "workers and actuator dead": (NODE_STATE, RESOURCES),
    "node-state lost": (NODE_STATE,),
    "resources lost": (RESOURCES,),
    "nodes lost": (NODES,),
    "pods lost": (PODS,),
    "heartbeats lost": (HEARTBEATS,),
    "watcher dead": (NODES, PODS, HEARTBEATS),
    "policy deleted": (RESOURCES,),
    "Kafka away": (NODE_STATE, RESOURCES, NODES, PODS, HEARTBEATS),
}
"""What no reader gets during a fault. Dead exporters are those of half the nodes. Wake-ups, plans
and actions are no feeds of a placement: they lead to questions and evictions alone."""
FAULTS: Final = (*SILENT, "actuator dead", "actuator slow", "state table lost")
DEAD_ACTUATOR: Final = ("actuator dead", "workers and actuator dead")
PAUSE_SECONDS, FAULT_SECONDS, LOST_SECONDS = 0.6 * HOUR, 1.1 * HOUR, 600.0
DEAD_EXPORTERS: Final = NODES_OF_DAY[::2]


class Sent(NamedTuple):
    topic: Topic
    key: bytes
    value: bytes | None
    headers: Headers


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
    """The cluster, the topics, and the product: an extender's decisions, and an actuator's.

    `allowed` is what the extender accepts on a node at a moment, in sum, and `requested` what its
    pods have after each placement; keys of both are (moment, node, tier).
    """

    def __init__(self, seed: int, faults: Sequence[str] = ()) -> None:
        self.seed = seed
        self.faults = random.Random(seed).sample(faults, len(faults))
        self.now, self.offset = START, 0
        self.undelivered: list[Sent] = []
        self.compacted: dict[tuple[str, bytes], Sent] = {}
        self.open_table()
        self.records_by_window: list[dict[str, NodeResourcesRecord]] = [{}]
        self.status: dict[str, tuple[int, ...]] = dict.fromkeys(NODES_OF_DAY, (ABSENT,) * 4)
        self.written = dict.fromkeys(NODES_OF_DAY, START)
        self.bound: dict[str, Bound] = {}
        self.allowed: dict[tuple[float, str, str], int] = {}
        self.requested: dict[tuple[float, str, str], int] = {}
        self.binds = Counter[str]()

    def fault_at(self, moment: float) -> str:
        """Each fault in turn, after a pause without any."""
        turn, seconds = divmod(moment - START, PAUSE_SECONDS + FAULT_SECONDS)
        is_on = seconds >= PAUSE_SECONDS and turn < len(self.faults)
        return self.faults[int(turn)] if is_on else ""

    @property
    def fault(self) -> str:
        return self.fault_at(self.now)

    # -- the topics

    def open_table(self) -> None:
        """Begin with an empty state table, and what compacted topics have."""
        rules = Rules(default_placement({"cpu": 65, "memory": 95}, 180.0))
        self.table = Table(counting=rules.counting)
        self.decisions = Decisions(self.table, rules)
        for sent in self.compacted.values():
            apply(self.table, *sent)

    def send(self, topic: Topic, key: str | bytes, value: bytes | None) -> None:
        key = key if isinstance(key, bytes) else key.encode()
        self.undelivered.append(Sent(topic, key, value, [(SOURCE_HEADER, WATCHER.encode())]))

    def deliver(self) -> None:
        """Apply what the topics have. A dead watcher writes later what it missed; of windows the
        next ones are enough."""
        waiting, self.undelivered = self.undelivered, []
        for sent in waiting:
            if not self.is_silent(sent.topic, sent.key.decode()):
                apply(self.table, *sent)
                self.compacted[sent.topic.name, sent.key] = sent
            elif sent.topic in (PODS, NODES):
                self.undelivered.append(sent)

    def is_silent(self, topic: Topic, key: str) -> bool:
        is_dead = self.fault != "exporters dead" or key in DEAD_EXPORTERS
        return is_dead and topic in SILENT.get(self.fault, ())

    # -- workers and watcher

    def close_window(self) -> None:
        self.offset += 1
        known = dict(self.records_by_window[-1])
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
            resources = NodeResourcesRecord(
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
            self.send(RESOURCES, name, encode_json(resources))
            if not self.is_silent(RESOURCES, name):
                known[name] = resources
        self.records_by_window.append(known)

    def watch(self) -> None:
        """Copy the Nodes if their policy has changed, and say that this is all."""
        is_deleted = self.fault == "policy deleted"
        if self.now == START or is_deleted != (self.fault_at(self.now - STEP) == "policy deleted"):
            for name in NODES_OF_DAY:
                record = NodeRecord(
                    node=name, allocatable=ROOM, annotations={OFFERED: ""},
                    overcommit=None if is_deleted else POLICY,
                )  # fmt: skip
                self.send(NODES, name, encode_json(record))
        self.send(HEARTBEATS, "cluster", heartbeat_entry(self.now).value)

    # -- the actuator

    def actuate(self) -> None:
        if self.fault in DEAD_ACTUATOR:
            return
        delay = 600.0 if self.fault == "actuator slow" else 0.0
        known = self.records_by_window[
            max(0, len(self.records_by_window) - 1 - int(delay / WINDOW))
        ]
        policy = None if self.fault == "policy deleted" else POLICY
        inputs = [
            OfferInputs(
                policy, known.get(name), {OFFERED: ""}, self.status[name],
                self.now - self.written[name], writes_origin=False,
            )
            for name in NODES_OF_DAY
        ]  # fmt: skip
        for name, offer in zip(NODES_OF_DAY, offers_now(inputs, self.now - delay), strict=True):
            if offer.is_due:
                self.status[name], self.written[name] = offer.amounts, self.now

    # -- the scheduler

    def note_allowed(self) -> None:
        """Note the bounds that the extender sets now."""
        nodes = self.decisions.candidates(NODES_OF_DAY, self.now)
        for tier in TIERS:
            bounds = nodes.column(bound_column("buffered", f"kubernetes.io/{tier}-cpu"))
            for name, bound in zip(nodes.names, bounds.tolist(), strict=True):
                self.allowed[self.now, name, tier] = int(bound)

    def schedule(self, tier: str, largest: int) -> None:
        """Place a pod that is the same whatever happened before."""
        rng = random.Random(f"{self.seed}/{self.now}/{tier}")
        millicores, life = rng.randrange(20, largest), rng.uniform(0.2, 2.0) * HOUR
        pod = _pod(f"{tier}-{self.now:.0f}", tier, millicores)
        index = EXTENDED_RESOURCES.index(f"kubernetes.io/{tier}-cpu")
        fitting = [
            name
            for name in NODES_OF_DAY
            if self.sum_of_requests(name, tier) + millicores <= self.status[name][index]
        ]
        passed = self.decisions.filter(pod, fitting, self.now).passed if fitting else ()
        if not passed:
            return
        best = self.decisions.prioritize(pod, [*passed], self.now).best
        node = [*passed][best or 0]
        self.decisions.place(pod, node, self.now)
        self._bind(pod, node, tier, life)

    def _bind(self, pod: PodRecord, node: str, tier: str, life: float) -> None:
        self.bound[pod.uid] = Bound(pod, node, self.now + life)
        self.binds[f"{self.fault} {tier}"] += 1
        self.requested[self.now, node, tier] = self.sum_of_requests(node, tier)
        record = msgspec.structs.replace(pod, node=node, scheduled_at=format_time(self.now))
        self.send(PODS, pod_key(node, pod.uid), encode_json(record))

    def sum_of_requests(self, node: str, tier: str) -> int:
        name = f"kubernetes.io/{tier}-cpu"
        pods = (each.pod for each in self.bound.values() if each.node == node)
        return sum((pod.scalars or {}).get(name, 0) for pod in pods)

    def end_pods(self) -> None:
        for uid, each in [*self.bound.items()]:
            if each.ends <= self.now:
                del self.bound[uid]
                self.send(PODS, pod_key(each.node, uid), None)

    def run(self, hours: int) -> "Day":
        for step in range(int(hours * HOUR / STEP)):
            self.now = START + step * STEP
            if (self.now - START) % WINDOW == 0:
                self.close_window()
            self.end_pods()
            self.watch()
            self.deliver()
            if self.fault == "state table lost" and (self.now - START) % LOST_SECONDS == 0:
                self.open_table()
            self.actuate()
            self.note_allowed()
            for tier, largest in TIERS.items():
                self.schedule(tier, largest)
        return self

    def beyond(self, undisturbed: "Day") -> list[str]:
        """The placements after which a node has more than the undisturbed day allows it then."""
        return [
            f"{self.fault_at(moment)}: {node} has {requested} of {tier}, not {allowed}"
            for (moment, node, tier), requested in self.requested.items()
            if requested > (allowed := undisturbed.allowed[moment, node, tier])
        ]


def _pod(uid: str, tier: str, millicores: int) -> PodRecord:
    scalars = {f"kubernetes.io/{tier}-cpu": millicores, f"kubernetes.io/{tier}-memory": 1 << 20}
    return PodRecord(
        node="", uid=uid, cgroup_uid=uid, namespace="d", name=uid, pod_class=tier,
        scalars=scalars, phase="Running",
    )  # fmt: skip


def _amount(millicores: int) -> Resources:
    return Resources(cpu_millicores=millicores, memory_bytes=8 * GIB)


def _less_buffer(millicores: int) -> Resources:
    return _amount(millicores - millicores // 10)


def _window_end(moment: float) -> float:
    return START + (moment - START) // WINDOW * WINDOW


def test_no_node_gets_pods_beyond_what_the_undisturbed_day_allows() -> None:
    undisturbed = Day(1).run(24)
    day = Day(1, FAULTS).run(24)
    assert day.beyond(undisturbed) == []
    assert undisturbed.beyond(undisturbed) == []
    counts = day.binds
    assert counts[" mid"] > 100 < counts[" batch"], "the day without faults places pods"
    blind = ("workers dead", "workers and actuator dead", "resources lost", "policy deleted",
             "Kafka away")  # fmt: skip
    idle = [fault for fault in FAULTS if fault not in blind and counts[f"{fault} batch"] < 10]
    assert idle == [], "while newest offers are known, pods are placed"


def test_the_undisturbed_day_allows_what_there_is() -> None:
    undisturbed = Day(1).run(2)
    assert undisturbed.allowed == {
        (moment, name, tier): raw_offers(NODES_OF_DAY.index(name), _window_end(moment))[place]
        for moment, name, _ in undisturbed.allowed
        for place, tier in enumerate(TIERS)
    }


def trust_the_nodes(patch: pytest.MonkeyPatch) -> None:
    """The extender compares no requests with the newest record."""
    patch.setattr(filters, "offered", lambda nodes, *_: Refusals.none(len(nodes)))


def ignore_the_age(patch: pytest.MonkeyPatch) -> None:
    """The extender takes any record for the one of the last window."""
    patch.setattr(filters, "bounds_in_force", lambda buffered, *_: buffered)


@pytest.mark.parametrize(
    ("defect", "fault"),
    [(trust_the_nodes, "actuator dead"), (ignore_the_age, "workers and actuator dead")],
)
def test_the_day_reveals_a_seeded_defect(
    defect: Callable[[pytest.MonkeyPatch], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Day(1).run(6)
    defect(monkeypatch)
    assert len(Day(1, (fault,) * 3).run(6).beyond(undisturbed)) > 10
