"""Know when a pod that every node refused may be retried.

kube-scheduler retries a pod that an extender refused when the cluster changes, else after five
minutes. Most reasons disappear without such a change: usage falls, estimates give way to
measurements, a placed pod expires, data become fresh. So refused pods are remembered with the nodes
that refused them, and these are judged again and again, a part at a time. When one of them may take
its pod, a wake-up names that node, and the cluster actuator touches it.

Any change of a Node makes the scheduler retry all pods that were refused before. So one wake-up is
enough for many pods, and after one the pods are given time to be asked about again.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from pipeline.extender import limits
from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.decisions import Decisions
from pipeline.metrics import counter, gauge
from pipeline.processors.scorers.scheduling_hint import read_hint
from pipeline.processors.scorers.scorer import PodDemand
from pipeline.table import Table
from pipeline.table.node_names import joined
from pipeline.times import format_time
from pipeline.topics.pods import PodRecord
from pipeline.topics.wake_ups import WakeUpRecord

WAITING: Final = gauge("extender_waiting_pods", "Pods that every node refused, and that wait.")
WAKE_UPS: Final = counter("extender_wake_ups", "Nodes that may take a waiting pod by now.")


@dataclass(slots=True)
class _Waiting:
    title: str
    asked_at: float
    was_pending: bool = False


@dataclass(slots=True)
class _Group:
    """Pods with the same demand, and the nodes that refused any of them. Nodes before `index` are
    judged again. Wake-ups may follow from `next_at` on, each after `pause_seconds`. The last one,
    unless pods were asked about since, names the node `woken`."""

    demand: PodDemand
    nodes: CandidateNodes
    names_version: int
    asked_at: float
    priority: int
    woken: str | None = None
    pods: dict[str, _Waiting] = field(default_factory=dict)
    index: int = 0
    next_at: float = 0.0
    pause_seconds: float = limits.WAKE_UP_REPEAT_SECONDS


class WaitingPods:
    """The waiting pods of one table. A pod leaves when it is bound, deleted, or passes a filter,
    and if the scheduler has not asked about it for `FORGET_WAITING_SECONDS`."""

    def __init__(self, table: Table, decisions: Decisions) -> None:
        self._table = table
        self._decisions = decisions
        # The longest waiting for its next judgement first.
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()
        self._group_of: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def put(self, pod: PodRecord, nodes: CandidateNodes, demand: PodDemand) -> None:
        """Remember a pod that all of these nodes refused."""
        if not pod.uid or not len(nodes):
            return
        key, now = _group_key(pod, demand), nodes.now
        if self._group_of.get(pod.uid, key) != key:
            self.forget(pod.uid)
        group = self._groups.get(key)
        if group is None:
            priority = pod.priority or 0
            if len(self._groups) >= limits.WAITING_GROUPS and not self._make_room(priority):
                return
            # Not the columns that filter has read, which take a multiple of the memory.
            group = _Group(demand, nodes.read_again(now), 0, now, priority)
            self._groups[key] = group
        else:
            group.nodes, group.woken = self._merged_nodes(group, nodes), None
        group.names_version, group.asked_at, group.index = self._table.names_version, now, 0
        group.next_at, group.pause_seconds = now, limits.WAKE_UP_REPEAT_SECONDS
        group.pods.pop(pod.uid, None)
        group.pods[pod.uid] = _Waiting(f"{pod.namespace}/{pod.name}", now)
        self._group_of[pod.uid] = key
        if len(group.pods) > limits.WAITING_PODS:
            self.forget(next(iter(group.pods)))
        WAITING.set(len(self))

    def forget(self, uid: str) -> None:
        """Remove a pod that does not wait any more; ignore an unknown one."""
        key = self._group_of.pop(uid, None)
        if key is not None:
            group = self._groups[key]
            del group.pods[uid]
            if not group.pods:
                del self._groups[key]
        WAITING.set(len(self))

    def judge(self, now: float) -> WakeUpRecord | None:
        """Judge some nodes of the group that waits longest for it; the wake-up if one of them may
        take a pod of the group. Takes about a millisecond."""
        for key in [*self._groups]:
            group = self._groups[key]
            if group.index == 0:
                self._forget_departed(group, now)
            if not group.pods or now < group.next_at:
                continue
            positions = np.arange(
                group.index, min(group.index + limits.JUDGED_NODES, len(group.nodes))
            )
            nodes = self._nodes(group, now).among(positions)
            refusals = self._decisions.refusals(nodes, group.demand)
            passing = np.flatnonzero(~refusals.is_refused & (nodes.rows >= 0))
            group.index = int(positions[-1]) + 1
            if group.index == len(group.nodes):
                group.index = 0
                self._groups.move_to_end(key)
            if not len(passing):
                return None
            # The roomiest node is not worth another millisecond: the scheduler asks about all.
            return self._wake(group, nodes.names[int(passing[0])], now)
        return None

    def _wake(self, group: _Group, node: str, now: float) -> WakeUpRecord:
        # The change of the Node retries all pods that were refused before it.
        for other in self._groups.values():
            other.next_at = max(other.next_at, now + other.pause_seconds)
        group.woken = node
        group.pause_seconds = min(2 * group.pause_seconds, limits.FORGET_WAITING_SECONDS)
        WAKE_UPS.inc()
        title = next(iter(group.pods.values())).title
        return WakeUpRecord(node=node, at=format_time(now), pod=title)

    def _nodes(self, group: _Group, now: float) -> CandidateNodes:
        if group.names_version == self._table.names_version:
            return group.nodes.read_again(now)
        group.names_version = self._table.names_version
        group.nodes = self._decisions.candidates([*group.nodes.requested], now)
        return group.nodes

    def _merged_nodes(self, group: _Group, nodes: CandidateNodes) -> CandidateNodes:
        """Merge the nodes of a group with those of a new request. Pods of a group may be asked
        about different nodes: their volumes are in different zones, one is nominated to a node, or
        the scheduler offers another part of the nodes each time.

        A woken node that the scheduler does not offer then is refused by the scheduler itself, and
        is removed until it is offered again, else it would cause a wake-up after every question.
        """
        former = self._nodes(group, nodes.now)
        stays = (former.rows >= 0) & ~np.isin(former.rows, nodes.rows)
        if group.woken is not None:
            stays &= former.rows != self._table.lookup([group.woken])[0]
        more = np.flatnonzero(stays)
        if not len(more):
            return nodes.read_again(nodes.now)
        if len(more) + len(nodes) == len(former) and np.isin(nodes.rows, former.rows).all():
            return former
        names = joined(nodes.requested, former.among(more).requested)
        return self._decisions.candidates(names, nodes.now)

    def _make_room(self, priority: int) -> bool:
        """Drop the group of the lowest priority, unless that is higher than this one."""
        key = min(self._groups, key=lambda key: self._groups[key].priority)
        if self._groups[key].priority > priority:
            return False
        for uid in [*self._groups[key].pods]:
            self.forget(uid)
        return True

    def _forget_departed(self, group: _Group, now: float) -> None:
        for uid, pod in [*group.pods.items()]:
            is_pending = uid in self._table.pending
            pod.was_pending |= is_pending
            is_silent = not 0 <= now - pod.asked_at < limits.FORGET_WAITING_SECONDS
            if is_silent or self._table.pods.is_seen(uid) or (pod.was_pending and not is_pending):
                self.forget(uid)


def _group_key(pod: PodRecord, demand: PodDemand) -> Hashable:
    """The key of a pod's group, equal for pods that all filters of the extender and kube-scheduler
    treat alike. Of the annotations filters read only the hint, and those that change an estimate,
    which is in the demand: other annotations differ for each pod of an Indexed Job."""
    hinted = read_hint(pod.annotations).node_names
    rules = (pod.node_selector, pod.affinity, pod.tolerations, hinted)
    amounts = tuple(demand.counted.values())
    return pod.namespace, pod.pod_class, pod.priority, amounts, msgspec.json.encode(rules)
