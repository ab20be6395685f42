"""Memory QoS: memory that is protected from reclaim, and where reclaim and throttling begin.

Values and defaults are Koordinator's, with two differences. A class that is switched off gets back
what its cgroups had before, instead of neutral values. And `memory.oom.group` is not written to
directories of QoS classes, where it would let the kernel kill all pods of a class at once.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import ContainerState, KubeQos, NodeState, PodState
from pipeline.processors.node_qos.page_cache_limit import page_cache_limit
from pipeline.processors.node_qos.pod_annotations import read_annotation
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.slo_defaults import QOS
from pipeline.processors.slo.nodeslo import MemoryQos, QosStrategy

ANNOTATION: Final = "koordinator.sh/memoryQOS"
PAGE_BYTES: Final = 4096

_CLASSES: Final = {
    "LSE": "lsr_class", "LSR": "lsr_class", "LS": "ls_class", "BE": "be_class",
    "SYSTEM": "system_class",
}  # fmt: skip
_DEFAULT_CLASS: Final[Mapping[KubeQos, str]] = {
    "Guaranteed": "lsr_class", "Burstable": "ls_class", "BestEffort": "be_class",
}  # fmt: skip
_DONE: Final = ("Succeeded", "Failed")


_WHY: Final = "memory QoS"
_NO_RULES: Final = MemoryQos()


class PodMemoryQos(MemoryQos, frozen=True, kw_only=True):
    """The annotation. Its policy chooses the rules to start from: `auto` the defaults of the class,
    `default` those of the node. The other fields override these. With `none` the pod has no rules
    and the other fields are ignored."""

    policy: Literal["", "none", "auto", "default"] | None = None


class _Amounts(NamedTuple):
    request_bytes: int
    limit_bytes: int | None


class MemoryProtection:
    """Protect, throttle and reclaim memory of containers, pods and QoS directories."""

    name: Final = "memory_qos"
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        if state.slo is None or (strategy := state.slo.resource_qos_strategy) is None:
            return held(former, self.name)
        claims: list[Claim] = []
        sums = dict[Place, int]()
        for pod in state.pods:
            if not pod.listed:
                protection = _numbers(former, pod.path, (Knob.MEMORY_MIN, Knob.MEMORY_LOW))
                _add(sums, _directories(state, pod), protection)
                continue
            rules = pod_rules(strategy, pod)
            if rules == _NO_RULES or pod.phase in _DONE:
                continue
            amounts = _amounts(pod, pod)
            claims += self._claims(pod.path, _pod_values(amounts, rules))
            for container in pod.containers:
                stated = _container_values(
                    _amounts(pod, container), rules, state.allocatable.memory_bytes
                )
                if rules.throttling_percent and Knob.MEMORY_HIGH not in stated:
                    stated = {**stated, **_numbers(former, container.path, (Knob.MEMORY_HIGH,))}
                claims += self._claims(container.path, stated)
            protection = _protection(rules, amounts.request_bytes)
            _add(sums, _directories(state, pod), protection)
        claims += [Claim(place, amount, self.name, _WHY) for place, amount in sums.items()]
        for path in {place.path for place in sums}:
            claims += self._claims(path, _class_values(state, strategy, path))
        return claims + held(former, self.name, {p.path for p in state.pods if not p.listed})

    def _claims(self, path: str, values: Mapping[Knob, int]) -> list[Claim]:
        return [Claim(Place(path, knob), value, self.name, _WHY) for knob, value in values.items()]


def pod_rules(strategy: QosStrategy, pod: PodState) -> MemoryQos:
    """The rules of a pod, by its class and its annotation; all fields None if it has none."""
    own = read_annotation(pod.annotations, ANNOTATION, PodMemoryQos)
    name = _CLASSES.get(pod.qos, _DEFAULT_CLASS[pod.kube_qos])
    return _pod_rules(_class_rules(strategy, name), name, own)


def _class_rules(strategy: QosStrategy, name: str) -> MemoryQos:
    rules = getattr(strategy, name)
    memory: MemoryQos | None = rules and rules.memory_qos
    return memory if memory and memory.enable else _NO_RULES


@lru_cache(maxsize=512)
def _pod_rules(of_node: MemoryQos, class_name: str, own: PodMemoryQos | None) -> MemoryQos:
    if own is None:
        base, overlay = of_node, _NO_RULES
    elif own.policy == "none":
        base, overlay = _NO_RULES, _NO_RULES
    elif own.policy == "auto":
        base, overlay = getattr(QOS, class_name).memory_qos, own
    else:
        base, overlay = of_node, own
    return merge(merge(_NO_RULES, base), overlay)


def _amounts(pod: PodState, part: PodState | ContainerState) -> _Amounts:
    """Memory that a pod or one of its containers states, of the tier that the pod runs on."""
    if pod.qos == "BE":
        requests, limits = part.batch, part.batch_limits
    elif pod.pod_class == "mid" and pod.mid.memory_bytes:
        requests, limits = part.mid, part.mid_limits
    else:
        requests = part.requests
        limits = part.cgroup_limits if isinstance(part, PodState) else part.limits
    # To Kubernetes a limit of 0 is no limit.
    return _Amounts(requests.memory_bytes or 0, limits.memory_bytes or None)


# Pods of a workload state the same.
@lru_cache(maxsize=1024)
def _pod_values(amounts: _Amounts, rules: MemoryQos) -> Mapping[Knob, int]:
    cache = page_cache_limit(rules, amounts.limit_bytes)
    return _stated(
        {
            **_lifted(_protection(rules, amounts.request_bytes)),
            **_reclaim(rules),
            Knob.PAGE_CACHE_ENABLE: cache.enable,
            Knob.PAGE_CACHE_SIZE: cache.size_bytes,
            Knob.PAGE_CACHE_SYNC: cache.sync,
        }
    )


@lru_cache(maxsize=1024)
def _container_values(
    amounts: _Amounts, rules: MemoryQos, allocatable_bytes: int | None
) -> Mapping[Knob, int]:
    protection = _lifted(_protection(rules, amounts.request_bytes))
    high = _high_bytes(rules, amounts, allocatable_bytes)
    if high is not None:
        high = max(high, protection.get(Knob.MEMORY_MIN, 0))
    return _stated({**protection, **_reclaim(rules), Knob.MEMORY_HIGH: high})


def _protection(rules: MemoryQos, request_bytes: int) -> dict[Knob, int]:
    percents = {
        Knob.MEMORY_MIN: rules.min_limit_percent,
        Knob.MEMORY_LOW: rules.low_limit_percent,
    }
    return {k: request_bytes * p // 100 for k, p in percents.items() if p is not None}


def _lifted(protection: dict[Knob, int]) -> dict[Knob, int]:
    """With `memory.low` at least `memory.min`, unless it is 0."""
    least, low = (protection.get(knob, 0) for knob in (Knob.MEMORY_MIN, Knob.MEMORY_LOW))
    return protection | ({Knob.MEMORY_LOW: least} if 0 < low < least else {})


def _high_bytes(rules: MemoryQos, amounts: _Amounts, allocatable: int | None) -> int | None:
    """Where a container is throttled; the node's allocatable stands in for a missing limit. None
    if nothing is configured, or if that is unknown."""
    if not rules.throttling_percent:
        return None if rules.throttling_percent is None else UNLIMITED
    limit = allocatable if amounts.limit_bytes is None else amounts.limit_bytes
    if limit is None:
        return None
    above = (limit - amounts.request_bytes) * rules.throttling_percent // 100
    return (amounts.request_bytes + above) // PAGE_BYTES * PAGE_BYTES


def _reclaim(rules: MemoryQos) -> dict[Knob, int | None]:
    return {
        Knob.MEMORY_WMARK_RATIO: rules.wmark_ratio,
        Knob.MEMORY_WMARK_SCALE: rules.wmark_scale_permill,
        Knob.MEMORY_WMARK_MIN_ADJ: rules.wmark_min_adj,
        Knob.MEMORY_PRIORITY: rules.priority,
        Knob.MEMORY_PRIORITY_OOM: rules.priority_enable,
        Knob.MEMORY_OOM_GROUP: rules.oom_kill_group,
    }


def _directories(state: NodeState, pod: PodState) -> list[str]:
    """Directories above a pod: that of Guaranteed is the root of all."""
    below = {"Burstable": state.burstable_path, "BestEffort": state.best_effort_path}
    return [state.kubepods_path, *(path for qos, path in below.items() if qos == pod.kube_qos)]


def _class_values(state: NodeState, strategy: QosStrategy, path: str) -> Mapping[Knob, int]:
    """Priorities of the directory of a class."""
    names = {state.burstable_path: "ls_class", state.best_effort_path: "be_class"}
    rules = _class_rules(strategy, names.get(path, "lsr_class"))
    return _stated(
        {
            Knob.MEMORY_PRIORITY: rules.priority,
            Knob.MEMORY_PRIORITY_OOM: rules.priority_enable,
        }
    )


def _add(sums: dict[Place, int], paths: Iterable[str], protection: Mapping[Knob, int]) -> None:
    for path in paths:
        for knob, amount in protection.items():
            place = Place(path, knob)
            sums[place] = min(sums.get(place, 0) + amount, UNLIMITED)


def _numbers(former: Mapping[Place, Value], path: str, knobs: Iterable[Knob]) -> dict[Knob, int]:
    """The former values of a cgroup."""
    values = ((knob, former.get(Place(path, knob))) for knob in knobs)
    return {knob: value for knob, value in values if isinstance(value, int)}


def _stated(values: Mapping[Knob, int | None]) -> dict[Knob, int]:
    return {knob: value for knob, value in values.items() if value is not None}
