"""Which pods should leave a node, in which order, until enough is released.

Features, orders and filters are Koordinator's. `is_evictable` is the one rule that keeps Prod out,
whatever a policy says.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from pipeline.processors.node_qos.node_state import PodState

LABEL_EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
LABEL_SUB_PRIORITY: Final = "koordinator.sh/priority"
EVICTION_POLICY: Final = "koordinator.sh/eviction-policy"
EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"

_EVICTABLE_CLASSES: Final = frozenset({"mid", "batch", "free"})
_LOWEST_PROD_PRIORITY: Final = 9000
_NEVER_EVICTED_QOS: Final = frozenset({"LSE", "LSR", "SYSTEM"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")


class EvictionFeature(StrEnum):
    """Why pods are evicted. The values are Koordinator's names, which a pod's eviction policy
    lists."""

    BE_CPU = "BECPUEvict"
    CPU_ALLOCATABLE = "CPUAllocatableEvict"
    CPU = "CPUEvict"
    BE_MEMORY = "BEMemoryEvict"
    MEMORY_ALLOCATABLE = "MemoryAllocatableEvict"
    MEMORY = "MemoryEvict"

    @property
    def setting(self) -> str:
        """The name in settings, metrics and records, such as `be_cpu_evict`."""
        return f"{self.name.lower()}_evict"


_BEST_EFFORT_FEATURES: Final = frozenset({EvictionFeature.BE_CPU, EvictionFeature.BE_MEMORY})


class Measure(StrEnum):
    """What a pod releases when it leaves: usage or requests, in millicores or bytes."""

    CPU_USED = "cpu"
    MEMORY_USED = "memory"
    BATCH_CPU = "batch-cpu"
    BATCH_MEMORY = "batch-memory"
    MID_CPU = "mid-cpu"
    MID_MEMORY = "mid-memory"


class EvictionTask(NamedTuple):
    """So much of `measure` should leave, for the reason `why`.

    `priority_threshold` is the highest priority of pods that may be chosen, None for the features
    of best-effort pods. Without `may_choose` only pods that were asked to leave before count: the
    feature is cooling down, or has begun and needs no more than these.
    """

    feature: EvictionFeature
    measure: Measure
    release: int
    why: str
    priority_threshold: int | None = None
    may_choose: bool = True


class Victim(NamedTuple):
    """A pod that should leave, and the first task that needs it."""

    pod: PodState
    task: EvictionTask


def is_evictable(pod: PodState) -> bool:
    """Whether the node may ever ask for the eviction of a pod, or kill it: it is listed and known
    to be of Mid, Batch or Free.

    A pod of Prod, of an unknown class, of a priority of Prod or above, or with a QoS label of LSE,
    LSR or SYSTEM is never touched, whatever else its labels say.
    """
    return (
        pod.listed
        and pod.pod_class in _EVICTABLE_CLASSES
        and (pod.priority or 0) < _LOWEST_PROD_PRIORITY
        and pod.qos_label not in _NEVER_EVICTED_QOS
    )


def amount(pod: PodState, measure: Measure) -> int | None:
    """What the pod uses or requests; None if that is unknown or not stated."""
    match measure:
        case Measure.CPU_USED:
            return None if pod.cpu_cores is None else int(pod.cpu_cores * 1000)
        case Measure.MEMORY_USED:
            return None if pod.memory_bytes is None else int(pod.memory_bytes)
        case Measure.BATCH_CPU:
            return pod.batch.cpu_millicores
        case Measure.BATCH_MEMORY:
            return pod.batch.memory_bytes
        case Measure.MID_CPU:
            return pod.mid.cpu_millicores
        case Measure.MID_MEMORY:
            return pod.mid.memory_bytes


def victim_order(task: EvictionTask, pods: Iterable[PodState]) -> list[PodState]:
    """The pods that the feature of a task may evict, those first that leave first."""
    # Sorts are stable: of pods that are equal in all else the last name leaves first.
    named = sorted(filter(is_evictable, pods), key=lambda p: (p.name, p.namespace, p.uid))[::-1]
    if task.feature in _BEST_EFFORT_FEATURES:
        candidates = [pod for pod in named if pod.qos_label == "BE"]
        return sorted(candidates, key=lambda pod: (pod.priority or 0, *_by_use(task, pod)))
    candidates = [pod for pod in named if _allows(task, pod)]
    return sorted(
        candidates,
        key=lambda pod: (
            _number(pod.annotations.get(EVICTION_PRIORITY), 0),
            pod.priority or 0,
            _number(pod.labels.get(LABEL_SUB_PRIORITY), pod.priority or 0),
            -(amount(pod, task.measure) or 0),
        ),
    )


def choose_victims(
    tasks: Iterable[EvictionTask], pods: Sequence[PodState], asked: Collection[str], most: int
) -> list[Victim]:
    """The pods that should leave for these tasks, at most `most`.

    A pod that serves several tasks counts for each of them. Pods that are being deleted, and the
    UIDs `asked` to leave before, count first: so a pod that was asked for once is not replaced by
    another because usage changed. A pod whose release is unknown or nothing is not chosen.
    """
    leaving = [pod for pod in pods if pod.deleting]
    staying = [pod for pod in pods if not pod.deleting]
    victims: dict[str, Victim] = {}
    for task in tasks:
        gone = [*leaving, *(victim.pod for victim in victims.values())]
        left = task.release - sum(amount(pod, task.measure) or 0 for pod in gone)
        if left <= 0:
            continue  # the usual case: nothing is sorted
        for pod in sorted(victim_order(task, staying), key=lambda pod: pod.uid not in asked):
            if left <= 0 or len(victims) >= most:
                break
            released = amount(pod, task.measure) or 0
            is_allowed = task.may_choose or pod.uid in asked
            if pod.uid not in victims and is_allowed and released > 0:
                victims[pod.uid] = Victim(pod, task)
                left -= released
    return list(victims.values())


def _by_use(task: EvictionTask, pod: PodState) -> tuple[bool, float]:
    """A sort key: the most used first, unknown usage last. Usage of CPU counts by request."""
    if task.feature is EvictionFeature.BE_MEMORY:
        return pod.memory_bytes is None, -(pod.memory_bytes or 0)
    requested = pod.batch.cpu_millicores or 0
    return pod.cpu_cores is None or not requested, -(pod.cpu_cores or 0) / max(requested, 1)


def _allows(task: EvictionTask, pod: PodState) -> bool:
    """Whether the pod lets itself be evicted by the feature, and the policy allows it, too."""
    threshold = task.priority_threshold
    return (
        pod.phase in ("Pending", "Running")
        and pod.labels.get(LABEL_EVICTION_ENABLED) == "true"
        and threshold is not None
        and (pod.priority or 0) <= threshold
        and amount(pod, task.measure) is not None
        and _lists(pod.annotations.get(EVICTION_POLICY), task.feature)
    )


def _lists(policy: str | None, feature: EvictionFeature) -> bool:
    """Whether a pod's eviction policy has the feature. Without one all are allowed, with an invalid
    one none."""
    if policy is None:
        return True
    try:
        names = json.loads(policy)
    except (ValueError, RecursionError):
        return False
    return isinstance(names, list) and feature.value in names


def _number(text: str | None, otherwise: int) -> int:
    """The 32-bit integer of a label or annotation."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return otherwise
    number = int(text)
    return number if -(2**31) <= number < 2**31 else otherwise
