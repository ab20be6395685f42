"""What should leave a node now, by its policy and its usage.

A task needs a valid policy and all of its inputs: nothing leaves while usage, capacity or an offer
is unknown. CPU usage counts as the smaller of the window's mean and the present value, so that a
short peak evicts nothing.
"""

from collections.abc import Collection, Iterator
from typing import Final

from pipeline.processors.node_qos.be_cpu_satisfaction import (
    BestEffortCpu,
    limit_millicores,
    release_millicores,
    remaining_millicores,
    satisfaction_rule,
)
from pipeline.processors.node_qos.eviction_victims import (
    EvictionFeature,
    EvictionTask,
    Measure,
    amount,
)
from pipeline.processors.node_qos.mean_window import MeanWindow
from pipeline.processors.node_qos.node_state import BEST_EFFORT, NodeState
from pipeline.processors.node_qos.release_amounts import (
    Marks,
    allocatable_marks,
    request_release,
    usage_marks,
    usage_release,
)
from pipeline.processors.slo.nodeslo import CpuEvictPolicy, ThresholdStrategy

_WINDOW_SECONDS: Final = 2
"""Without `cpuEvictTimeWindowSeconds`: twice the interval of samples, as with Koordinator."""
_HIGHEST_MID_PRIORITY: Final = 7999


class EvictionTasks:
    """The tasks of a node, with the windows of CPU usage that they need."""

    def __init__(self) -> None:
        self._node_cpu, self._best_effort = MeanWindow(), MeanWindow()
        self._policy: CpuEvictPolicy | None = None

    def of(
        self, state: NodeState, begun: Collection[EvictionFeature] = ()
    ) -> Iterator[EvictionTask]:
        """Yield the tasks of all features, in Koordinator's order: CPU, then memory. A task may
        release nothing; the features without a task are those whose inputs are not known.

        A feature in `begun` has asked pods to leave that are still there. It goes on down to the
        lower mark, but chooses no other pods until the threshold is reached again.
        """
        slo = state.slo
        thresholds = None if slo is None else slo.resource_used_threshold_with_be
        if thresholds is None or not thresholds.enable:
            self._node_cpu, self._best_effort = MeanWindow(), MeanWindow()
            return
        yield from self._best_effort_cpu(state, thresholds, begun)
        yield from _cpu_allocatable(state, thresholds, begun)
        yield from self._cpu(state, thresholds, begun)
        yield from _memory(state, thresholds, begun, EvictionFeature.BE_MEMORY, None)
        yield from _memory_allocatable(state, thresholds, begun)
        highest = thresholds.evict_enabled_priority_threshold
        if highest is not None:
            yield from _memory(state, thresholds, begun, EvictionFeature.MEMORY, highest)

    def _best_effort_cpu(
        self, state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature]
    ) -> Iterator[EvictionTask]:
        if thresholds.cpu_evict_policy != self._policy:
            # Limits of another policy say nothing about this one.
            self._policy, self._best_effort = thresholds.cpu_evict_policy, MeanWindow()
        current = best_effort_cpu(state, self._policy)
        if current is None:
            return
        seconds = thresholds.cpu_evict_time_window_seconds or _WINDOW_SECONDS
        self._best_effort.add(state.at, current, seconds)
        rule, mean = satisfaction_rule(thresholds), self._best_effort.mean(seconds)
        if rule is None:
            return
        feature, limit, request = EvictionFeature.BE_CPU, *current[::2]
        why = (
            f"best-effort pods may use {limit}m of CPU and request {request}m; "
            f"{rule.lower_percent}% or less of the requests is too little"
        )
        release = 0 if mean is None else release_millicores(rule, BestEffortCpu(*mean), current)
        held = remaining_millicores(rule, current)
        yield from _tasks(feature, Measure.BATCH_CPU, release, held, begun, why)

    def _cpu(
        self, state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature]
    ) -> Iterator[EvictionTask]:
        capacity, highest = (
            state.capacity.cpu_millicores,
            thresholds.evict_enabled_priority_threshold,
        )
        marks = usage_marks(
            thresholds.cpu_evict_threshold_percent, thresholds.cpu_evict_lower_percent
        )
        if state.cpu_cores is None:
            return
        used = int(state.cpu_cores * 1000)
        seconds = thresholds.cpu_evict_time_window_seconds or _WINDOW_SECONDS
        self._node_cpu.add(state.at, (used,), seconds)
        mean = self._node_cpu.mean(seconds)
        if capacity is None or marks is None or highest is None:
            return
        counted = 0 if mean is None else min(used, *mean)
        yield from _tasks(
            EvictionFeature.CPU,
            Measure.CPU_USED,
            usage_release(counted, capacity, marks),
            usage_release(used, capacity, marks, has_begun=True),
            begun,
            _usage_text("CPU", used, capacity, marks),
            highest,
        )


