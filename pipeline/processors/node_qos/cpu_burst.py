"""CPU burst: containers may exceed their CPU limit for a while.

The static burst lets a container use later what it left of its quota (`cpu.max.burst`). The quota
burst raises the quota of a throttled container while the shared CPUs have room. Formulas and
defaults are Koordinator's.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from pipeline.processors.node_qos.burst_limiter import BurstLimiter, first_limiter
from pipeline.processors.node_qos.cgroup_values import (
    UNLIMITED,
    Knob,
    Place,
    Value,
    quota_us_of_millicores,
)
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState
from pipeline.processors.node_qos.normalized_quota import normalized_quota_us
from pipeline.processors.node_qos.pod_annotations import read_annotation
from pipeline.processors.node_qos.share_pool_load import PoolLoad, SharePoolLoad
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.slo_defaults import BURST
from pipeline.processors.slo.nodeslo import BurstStrategy

ANNOTATION: Final = "koordinator.sh/cpuBurst"

LONGEST_STEP_SECONDS: Final = 60.0
"""The longest time between two rounds that the usage of the second stands for."""
_STATIC: Final = ("auto", "cpuBurstOnly")
_QUOTA: Final = ("auto", "cfsQuotaBurstOnly")


class Rules(NamedTuple):
    """The burst of a pod, all values set. A negative period has no end."""

    is_static: bool
    raises_quota: bool
    burst_percent: int
    quota_percent: int
    period_seconds: int
    pool_threshold_percent: int


def burst_rules(strategy: BurstStrategy, pod: PodState | None = None) -> Rules:
    """The rules of the node, with those of the pod's annotation laid over them."""
    own = None if pod is None else read_annotation(pod.annotations, ANNOTATION, BurstStrategy)
    return _rules(strategy, own)


@lru_cache(maxsize=512)
def _rules(strategy: BurstStrategy, own: BurstStrategy | None) -> Rules:
    merged = merge(merge(BURST, strategy), own or BurstStrategy())
    assert merged.cpu_burst_percent is not None  # as in `BURST`
    assert merged.cfs_quota_burst_percent is not None
    assert merged.cfs_quota_burst_period_seconds is not None
    assert merged.share_pool_threshold_percent is not None
    return Rules(
        merged.policy in _STATIC,
        merged.policy in _QUOTA,
        merged.cpu_burst_percent,
        merged.cfs_quota_burst_percent,
        merged.cfs_quota_burst_period_seconds,
        merged.share_pool_threshold_percent,
    )


def may_burst(pod: PodState) -> bool:
    """Whether the pod shares CPUs with a class that is not best-effort."""
    shares = pod.qos not in ("LSE", "LSR") and not pod.own_cpus
    return shares and pod.is_active and not pod.is_best_effort


class _Quota(NamedTuple):
    """The quota of a container with a CPU limit: by the limit on this node's CPUs, at most, and as
    the kubelet writes it. `number` is that of the container in its pod."""

    number: int
    place: Place
    base_us: int
    ceiling_us: int
    kubelet_us: int


class _PodBurst(NamedTuple):
    """What does not depend on usage: the same values of a pod, whose `number` is that in its state,
    the containers whose quota may be raised, and the static bursts."""

    number: int
    place: Place
    base_us: int
    kubelet_us: int
    rules: Rules
    quotas: tuple[_Quota, ...]
    bursts: tuple[Claim, ...]

    def __deepcopy__(self, memo: object) -> "_PodBurst":
        """Itself: it never changes, and a copy of a feature is made for each container's start."""
        return self


