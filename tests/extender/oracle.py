"""Koordinator's LoadAware with pods in flight, one node after the other in plain Python.

What `Decisions` answers by arrays over all nodes is held against this; it shares no code with it
but the estimate of a pod, which has vectors of its own.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.processors.loadaware.counted import Counting
from pipeline.table.columns import TableNode
from pipeline.times import parse_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pods import CountedPod

RESOURCES = ("cpu", "memory")
SCALE = {"cpu": 1000.0, "memory": 1.0}


class World(NamedTuple):
    """What was told last of each node, and of each pod by UID."""

    states: Mapping[str, NodeStateRecord]
    nodes: Mapping[str, TableNode]
    pods: Mapping[str, CountedPod]
    counting: Counting

    def estimate(self, pod: CountedPod) -> dict[str, int]:
        counted = dict(zip(self.counting.names, self.counting.amounts(pod), strict=True))
        return {name: counted[f"estimate:{name}"] for name in RESOURCES}

    def on(self, node: str) -> list[CountedPod]:
        ended = ("Succeeded", "Failed")
        return [p for p in self.pods.values() if p.node == node and p.phase not in ended]


class Found(NamedTuple):
    refused: bool
    score: int


def judge(world: World, node: str, pod: CountedPod, now: float, stale: float) -> Found:
    """Whether the node is refused by 65 and 95 percent, and its score of 0 to 100."""
    state = world.states.get(node)
    room = {name: _room(world, node, name) for name in RESOURCES}
    used = _used(state)
    known = any(value is not None for value in used.values())
    fresh = state is not None and abs(now - parse_time(state.as_of)) < stale
    if state is None and _is_new(world, node, now):
        used, known, fresh = {"cpu": 0, "memory": 0}, True, True
    added = world.estimate(pod)
    if known:
        delta = _in_flight(world, node, state)
        total = {name: (used[name] or 0) + delta[name] for name in RESOURCES}
    else:
        total = dict.fromkeys(RESOURCES, 0)
        for one in world.on(node):
            for name, amount in world.estimate(one).items():
                total[name] += amount
    refused, shares = False, []
    for name, threshold in (("cpu", 65), ("memory", 95)):
        have, after = room[name], total[name] + added[name]
        if have <= 0:
            shares.append(0)
            continue
        refused |= int(after / have * 100 + 0.5) > threshold
        shares.append(max(have - after, 0) * 100 // have)
    return Found(refused and known and fresh, sum(shares) // 2 if known and fresh else 0)


def _used(state: NodeStateRecord | None) -> dict[str, int | None]:
    if state is None:
        return dict.fromkeys(RESOURCES)
    found = {"cpu": state.usage.cpu_cores, "memory": state.usage.memory_bytes}
    return {
        name: int(value * SCALE[name]) if value is not None and 0 <= value <= 2**43 else None
        for name, value in found.items()
    }


def _room(world: World, node: str, resource: str) -> int:
    said = world.nodes.get(node)
    if said is not None:
        amount = {
            "cpu": said.allocatable.cpu_millicores, "memory": said.allocatable.memory_bytes
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
    since = [_since(pod) for pod in world.on(node)]
    return node in world.nodes and _cpu_known(world, node) and all(at > now - 300 for at in since)


def _cpu_known(world: World, node: str) -> bool:
    return world.nodes[node].allocatable.cpu_millicores is not None


def _since(pod: CountedPod) -> float:
    return parse_time(pod.scheduled_at) if pod.scheduled_at else 0.0


def _in_flight(world: World, node: str, state: NodeStateRecord | None) -> dict[str, int]:
    total = dict.fromkeys(RESOURCES, 0)
    for pod in world.on(node):
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
    if pod.phase != "Pending" and _since(pod) <= began:
        return dict.fromkeys(RESOURCES, 0)
    return expected


def newest(states: Iterable[NodeStateRecord]) -> dict[str, NodeStateRecord]:
    """Of each node the state of the highest offset, the later one of equals."""
    found: dict[str, NodeStateRecord] = {}
    for state in states:
        if state.node not in found or state.offset >= found[state.node].offset:
            found[state.node] = state
    return found