def _memory(
    state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature],
    feature: EvictionFeature, highest: int | None,
) -> Iterator[EvictionTask]:  # fmt: skip
    marks = usage_marks(
        thresholds.memory_evict_threshold_percent, thresholds.memory_evict_lower_percent
    )
    capacity = state.capacity.memory_bytes
    if state.memory_bytes is None or capacity is None or marks is None:
        return
    used = int(state.memory_bytes)
    yield from _tasks(
        feature,
        Measure.MEMORY_USED,
        usage_release(used, capacity, marks),
        usage_release(used, capacity, marks, has_begun=True),
        begun,
        _usage_text("memory", used, capacity, marks),
        highest,
    )


def _cpu_allocatable(
    state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature]
) -> Iterator[EvictionTask]:
    marks = allocatable_marks(
        thresholds.cpu_allocatable_evict_threshold_percent,
        thresholds.cpu_allocatable_evict_lower_percent,
    )
    offers = {
        Measure.BATCH_CPU: state.offered_batch.cpu_millicores,
        Measure.MID_CPU: state.offered_mid.cpu_millicores,
    }
    return _allocatable(state, thresholds, begun, EvictionFeature.CPU_ALLOCATABLE, marks, offers)


def _memory_allocatable(
    state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature]
) -> Iterator[EvictionTask]:
    marks = allocatable_marks(
        thresholds.memory_allocatable_evict_threshold_percent,
        thresholds.memory_allocatable_evict_lower_percent,
    )
    offers = {
        Measure.BATCH_MEMORY: state.offered_batch.memory_bytes,
        Measure.MID_MEMORY: state.offered_mid.memory_bytes,
    }
    return _allocatable(state, thresholds, begun, EvictionFeature.MEMORY_ALLOCATABLE, marks, offers)


def _allocatable(
    state: NodeState, thresholds: ThresholdStrategy, begun: Collection[EvictionFeature],
    feature: EvictionFeature, marks: Marks | None, offers: dict[Measure, int | None],
) -> Iterator[EvictionTask]:  # fmt: skip
    """Tasks for what is offered of Batch and Mid. CPU and memory of Prod are none of them: no pod
    that may leave releases requests of these."""
    highest = thresholds.allocatable_evict_priority_threshold
    if marks is None or highest is None or highest > _HIGHEST_MID_PRIORITY:
        return
    pods = [
        pod for pod in state.listed_pods()
        if (pod.priority or 0) <= highest and pod.phase in ("Pending", "Running")
    ]  # fmt: skip
    for measure, offered in offers.items():
        if offered is None:
            continue
        requested = sum(amount(pod, measure) or 0 for pod in pods)
        yield from _tasks(
            feature,
            measure,
            request_release(requested, offered, marks),
            request_release(requested, offered, marks, has_begun=True),
            begun,
            f"pods request {requested} of {measure} and {offered} are offered; "
            f"the threshold is {marks.threshold_percent}%",
            highest,
        )


def _tasks(
    feature: EvictionFeature, measure: Measure, release: int, held: int,
    begun: Collection[EvictionFeature], why: str, highest: int | None = None,
) -> Iterator[EvictionTask]:  # fmt: skip
    """The task of a feature that releases so much, or goes on with what is `held`."""
    goes_on = release <= 0 and feature in begun
    amount = held if goes_on else release
    yield EvictionTask(feature, measure, amount, why, highest, may_choose=not goes_on)


def best_effort_cpu(state: NodeState, policy: CpuEvictPolicy | None) -> BestEffortCpu | None:
    """What best-effort pods may use by a policy, use and request now; None if a part is unknown."""
    offered = state.offered_batch.cpu_millicores
    limit = limit_millicores(policy, state.best_effort_limit_millicores, offered)
    usage = [pod.cpu_cores for pod in state.pods if pod.kube_qos == BEST_EFFORT]
    known = [cores for cores in usage if cores is not None]
    if limit is None or len(known) < len(usage):
        return None
    requests = (
        pod.batch.cpu_millicores or 0 for pod in state.listed_pods() if pod.qos_label == "BE"
    )
    return BestEffortCpu(limit, int(sum(known) * 1000), sum(requests))


def _usage_text(resource: str, used: int, capacity: int, marks: Marks) -> str:
    percent = 100 * used / max(capacity, 1)
    return (
        f"{resource} usage is {used} of {capacity} ({percent:.1f}%), "
        f"the threshold is {marks.threshold_percent}%"
    )