class CpuBurst:
    """Claim bursts and raised quotas. A quota is claimed only while it is not the limit's, so that
    a container without need keeps what others wrote; it is never below the limit."""

    name: Final = "cpu_burst"
    reads_usage: Final = True

    def __init__(self) -> None:
        self._pool = SharePoolLoad()
        self._limiters: dict[str, BurstLimiter] = {}
        self._revision: int | None = None
        self._pods: tuple[_PodBurst, ...] = ()
        self._unlisted: frozenset[str] = frozenset()
        self._at: float | None = None
        self._knows_step = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        if state.slo is None or (strategy := state.slo.cpu_burst_strategy) is None:
            return held(former, self.name)
        load = self._pool.load(state, burst_rules(strategy).pool_threshold_percent)
        if state.revision is None or state.revision != self._revision:
            self._pods = tuple(_pod_bursts(state, strategy))
            self._unlisted = frozenset(pod.path for pod in state.pods if not pod.listed)
            self._forget_containers(state)
            self._revision = state.revision  # at last: after an error all is computed again
        # Of a longer time nothing is known: nobody looked, or the clock was set.
        self._knows_step = self._at is not None and 0 <= state.at - self._at <= LONGEST_STEP_SECONDS
        self._at = state.at
        claims: list[Claim] = []
        for pod in self._pods:
            claims += pod.bursts
            if pod.rules.raises_quota:
                claims += self._quotas(state, pod, load, former)
        return claims + held(former, self.name, self._unlisted)

    def _quotas(
        self, state: NodeState, pod: _PodBurst, load: PoolLoad, former: Mapping[Place, Value]
    ) -> Iterator[Claim]:
        raised = 0
        containers = state.pods[pod.number].containers
        for number, place, base, ceiling, kubelet_us in pod.quotas:
            container = containers[number]
            allows = self._allows(container, pod.rules, state.at)
            step = _step(container.throttled_ratio, allows, load)
            quota_us = min(max(_stepped(former.get(place, base), step), base), ceiling)
            raised += quota_us - base
            if quota_us != kubelet_us:
                why = f"quota {step}, shared CPUs {load}{'' if allows else ', burst used up'}"
                yield Claim(place, quota_us, self.name, why)
        quota_us = min(pod.base_us + raised, UNLIMITED)
        if quota_us != pod.kubelet_us:
            why = "what the quotas of its containers are raised by"
            yield Claim(pod.place, quota_us, self.name, why)

    def _allows(self, container: ContainerState, rules: Rules, at: float) -> bool:
        period, percent = rules.period_seconds, rules.quota_percent
        if period < 0:
            self._limiters.pop(container.path, None)
            return True
        limiter = self._limiters.get(container.path)
        if limiter is None or (limiter.period_seconds, limiter.max_percent) != (period, percent):
            limiter = first_limiter(container.path, period, percent, at)
            self._limiters[container.path] = limiter
        else:
            limiter.use(_usage_percent(container) if self._knows_step else None, at)
        return limiter.allows

    def _forget_containers(self, state: NodeState) -> None:
        here = {container.path for pod in state.pods for container in pod.containers}
        self._limiters = {
            path: limiter
            for path, limiter in self._limiters.items()
            if path in here or path.rpartition("/")[0] in self._unlisted
        }


def _pod_bursts(state: NodeState, strategy: BurstStrategy) -> Iterator[_PodBurst]:
    for number, pod in enumerate(state.pods):
        if pod.listed and may_burst(pod):
            rules = burst_rules(strategy, pod)
            yield _PodBurst(
                number, Place(pod.path, Knob.CPU_QUOTA), pod_quota_us(state, pod),
                quota_us_of_millicores(pod.cgroup_limits.cpu_millicores or 0), rules,
                tuple(_raisable(state, pod, rules)) if rules.raises_quota else (),
                tuple(_static_bursts(state, pod, rules)) if rules.is_static else (),
            )  # fmt: skip


def _raisable(state: NodeState, pod: PodState, rules: Rules) -> Iterator[_Quota]:
    for number, container in enumerate(pod.containers):
        base = limit_quota_us(state, container)
        if base != UNLIMITED:
            ceiling = max(base, min(base * rules.quota_percent // 100, node_quota_us(state)))
            kubelet_us = quota_us_of_millicores(container.limits.cpu_millicores or 0)
            yield _Quota(number, Place(container.path, Knob.CPU_QUOTA), base, ceiling, kubelet_us)


def _static_bursts(state: NodeState, pod: PodState, rules: Rules) -> Iterator[Claim]:
    # The kernel refuses a burst above the quota.
    bursts = [
        (c.path, min(c.limits.cpu_millicores * rules.burst_percent, limit_quota_us(state, c)))
        for c in pod.containers
        if c.limits.cpu_millicores
    ]
    whole = min(sum(burst for _, burst in bursts), pod_quota_us(state, pod))
    for path, burst_us in (*bursts, (pod.path, whole)):
        if burst_us > 0:
            yield Claim(Place(path, Knob.CPU_BURST), burst_us, CpuBurst.name, "static burst")


def limit_quota_us(state: NodeState, container: ContainerState) -> int:
    """The quota by a container's limit, on this node's CPUs."""
    quota_us = quota_us_of_millicores(container.limits.cpu_millicores or 0)
    return normalized_quota_us(quota_us, state.cpu_normalization)


def node_quota_us(state: NodeState) -> int:
    """The quota that all CPUs of the node give; more has no effect."""
    return quota_us_of_millicores(state.capacity.cpu_millicores or 0)


def pod_quota_us(state: NodeState, pod: PodState) -> int:
    """The quota by a pod's limits, on this node's CPUs."""
    quota_us = quota_us_of_millicores(pod.cgroup_limits.cpu_millicores or 0)
    return normalized_quota_us(quota_us, state.cpu_normalization)


def _step(throttled_ratio: float | None, allows: bool, load: PoolLoad) -> str:
    """What happens to the quota of a container: up, down, keep."""
    if not allows or load is PoolLoad.OVERLOAD:
        return "down"
    return "up" if throttled_ratio and load is PoolLoad.IDLE else "keep"


def _stepped(quota_us: Value, step: str) -> int:
    assert isinstance(quota_us, int)
    return quota_us * {"up": 12, "keep": 10, "down": 8}[step] // 10


def _usage_percent(container: ContainerState) -> float | None:
    limit = container.limits.cpu_millicores
    return None if container.cpu_cores is None or not limit else container.cpu_cores * 1e5 / limit
