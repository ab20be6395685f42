"""Decisions of the extender in plain Python, node by node: Koordinator's LoadAware with pods in
flight, reservations, the newest offer, best fit, and preemption.

Tests compare `Decisions`, which computes with arrays, with this. The two share only the estimate of
a pod, which is tested by vectors of its own.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import parse_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pods import CountedPod

RESOURCES = ("cpu", "memory")
SCALE = {"cpu": 1000.0, "memory": 1.0}
ENDED = ("Succeeded", "Failed")


class World(NamedTuple):
    """The newest records of each node, and of each pod by UID."""

    states: Mapping[str, NodeStateRecord]
    nodes: Mapping[str, TableNode]
    pods: Mapping[str, CountedPod]
    counting: Counting
    offers: Mapping[str, OfferedResources] = {}

    def counted(self, pod: CountedPod) -> dict[str, int]:
        return dict(zip(self.counting.names, self.counting.amounts(pod), strict=True))

    def estimate(self, pod: CountedPod) -> dict[str, int]:
        counted = self.counted(pod)
        return {name: counted[f"estimate:{name}"] for name in RESOURCES}

    def on(self, node: str) -> list[CountedPod]:
        return [p for p in self.pods.values() if p.node == node and p.phase not in ENDED]

    def asked(self, node: str, name: str, evicted: Collection[str]) -> int:
        """The requests of all pods on a node except these UIDs."""
        here = [self.counted(pod) for pod in self.on(node) if pod.uid not in evicted]
        return sum(counted[f"request:{name}"] for counted in here)

    def knows(self, node: str) -> bool:
        """Whether there is any record of a node."""
        record = (self.states, self.nodes, self.offers)
        return any(node in item for item in record) or bool(self.on(node))


class Judgement(NamedTuple):
    """`shares` are what is left of each resource in percent, and `is_known` whether its usage is;
    `is_fresh`: the node is new or has a young window."""

    refused: bool
    shares: Mapping[str, int]
    is_known: Mapping[str, bool]
    is_fresh: bool
    score: int = 0

    @property
    def passes(self) -> bool:
        return not self.refused

    @property
    def is_scored(self) -> bool:
        return self.is_fresh and any(self.is_known.values())

    @property
    def is_certain(self) -> bool:
        return self.is_fresh and all(self.is_known.values())

    def capped(self, lowest: Mapping[str, int]) -> "Judgement":
        """With its score: the mean of the shares, of unknown usage at most the `lowest`."""
        shares = [
            share if self.is_known[name] else min(share, lowest.get(name, 100))
            for name, share in self.shares.items()
        ]
        return self._replace(score=sum(shares) // 2 if self.is_scored else 0)


def judge(
    world: World,
    node: str,
    pod: CountedPod,
    now: float,
    stale: float,
    evicted: Collection[str] = (),
) -> Judgement:
    """Whether the node is refused by 65 and 95 percent, and what is left of it; as it would be if
    the pods `evicted` were not there, though what was measured of them is used still.

    A resource whose usage is known has this usage and the part of pods in flight that is missing in
    it. A resource whose usage is unknown has the estimates of all pods on the node. A node without
    a young window is not judged, unless it is new: it uses nothing but pods in flight.
    """
    state = world.states.get(node)
    used, is_fresh = _used(state), state is not None and abs(now - parse_time(state.as_of)) < stale
    if state is None and _is_new(world, node, now):
        used, is_fresh = dict.fromkeys(RESOURCES, 0), True
    delta, added = _in_flight(world, node, state, evicted), world.estimate(pod)
    estimated = [world.estimate(item) for item in world.on(node) if item.uid not in evicted]
    is_over, shares = False, {}
    for name, threshold in (("cpu", 65), ("memory", 95)):
        measured, have = used[name], _room(world, node, name)
        after = added[name] + (
            sum(each[name] for each in estimated) if measured is None else measured + delta[name]
        )
        is_over |= have > 0 and int(after / have * 100 + 0.5) > threshold
        shares[name] = max(have - after, 0) * 100 // have if have > 0 else 0
    refused = (
        (is_over and is_fresh)
        or _beyond_reservation(world, node, pod, evicted)
        or _beyond_offer(world, node, pod, now, stale, evicted)
    )
    is_known = {name: used[name] is not None for name in RESOURCES}
    return Judgement(refused, shares, is_known, is_fresh)


def _beyond_reservation(world: World, node: str, pod: CountedPod, evicted: Collection[str]) -> bool:
    record = world.nodes.get(node)
    text = record.annotations.get("node.koordinator.sh/reservation") if record else None
    reservation = json.loads(text)["resources"] if text else {}
    for name in RESOURCES:
        wanted, room = world.counted(pod)[f"request:{name}"], _room(world, node, name)
        taken = world.asked(node, name, evicted)
        if name in reservation and wanted > 0 and room > 0:
            reserved = int(reservation[name] * SCALE[name])
            if taken + wanted > max(room - reserved, 0):
                return True
    return False


def _beyond_offer(
    world: World, node: str, pod: CountedPod, now: float, stale: float, evicted: Collection[str]
) -> bool:
    record = world.offers.get(node)
    if record is None:
        return False
    age = abs(now - parse_time(record.as_of))
    for tier, resource in product(("mid", "batch"), RESOURCES):
        name = f"kubernetes.io/{tier}-{resource}"
        wanted = world.counted(pod)[f"request:{name}"]
        bound = _offered(record, tier, "cpu_millicores" if resource == "cpu" else "memory_bytes",
                         age, stale)  # fmt: skip
        if wanted > 0 and world.asked(node, name, evicted) + wanted > bound:
            return True
    return False


def _offered(record: OfferedResources, tier: str, field: str, age: float, stale: float) -> int:
    """What a record of this age offers to a tier, as docs/reference/extender.md has it."""

    def amount(part: Any) -> int:
        return (part and getattr(part, field)) or 0

    def buffer_of(offer: Any, terms: Any) -> int:
        is_offered = offer is not None and getattr(offer, field) is not None
        return amount(terms.buffer) if is_offered else 0

    published = amount(record.mid if tier == "mid" else record.batch)
    mid_buffer = buffer_of(record.mid, record.mid_terms)
    buffer = mid_buffer if tier == "mid" else buffer_of(record.batch, record.batch_terms)
    if age > max(record.strategy.degrade_time_minutes * 60, 2 * record.window_seconds):
        return 0
    if age < 1.25 * record.window_seconds:
        return published + buffer
    if age < max(stale, 2 * record.window_seconds):
        return published
    if tier == "mid":
        return min(published, amount(record.mid_lower_bound))
    peak, terms = record.mid_terms.prod_peak, record.batch_terms
    if peak.cpu_millicores is None or peak.memory_bytes is None:
        return 0
    mid = amount(record.mid) + mid_buffer
    taken = amount(terms.margin) + amount(terms.outside) + amount(peak) + mid + buffer
    return min(published, max(amount(terms.capacity) - taken, 0))


def judge_all(
    world: World, names: Iterable[str], pod: CountedPod, now: float, stale: float
) -> dict[str, Judgement]:
    """Judge and score these nodes; all nodes without records get the same result."""
    nothing = judge(world, "", pod, now, stale)
    result = {
        name: judge(world, name, pod, now, stale) if world.knows(name) else nothing
        for name in names
    }
    lowest: dict[str, int] = {}
    for node, item in result.items():
        for name, share in item.shares.items():
            if item.is_scored and item.is_known[name] and _room(world, node, name) > 0:
                lowest[name] = min(share, lowest.get(name, 100))
    scored = {node: item.capped(lowest) for node, item in result.items()}
    most = min((item.score for item in scored.values() if item.is_certain), default=100)
    return {
        node: item if item.is_certain else item._replace(score=min(item.score, most))
        for node, item in scored.items()
    }


class Scores(NamedTuple):
    """Scores of nodes, in their order: `percent` of 0 to 100, and the `steps` of the answer."""

    percent: list[int]
    steps: list[int]

    @property
    def best(self) -> int | None:
        return self.percent.index(max(self.percent)) if self.percent else None


def scores(world: World, names: Sequence[str], pod: CountedPod, now: float, stale: float) -> Scores:
    """The score of each node, with a single best node; by requests where no usage is known."""
    result = judge_all(world, names, pod, now, stale)
    percent = [result[name].score for name in names]
    if not any(item.is_scored for item in result.values()):
        percent = [_fit(world, name, pod) for name in names]
    steps = [score // 10 for score in percent]
    if steps:
        first = percent.index(max(percent))
        steps = [
            score - 1 if place != first and score == steps[first] > 0 else score
            for place, score in enumerate(steps)
        ]
    return Scores(percent, steps)


def _fit(world: World, node: str, pod: CountedPod) -> int:
    shares = []
    for name in RESOURCES:
        have = _room(world, node, name)
        estimated = sum(world.estimate(item)[name] for item in world.on(node))
        taken = max(world.asked(node, name, ()), estimated)
        taken += max(world.counted(pod)[f"request:{name}"], world.estimate(pod)[name])
        if have <= 0 or taken > have:
            return 0
        shares.append(taken * 100 // have)
    return sum(shares) // 2


def preempt(
    world: World, victims: Mapping[str, Sequence[str]], pod: CountedPod, now: float, stale: float
) -> list[str]:
    """The nodes on which evicting these pods makes room, reduced to the cheapest."""
    ranks = {"free": 0, "batch": 1, "mid": 2}
    known = {item.uid: item.pod_class for item in world.pods.values() if item.phase not in ENDED}
    dear = {
        node: max((ranks.get(known.get(uid, ""), 3) for uid in uids), default=0)
        for node, uids in victims.items()
        if judge(world, node, pod, now, stale, uids).passes
    }
    return [node for node, rank in dear.items() if rank == min(dear.values())]


def _used(state: NodeStateRecord | None) -> dict[str, int | None]:
    if state is None:
        return dict.fromkeys(RESOURCES)
    result = {"cpu": state.usage.cpu_cores, "memory": state.usage.memory_bytes}
    return {
        name: int(value * SCALE[name]) if value is not None and 0 <= value <= 2**43 else None
        for name, value in result.items()
    }


def _room(world: World, node: str, resource: str) -> int:
    record = world.nodes.get(node)
    if record is not None:
        amount = {
            "cpu": record.allocatable.cpu_millicores, "memory": record.allocatable.memory_bytes
        }[resource]  # fmt: skip
        if amount is not None:
            return _whole(amount)
    state = world.states.get(node)
    for usage in (state.allocatable, state.capacity) if state else ():
        value = {"cpu": usage.cpu_cores, "memory": usage.memory_bytes}[resource]
        if value is not None:
            return _whole(value * SCALE[resource])
    return 0


def _whole(amount: float) -> int:
    return round(amount) if 0 < amount <= 2**53 else 0


def _is_new(world: World, node: str, now: float) -> bool:
    record = world.nodes.get(node)
    is_young = all(_since(pod) > now - 300 for pod in world.on(node))
    return bool(record and record.allocatable.cpu_millicores is not None and is_young)


def _since(pod: CountedPod) -> float:
    return parse_time(pod.scheduled_at) if pod.scheduled_at else 0.0


def _in_flight(
    world: World, node: str, state: NodeStateRecord | None, evicted: Collection[str]
) -> dict[str, int]:
    total = dict.fromkeys(RESOURCES, 0)
    for pod in (item for item in world.on(node) if item.uid not in evicted):
        for name, amount in _missing(world, pod, state).items():
            total[name] += amount
    return total


def _missing(world: World, pod: CountedPod, state: NodeStateRecord | None) -> dict[str, int]:
    expected = world.estimate(pod)
    if state is None:
        return expected
    began = parse_time(state.as_of) - state.window_seconds
    young = state.young_pods.get(pod.cgroup_uid)
    if young is not None:
        seen = {"cpu": (young.cpu_cores or 0) * 1000, "memory": young.memory_bytes or 0}
        missing = {name: max(expected[name] - round(seen[name]), 0) for name in RESOURCES}
        return missing if _since(pod) > began else dict.fromkeys(RESOURCES, 0)
    if pod.phase not in ("Pending", "") and _since(pod) <= began:
        return dict.fromkeys(RESOURCES, 0)
    return expected


def newest(states: Iterable[NodeStateRecord]) -> dict[str, NodeStateRecord]:
    """The state with the highest offset of each node, the later of equal ones."""
    result: dict[str, NodeStateRecord] = {}
    for state in states:
        if state.node not in result or state.offset >= result[state.node].offset:
            result[state.node] = state
    return result
