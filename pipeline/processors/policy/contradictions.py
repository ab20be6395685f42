"""Warn of settings of a policy that contradict each other.

They stay in force: each setting is valid alone, and only its author knows which one is wrong.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from pipeline.processors.policy.colocation_config import COLOCATION, KEYS, STATIC, Colocation
from pipeline.processors.policy.config_sections import Config, json_keys, merge
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem
from pipeline.processors.policy.load_slo_config import THRESHOLD
from pipeline.processors.policy.selectors import Selector
from pipeline.processors.policy.springtide_config import SPRINGTIDE, SpringtideConfig
from pipeline.processors.slo.nodeslo import ThresholdStrategy


class FilterLimits(NamedTuple):
    """The scheduler extender's thresholds of a node's usage in percent; 0 is no limit."""

    cpu_threshold_percent: float
    memory_threshold_percent: float


class _Group(NamedTuple):
    """The settings of the same nodes."""

    strategy: Colocation
    config: SpringtideConfig
    rules: ThresholdStrategy


def contradictions(
    colocation: Policy[Colocation],
    springtide: Policy[SpringtideConfig],
    rules: Policy[ThresholdStrategy],
    limits: FilterLimits | None = None,
) -> Iterator[PolicyProblem]:
    """Contradictions of the cluster's part, and further ones for the nodes of an entry. Entries
    with equal selectors belong together."""
    cluster = _Group(colocation.cluster, springtide.cluster, rules.cluster)
    known = set(_group_contradictions(cluster, limits))
    yield from (
        PolicyProblem(key, text, True) for key, text in _group_contradictions(cluster, limits)
    )
    for selector, name in _selectors(colocation, springtide, rules).values():
        entry = _Group(
            _for_selector(colocation, selector),
            _for_selector(springtide, selector),
            _for_selector(rules, selector),
        )
        for key, text in _group_contradictions(entry, limits):
            if (key, text) not in known:
                yield PolicyProblem(key, f"nodes of {name}: {text}", True)


def node_contradictions(
    general: tuple[Colocation, SpringtideConfig],
    own: tuple[Colocation, SpringtideConfig],
    rules: ThresholdStrategy,
) -> Iterator[PolicyProblem]:
    """Contradictions by a node's own annotations and labels, which the `general` policy of the node
    does not have."""
    known = set(_group_contradictions(_Group(*general, rules), None))
    for key, text in _group_contradictions(_Group(*own, rules), None):
        if (key, text) not in known:
            yield PolicyProblem(key, f"by annotations or labels of the node: {text}", True)


def _selectors(*policies: Policy[Any]) -> dict[bytes, tuple[Selector, str]]:
    """Every selector, and the name of its first entry."""
    selectors: dict[bytes, tuple[Selector, str]] = {}
    for policy in policies:
        for entry in policy.entries:
            if entry.selector is not None:
                text = msgspec.json.encode(entry.selector, order="deterministic")
                name = repr(entry.name[:100]) if entry.name else text.decode()[:200]
                selectors.setdefault(text, (entry.selector, name))
    return selectors


def _for_selector(policy: Policy[Config], selector: Selector) -> Config:
    own = next((entry.own for entry in policy.entries if entry.selector == selector), None)
    return policy.cluster if own is None else merge(policy.cluster, own)


def _group_contradictions(group: _Group, limits: FilterLimits | None) -> Iterator[tuple[str, str]]:
    """Contradictions with the key that they are in."""
    if group.strategy.enable:
        yield from (
            (SPRINGTIDE.key, text) for text in _promised_twice(group.strategy, group.config)
        )
        yield from ((COLOCATION.key, text) for text in _colocation_contradictions(group.strategy))
    if group.rules.enable and group.strategy.enable:
        suppressed = _offered_and_suppressed(group.strategy, group.rules)
        yield from ((THRESHOLD.key, text) for text in suppressed)
    if group.rules.enable and limits is not None:
        yield from ((THRESHOLD.key, text) for text in _filled_and_suppressed(limits, group.rules))


def _promised_twice(strategy: Colocation, config: SpringtideConfig) -> Iterator[str]:
    if strategy.mid_reclaim_mode == STATIC:
        mid = strategy.mid_static_cpu_reserved_percent, strategy.mid_static_memory_reserved_percent
    else:
        mid = strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent
    if config.promise_once is False and (any(mid) or strategy.mid_unallocated_percent):
        yield (
            "promiseOnce is false: Mid and Batch may be promised the same idle capacity; leave it "
            "true, or set midCPUThresholdPercent and midMemoryThresholdPercent to 0"
        )


def _colocation_contradictions(strategy: Colocation) -> Iterator[str]:
    for resource, batch_key in (
        ("cpu", "batchCPUThresholdPercent"), ("memory", "batchMemoryThresholdPercent"),
    ):  # fmt: skip
        reclaim = getattr(strategy, f"{resource}_reclaim_threshold_percent") or 0
        if reclaim > 100 and getattr(strategy, f"batch_{resource}_threshold_percent") is None:
            yield (
                f"{resource}ReclaimThresholdPercent is {reclaim}: Batch may be promised more than "
                f"the node has; set {batch_key}, too"
            )
    for field in ("metric_report_interval_seconds", "update_time_threshold_seconds"):
        seconds = getattr(strategy, field) or 0
        if seconds > 60 * (strategy.degrade_time_minutes or 0):
            yield (
                f"{KEYS[field]} is {seconds}, longer than degradeTimeMinutes, which is "
                f"{strategy.degrade_time_minutes}: Mid and Batch would come and go"
            )
    if strategy.mid_reclaim_mode == STATIC and not (
        strategy.mid_static_cpu_reserved_percent or strategy.mid_static_memory_reserved_percent
    ):
        yield (
            "midReclaimMode is static, and midStaticCPUReservedPercent and "
            "midStaticMemoryReservedPercent are 0: there is no Mid"
        )


def _offered_and_suppressed(strategy: Colocation, rules: ThresholdStrategy) -> Iterator[str]:
    """Batch is offered up to a usage of the node at which the node's agent takes it away."""
    for resource, field, consequence in (
        ("cpu", "cpu_suppress_threshold_percent", "held back"),
        ("memory", "memory_evict_threshold_percent", "evicted"),
    ):
        reclaim = getattr(strategy, f"{resource}_reclaim_threshold_percent")
        limit = getattr(rules, field)
        if reclaim is not None and limit is not None and reclaim > limit:
            yield (
                f"{json_keys(ThresholdStrategy)[field]} is {limit}, below "
                f"{resource}ReclaimThresholdPercent of {COLOCATION.key}, which is {reclaim}: Batch "
                f"that uses what it is offered is {consequence}; offer less"
            )


def _filled_and_suppressed(limits: FilterLimits, rules: ThresholdStrategy) -> Iterator[str]:
    """The scheduler fills a node up to a usage at which the node's agent acts."""
    for setting, field, consequence in (
        ("cpu_threshold_percent", "cpu_suppress_threshold_percent", "holds back"),
        ("cpu_threshold_percent", "cpu_evict_threshold_percent", "evicts"),
        ("memory_threshold_percent", "memory_evict_threshold_percent", "evicts"),
    ):
        allowed, limit = getattr(limits, setting), getattr(rules, field)
        if limit is not None and (allowed > limit or allowed == 0):
            allowed_text = f"{allowed:g}" if allowed else "0 (no limit)"
            yield (
                f"{json_keys(ThresholdStrategy)[field]} is {limit}, below the setting "
                f"extender.{setting}, which is {allowed_text}: the scheduler fills what the node "
                f"then {consequence}; set it to {limit} or less"
            )
