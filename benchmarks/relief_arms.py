"""Ways to relieve hot nodes, to be compared on the same simulated cluster.

`Springtide` runs the product's planner. The others are models of what other projects do, written
from their documented behaviour: Koordinator's LowNodeLoad, and LowNodeUtilization of
kubernetes-sigs/descheduler with usage from the metrics API. All of them see a cluster in which
every pod is Prod, of one priority and QoS, and which has no thresholds for usage of Prod.
"""

import asyncio
import math
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

import numpy as np

from actuators.planner.relief_policy import ReliefPolicy
from actuators.planner.relief_rounds import Published, ReliefRounds
from benchmarks.simulated_cluster import HIGH, LOW, RESOURCES, Cluster, Measured
from benchmarks.usage_series import WINDOW_SECONDS
from pipeline.clock import ManualClock
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.move_memory import MoveMemory
from pipeline.processors.eviction.migration_policy import MigrationLimits
from pipeline.table import FeedState
from pipeline.table.node_pods import NodePods
from pipeline.times import format_time, parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord

_HIGH: Final = np.array([HIGH[name] for name in RESOURCES])
_LOW: Final = np.array([LOW[name] for name in RESOURCES])
LIMITS: Final = MigrationLimits()
"""The defaults of Koordinator's migration controller, which are also those of the evictor."""


_USUAL: Final = ReliefPolicy()


class Arm(Protocol):
    """Evicts pods after each window, and returns the nodes that it holds for hot, (nodes,)."""

    def act(self, cluster: Cluster, measured: Measured) -> BoolArray: ...


class Nothing:
    """Evicts nothing."""

    def act(self, cluster: Cluster, measured: Measured) -> BoolArray:
        return np.zeros(len(cluster.names), np.bool_)


# -- Springtide


class Springtide:
    """The product's planner, in rounds after each window; an evictor carries out its plans.

    Plans go to the evictor, and evictions to the planner's memory and the extender, as records
    without Kafka.
    """

    def __init__(self, policy: ReliefPolicy = _USUAL) -> None:
        self._policy = policy
        self._memory = MoveMemory()
        self._plans: list[EvictionPlanRecord] = []
        self._rounds: ReliefRounds | None = None
        self._clock = ManualClock(0.0)

    def act(self, cluster: Cluster, measured: Measured) -> BoolArray:
        asyncio.run(self._step(cluster))
        self._execute(cluster)
        states = [cluster.table.snapshot(name).state for name in cluster.names]
        return np.array([state is not None and bool(state.alerts) for state in states])

    async def _step(self, cluster: Cluster) -> None:
        await self._clock.advance(cluster.now - self._clock.now())
        if self._rounds is None:
            self._rounds = self._start(cluster)
        await self._rounds.step()

    def _start(self, cluster: Cluster) -> ReliefRounds:
        async def read_pods(nodes: Collection[str], span_seconds: float) -> NodePods:
            records = [pod.record for pod in cluster.pods.values() if pod.node in nodes]
            return NodePods(records, cluster.table.pod_history)

        async def publish(record: Published) -> None:
            if isinstance(record, EvictionPlanRecord):
                self._plans.append(record)

        state = FeedState(caught_up=True, connected=True, message="following")
        moves = FeedState(caught_up=True, connected=True, complete_until=math.inf)
        rounds = ReliefRounds(
            cluster.table, state, moves, cluster.decisions, self._memory, self._clock, read_pods,
            publish, lambda: True,
        )  # fmt: skip
        rounds.policy = self._policy
        return rounds

    def _execute(self, cluster: Cluster) -> None:
        """Evict the pods of plans in their order, as far as limits allow."""
        now = cluster.now
        valid = [plan for plan in self._plans if now < parse_time(plan.valid_until)]
        self._plans = []
        for plan in valid:
            waiting = False
            for pod in plan.pods:
                if pod.uid not in cluster.pods or cluster.is_leaving(pod.uid):
                    continue
                if not cluster.may_evict(pod.uid, LIMITS, now):
                    waiting = True
                    continue
                cluster.evict(pod.uid, now)
                action = ActionRecord(
                    node=plan.node, at=format_time(now), actuator="evictor", action="evict",
                    outcome="done", why=plan.why, before={f"{pod.namespace}/{pod.name}": pod.uid},
                    plan=plan.id, workload=pod.workload,
                )  # fmt: skip
                self._memory.take_action(action, now)
                cluster.left.take(encode_json(action), now, now)
            if waiting:
                self._plans.append(plan)


# -- Koordinator

