"""A DeschedulerConfiguration in force as text and as a document, for `springtide policy`."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pipeline.processors.descheduling.descheduler_config import (
    LOW_NODE_LOAD,
    MIGRATION_CONTROLLER,
    Descheduling,
    Profile,
)
from pipeline.processors.descheduling.low_node_load import LowNodeLoad, NodePool
from pipeline.processors.descheduling.strict_reading import NOTHING
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord


def descheduling_document(descheduling: Descheduling) -> dict[str, Any]:
    """Return everything that is in force; durations are in seconds."""
    return {
        **_builtins(descheduling.keys),
        "profiles": [
            {
                "name": profile.name,
                "nodeSelector": _builtins(profile.node_selector),
                "enabled": {point: list(names) for point, names in profile.enabled.items()},
                "lowNodeLoad": None
                if profile.low_node_load is None
                else {
                    "args": _builtins(profile.low_node_load.args),
                    "pools": _builtins(profile.low_node_load.pools),
                },
                "args": {
                    **{name: _builtins(args) for name, args in profile.args.items()},
                    MIGRATION_CONTROLLER: {
                        **_builtins(profile.migration),
                        "protectedPriority": profile.migration.protected_priority,
                    },
                },
            }
            for profile in descheduling.profiles
        ],
    }


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value)


def descheduling_lines(descheduling: Descheduling) -> Iterator[str]:
    """Describe what is in force."""
    keys = descheduling.keys
    caps = {
        "in total": keys.most_evictions,
        "per node": keys.most_evictions_per_node,
        "per namespace": keys.most_evictions_per_namespace,
    }
    limits = [f"{cap} {scope}" for scope, cap in caps.items() if cap is not None]
    yield (
        f"descheduler: every {keys.interval_seconds:g} s, "
        f"{'dry run' if keys.dry_run else 'evicts'}, "
        f"evictions of a plan: {', '.join(limits) or 'no limit'}"
    )
    if keys.node_selector is not None:
        yield f"  only nodes with {_selector_text(keys.node_selector)}"
    for profile in descheduling.profiles:
        yield from _profile_lines(profile)
    if descheduling.low_node_load is None:
        yield f"hot nodes: none are detected, {LOW_NODE_LOAD} is not configured or paused"
    if descheduling.unused:
        yield f"Springtide's settings hold instead of {', '.join(descheduling.unused)}"


def _profile_lines(profile: Profile) -> Iterator[str]:
    enabled = [f"{point} {', '.join(names)}" for point, names in profile.enabled.items() if names]
    yield f"profile {profile.name}: {'; '.join(enabled) or 'no plugin is enabled'}"
    if profile.node_selector is not None:
        yield f"  only nodes with {_selector_text(profile.node_selector)}"
    if profile.low_node_load is not None:
        yield from _low_node_load_lines(profile.low_node_load)
    for name, args in profile.args.items():
        if name != MIGRATION_CONTROLLER:
            changed = _builtins(args)
            default = _builtins(type(args)())
            own = {key: value for key, value in changed.items() if default.get(key) != value}
            yield f"  {name}: {own or 'defaults'}"
    yield from _migration_lines(profile)


def _low_node_load_lines(low: LowNodeLoad) -> Iterator[str]:
    state = "paused" if low.args.paused else "dry run" if low.args.dry_run else "evicts if enabled"
    yield f"  {LOW_NODE_LOAD}: {state}"
    for pool in low.pools:
        nodes = "all other nodes"
        if pool.node_selector is not None:
            nodes = f"nodes with {_selector_text(pool.node_selector)}"
        yield f"    pool {pool.name}, {nodes}: {_pool_text(pool)}"


def _pool_text(pool: NodePool) -> str:
    if not pool.is_certain:
        return "invalid, nodes keep their last thresholds"
    policy = pool.hot_node_policy
    return "no thresholds of cpu and memory" if policy is None else policy_text(policy)


def _migration_lines(profile: Profile) -> Iterator[str]:
    migration = profile.migration
    caps: Mapping[str, Any] = {
        "in the cluster": migration.max_migrating_globally,
        "per node": migration.max_migrating_per_node,
        "per namespace": migration.max_migrating_per_namespace,
    }
    limits = [f"{cap} {scope}" for scope, cap in caps.items() if cap]
    priority = migration.protected_priority
    yield (
        f"  {MIGRATION_CONTROLLER}: {'dry run' if migration.dry_run else migration.eviction_policy}"
        f", at once {', '.join(limits) or 'no limit'}, {migration.evict_per_second:g} per second; "
        + ("no priority is protected" if priority is None else f"not from priority {priority} on")
    )


def hot_node_text(record: NodeRecord) -> str:
    """Describe when a node counts as hot."""
    if record.hot_nodes is None:
        return "no thresholds of hot nodes"
    return f"pool {record.hot_nodes.pool}: {policy_text(record.hot_nodes)}"


def policy_text(policy: HotNodePolicy) -> str:
    """Describe the thresholds of a HotNodePolicy."""
    of = " from the mean" if policy.use_deviation_thresholds else ""
    parts = [
        f"{name} {', '.join(f'{resource} {value:g}%' for resource, value in percent.items())}{of}"
        for name, percent in (
            ("hot above", policy.high_percent),
            ("low to", policy.low_percent),
            ("Prod hot above", policy.prod_high_percent),
            ("Prod low to", policy.prod_low_percent),
        )
        if percent
    ]
    usage = policy.usage if policy.usage == "peak" else f"{policy.usage} of {policy.span_seconds} s"
    return (
        f"{'; '.join(parts)}; {usage}, opens after {policy.open_windows} windows, closes after "
        f"{policy.close_windows}, {policy.hysteresis_percent:g} points below"
    )


def _selector_text(selector: Selector) -> str:
    if selector is NOTHING:
        return "an invalid selector"
    labels = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    labels += [
        f"{requirement.key} {requirement.operator} {', '.join(requirement.values or ())}".strip()
        for requirement in selector.match_expressions or ()
    ]
    return "; ".join(labels) or "any labels"
