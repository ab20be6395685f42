"""Warn of settings of a policy that contradict each other.

Contradicting settings are in force: each is valid, and the author may know better.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from pipeline.processors.policy.colocation_config import COLOCATION, STATIC, Colocation
from pipeline.processors.policy.config_sections import Said, merged
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem
from pipeline.processors.policy.load_slo_config import THRESHOLD
from pipeline.processors.policy.selectors import Selector
from pipeline.processors.policy.springtide_config import SPRINGTIDE, SpringtideConfig
from pipeline.processors.slo.nodeslo import ThresholdStrategy


class FilterLimits(NamedTuple):
    """The scheduler extender's thresholds of a node's usage in percent; 0 is no limit."""

    cpu_threshold_percent: float
    memory_threshold_percent: float


class _Together(NamedTuple):
    """The settings of the same nodes."""

    strategy: Colocation
    own: SpringtideConfig
    rules: ThresholdStrategy


def contradictions(
    colocation: Policy[Colocation],
    own: Policy[SpringtideConfig],
    rules: Policy[ThresholdStrategy],
    limits: FilterLimits | None = None,
) -> Iterator[PolicyProblem]:
    """Contradictions of the cluster's part, and further ones for the nodes of an entry. Entries
    with equal selectors belong together."""
    cluster = _Together(colocation.cluster, own.cluster, rules.cluster)
    known = set(_within(cluster, limits))
    yield from (PolicyProblem(key, text, True) for key, text in _within(cluster, limits))
    for selector, name in _selectors(colocation, own, rules).values():
        of_entry = _Together(_for(colocation, selector), _for(own, selector), _for(rules, selector))
        for key, text in _within(of_entry, limits):
            if (key, text) not in known:
                yield PolicyProblem(key, f"nodes of {name}: {text}", True)


def own_contradictions(
    usual: tuple[Colocation, SpringtideConfig],
    found: tuple[Colocation, SpringtideConfig],
    rules: ThresholdStrategy,
) -> Iterator[PolicyProblem]:
    """Contradictions by a node's own annotations and labels, which the `usual` policy of the node
    does not have."""
    known = set(_within(_Together(*usual, rules), None))
    for key, text in _within(_Together(*found, rules), None):
        if (key, text) not in known:
            yield PolicyProblem(key, f"by annotations or labels of the node: {text}", True)


def _selectors(*policies: Policy[Any]) -> dict[bytes, tuple[Selector, str]]:
    """Every selector, and the name of its first entry."""
    found: dict[bytes, tuple[Selector, str]] = {}
    for policy in policies:
        for entry in policy.entries:
            if entry.selector is not None:
                text = msgspec.json.encode(entry.selector, order="deterministic")
                name = repr(entry.name[:100]) if entry.name else text.decode()[:200]
                found.setdefault(text, (entry.selector, name))
    return found


def _for(policy: Policy[Said], selector: Selector) -> Said:
    own = next((entry.own for entry in policy.entries if entry.selector == selector), None)
    return policy.cluster if own is None else merged(policy.cluster, own)


def _within(of: _Together, limits: FilterLimits | None) -> Iterator[tuple[str, str]]:
    """Contradictions with the key that they are in."""
    if of.strategy.enable:
        for text in _promised_twice(of.strategy, of.own):
            yield SPRINGTIDE.key, text
        for text in _of_colocation(of.strategy):
            yield COLOCATION.key, text
    if of.rules.enable:
        if of.strategy.enable:
            for text in _promised_and_taken(of.strategy, of.rules):
                yield THRESHOLD.key, text
        if limits is not None:
            for text in _filled_and_taken(limits, of.rules):
                yield THRESHOLD.key, text


def _promised_twice(strategy: Colocation, own: SpringtideConfig) -> Iterator[str]:
    if strategy.mid_reclaim_mode == STATIC:
        mid = strategy.mid_static_cpu_reserved_percent, strategy.mid_static_memory_reserved_percent
    else:
        mid = strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent
    if own.promise_once is False and (any(mid) or strategy.mid_unallocated_percent):
        yield (
            "promiseOnce is false: Mid and Batch may be promised the same idle capacity; leave it "
            "true, or set midCPUThresholdPercent and midMemoryThresholdPercent to 0"
        )


def _of_colocation(strategy: Colocation) -> Iterator[str]:
    for resource, name, reclaim, limit in (
        ("cpu", "CPU", strategy.cpu_reclaim_threshold_percent,
         strategy.batch_cpu_threshold_percent),
        ("memory", "Memory", strategy.memory_reclaim_threshold_percent,
         strategy.batch_memory_threshold_percent),
    ):  # fmt: skip
        if (reclaim or 0) > 100 and limit is None:
            yield (
                f"{resource}ReclaimThresholdPercent is {reclaim}: Batch may be promised more than "
                f"the node has; set batch{name}ThresholdPercent, too"
            )
    degrade_seconds = 60 * (strategy.degrade_time_minutes or 0)
    for name, seconds in (
        ("metricReportIntervalSeconds", strategy.metric_report_interval_seconds),
        ("updateTimeThresholdSeconds", strategy.update_time_threshold_seconds),
    ):
        if (seconds or 0) > degrade_seconds:
            yield (
                f"{name} is {seconds}, longer than degradeTimeMinutes, which is "
                f"{strategy.degrade_time_minutes}: Mid and Batch would come and go"
            )
    if strategy.mid_reclaim_mode == STATIC and not (
        strategy.mid_static_cpu_reserved_percent or strategy.mid_static_memory_reserved_percent
    ):
        yield (
            "midReclaimMode is static, and midStaticCPUReservedPercent and "
            "midStaticMemoryReservedPercent are 0: there is no Mid"
        )


def _promised_and_taken(strategy: Colocation, rules: ThresholdStrategy) -> Iterator[str]:
    """Batch is offered up to a usage of the node at which its agent takes it away."""
    for reclaim, name, limit, other, then in (
        (strategy.cpu_reclaim_threshold_percent, "cpuReclaimThresholdPercent",
         rules.cpu_suppress_threshold_percent, "cpuSuppressThresholdPercent", "held back"),
        (strategy.memory_reclaim_threshold_percent, "memoryReclaimThresholdPercent",
         rules.memory_evict_threshold_percent, "memoryEvictThresholdPercent", "evicted"),
    ):  # fmt: skip
        if reclaim is not None and limit is not None and reclaim > limit:
            yield (
                f"{other} is {limit}, below {name} of {COLOCATION.key}, which is {reclaim}: Batch "
                f"that uses what it is offered is {then}; offer less"
            )


def _filled_and_taken(limits: FilterLimits, rules: ThresholdStrategy) -> Iterator[str]:
    """The scheduler fills a node up to a usage at which its agent acts."""
    for allowed, name, limit, other, then in (
        (limits.cpu_threshold_percent, "cpu_threshold_percent",
         rules.cpu_suppress_threshold_percent, "cpuSuppressThresholdPercent", "holds back"),
        (limits.cpu_threshold_percent, "cpu_threshold_percent",
         rules.cpu_evict_threshold_percent, "cpuEvictThresholdPercent", "evicts"),
        (limits.memory_threshold_percent, "memory_threshold_percent",
         rules.memory_evict_threshold_percent, "memoryEvictThresholdPercent", "evicts"),
    ):  # fmt: skip
        if limit is not None and (allowed > limit or allowed == 0):
            upto = f"{allowed:g}" if allowed else "0 (no limit)"
            yield (
                f"{other} is {limit}, below the setting extender.{name}, which is {upto}: the "
                f"scheduler fills what the node then {then}; set it to {limit} or less"
            )