_CYCLE_SECONDS: Final = 10
_CACHE_SECONDS: Final = 300.0
_ANOMALY_SECONDS: Final = 60.0
_ABNORMALITIES: Final = 5
_EXPIRATION_SECONDS: Final = 180.0
_REPORT_WINDOWS: Final = 60 // WINDOW_SECONDS
_AVERAGED_WINDOWS: Final = 300 // WINDOW_SECONDS


class _Report(NamedTuple):
    """A NodeMetric: its time, average usage of the system (2,) and of each pod (2,)."""

    at: float
    system: FloatArray
    pods: dict[str, FloatArray]

    @property
    def usage(self) -> FloatArray:
        return self.system + sum(self.pods.values(), np.zeros(2))


class _Detector:
    """The anomaly detector of a node. A run opens when it is longer than the number configured,
    quiet cycles do not end it, and an anomaly ends by itself."""

    def __init__(self) -> None:
        self.run = 0
        self.opened: float | None = None
        self.marked = -np.inf

    def mark_abnormal(self, now: float) -> bool:
        """Whether this is an anomaly now."""
        if now - self.marked > _CACHE_SECONDS or (
            self.opened is not None and now > self.opened + _ANOMALY_SECONDS
        ):
            self.reset()
        self.marked = now
        if self.opened is None:
            self.run += 1
            if self.run > _ABNORMALITIES:
                self.opened, self.run = now, 0
        return self.opened is not None

    def reset(self) -> None:
        self.run, self.opened = 0, None


class LowNodeLoad:
    """Koordinator's LowNodeLoad every 10 s, with NodeMetrics of every minute that average five.

    Targets are booked for all candidates before these are sorted, in the order of a listing; pods
    leave until the node is below its limit or the targets' room of a resource is used up. The
    limits are those of its migration controller with their defaults.
    """

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng([seed, 2])
        self._system: deque[FloatArray] = deque(maxlen=_AVERAGED_WINDOWS)
        self._usage: dict[str, deque[FloatArray]] = {}
        self._reports: dict[str, _Report] = {}
        self._detectors: dict[str, _Detector] = {}

    def act(self, cluster: Cluster, measured: Measured) -> BoolArray:
        self._report(cluster, measured)
        confirmed: set[str] = set()
        for second in range(0, WINDOW_SECONDS, _CYCLE_SECONDS):
            confirmed |= self._cycle(cluster, cluster.now + second)
        return np.array([name in confirmed for name in cluster.names])

    def _report(self, cluster: Cluster, measured: Measured) -> None:
        """Every node averages what it measures; some reports are lost."""
        self._system.append(measured.system)
        listed = {pod.record.uid for pod in measured.pods}
        self._usage = {uid: usage for uid, usage in self._usage.items() if uid in listed}
        by_node: dict[int, dict[str, FloatArray]] = {}
        for pod, node, usage in zip(
            measured.pods, measured.node.tolist(), measured.usage, strict=True
        ):
            recent = self._usage.setdefault(pod.record.uid, deque(maxlen=_AVERAGED_WINDOWS))
            recent.append(usage)
            known = [each for each in recent if not np.isnan(each).any()]
            if known:
                by_node.setdefault(node, {})[pod.record.uid] = np.mean(known, axis=0)
        if cluster.window % _REPORT_WINDOWS:
            return
        for number in np.flatnonzero(~measured.lost).tolist():
            system = np.mean([each[number] for each in self._system], axis=0)
            self._reports[cluster.names[number]] = _Report(
                measured.end, system, by_node.get(number, {})
            )

    def _cycle(self, cluster: Cluster, now: float) -> set[str]:
        """One cycle; returns the nodes whose anomaly is confirmed."""
        capacity = cluster.load.capacity
        high, low = np.trunc(_HIGH * 0.01 * capacity), np.trunc(_LOW * 0.01 * capacity)
        usage = {
            name: report.usage for name, report in self._reports.items()
            if now - report.at < _EXPIRATION_SECONDS
        }  # fmt: skip
        is_low = [name for name, used in usage.items() if (used <= low).all()]
        is_high = [name for name, used in usage.items() if (used > high).any()]
        detectors = self._detectors
        confirmed = [
            name for name in is_high
            if detectors.setdefault(name, _Detector()).mark_abnormal(now)
        ]  # fmt: skip
        if not confirmed:
            return set()
        for name in is_low:
            if name in detectors:
                detectors[name].reset()
        if is_low:
            self._balance(cluster, now, usage, confirmed, is_low, high)
        return {*confirmed}

    def _balance(
        self, cluster: Cluster, now: float, usage: dict[str, FloatArray], confirmed: list[str],
        targets: list[str], high: FloatArray,
    ) -> None:  # fmt: skip
        capacity = cluster.load.capacity
        budget = np.sum([high - usage[name] for name in targets], axis=0)
        self._chance.shuffle(targets)
        booked = {name: usage[name].copy() for name in targets}
        free = {name: capacity.copy() for name in targets}
        for pod in cluster.pods.values():
            if pod.node in free:
                free[pod.node] -= _requests(cluster, pod.record.uid)
        scores = {
            name: np.floor(np.minimum(usage[name], capacity) * 1000 / capacity).sum() // 2
            for name in confirmed
        }
        for name in sorted(confirmed, key=lambda each: -scores[each]):
            metrics, excess = self._reports[name].pods, usage[name] - high
            candidates = []
            for uid in self._listing(cluster, name):
                if uid not in metrics or not cluster.may_evict(uid, LIMITS, now):
                    continue
                wanted = _requests(cluster, uid)
                for target in targets:
                    after = booked[target] + metrics[uid]
                    if (wanted <= free[target]).all() and (after <= high).all():
                        booked[target] = after
                        candidates.append(uid)
                        break
            candidates.sort(key=lambda uid: -_fit_score(metrics[uid], excess))
            for uid in candidates:
                if not (usage[name] > high).any():
                    self._detectors[name].reset()
                    break
                if (budget <= 0).any():
                    break
                if cluster.may_evict(uid, LIMITS, now):
                    cluster.evict(uid, now)
                    budget = budget - metrics[uid]
                    usage[name] = usage[name] - metrics[uid]

    def _listing(self, cluster: Cluster, name: str) -> list[str]:
        """The pods of a node in some order, as an informer lists them."""
        uids = [uid for uid, pod in cluster.pods.items() if pod.node == name]
        self._chance.shuffle(uids)
        return uids


def _fit_score(usage: FloatArray, excess: FloatArray) -> float:
    """How well a pod covers what its node uses above the limits."""
    over = excess > 0
    ratio = usage[over] / excess[over]
    scores = np.where(ratio < 1, ratio, 1 + 1 / np.maximum(ratio, 1))
    return float(scores.sum() / max(over.sum(), 1))


def _requests(cluster: Cluster, uid: str) -> FloatArray:
    requests = cluster.pods[uid].record.requests
    return np.array([requests.cpu_millicores or 0, requests.memory_bytes or 0], np.float64)


# -- kubernetes-sigs/descheduler

_INTERVAL_WINDOWS: Final = 300 // WINDOW_SECONDS
_POLLS: Final = WINDOW_SECONDS // 5


class LowNodeUtilization:
    """LowNodeUtilization every 5 minutes, on usage that is polled every 5 s and smoothed.

    Pods leave in the order of a listing, without a look at their targets or a limit, until the node
    is below its threshold or the room of all targets is used up.
    """

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng([seed, 3])
        self._smoothed: FloatArray | None = None

    def act(self, cluster: Cluster, measured: Measured) -> BoolArray:
        before = self._smoothed
        smoothed = measured.node_usage if before is None else before
        for _ in range(_POLLS):
            # A sample that is missing keeps the value.
            polled = np.rint(0.9 * smoothed + 0.1 * measured.node_usage)
            smoothed = np.where(measured.lost[:, None], smoothed, polled)
        self._smoothed = smoothed
        if cluster.window % _INTERVAL_WINDOWS:
            return np.zeros(len(cluster.names), np.bool_)
        percent = 100.0 * smoothed / cluster.load.capacity
        is_low: BoolArray = np.logical_and.reduce(percent <= _LOW, axis=1)
        is_hot: BoolArray = np.logical_or.reduce(percent > _HIGH, axis=1) & ~is_low
        if is_low.any() and not is_low.all():
            self._balance(cluster, measured, smoothed, np.flatnonzero(is_hot), is_low)
        return is_hot

    def _balance(
        self, cluster: Cluster, measured: Measured, smoothed: FloatArray, sources: IntArray,
        is_low: BoolArray,
    ) -> None:  # fmt: skip
        capacity = cluster.load.capacity
        high = _HIGH * 0.01 * capacity
        budget = (high - smoothed[is_low]).sum(axis=0)
        # The raw numbers are added, so memory decides.
        for node in sources[np.argsort(-smoothed[sources].sum(axis=1))].tolist():
            used = smoothed[node].copy()
            pods = np.flatnonzero(measured.node == node)
            self._chance.shuffle(pods)
            for index in pods.tolist():
                if not (used > high).any() or (budget <= 0).any():
                    break
                uid = measured.pods[index].record.uid
                if uid not in cluster.pods or cluster.is_leaving(uid):
                    continue
                cluster.evict(uid, cluster.now)
                usage = np.nan_to_num(measured.usage[index])
                used, budget = used - usage, budget - usage
