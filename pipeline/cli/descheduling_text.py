"""A DeschedulerConfiguration in force as text and as a document, for `springtide policy`."""

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

import msgspec

from pipeline.processors.descheduling.configured_strategies import why_off
from pipeline.processors.descheduling.descheduler_config import (
    LOW_NODE_LOAD,
    MIGRATION_CONTROLLER,
    STRATEGIES,
    Descheduling,
    Profile,
)
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.descheduling.low_node_load import LowNodeLoad, NodePool
from pipeline.processors.descheduling.low_node_load_args import PoolArgs
from pipeline.processors.descheduling.strict_reading import NOTHING
from pipeline.processors.policy.config_sections import json_keys
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord

_EVICTS: Final = "evicts"
_OF_POOLS: Final = {*json_keys(PoolArgs).values(), "nodePools", "detectorCacheTimeout"}
_SAID: Final = {"apiVersion", "kind", "paused", "dryRun"}
"""Keys that the text has in other words, or that have no effect."""
_SAID_OF_MIGRATION: Final = _SAID | {
    "maxMigratingGlobally", "maxMigratingPerNode", "maxMigratingPerNamespace", "evictQPS",
    "evictionPolicy", "priorityThreshold", "evictSystemCriticalPods", "maxConcurrentReconciles",
    "defaultJobMode", "arbitrationArgs",
}  # fmt: skip


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
        f"descheduler: every {keys.interval_seconds:g} s, {_effect(descheduling)}, "
        f"evictions of a plan: {', '.join(limits) or 'no limit'}"
    )
    if keys.node_selector is not None:
        yield f"  only nodes with {_selector_text(keys.node_selector)}"
    for profile in descheduling.profiles:
        yield from _profile_lines(descheduling, profile)
    if descheduling.low_node_load is None:
        yield f"hot nodes: none are detected, {LOW_NODE_LOAD} is not configured or paused"
    if descheduling.unused:
        yield f"Springtide's settings hold instead of {', '.join(descheduling.unused)}"


def _effect(descheduling: Descheduling) -> str:
    """What all strategies together do."""
    states = [
        _state(descheduling, profile, name)
        for profile in descheduling.profiles
        for name in _strategies(profile)
    ]
    for state in (_EVICTS, "dry run"):
        if state in states:
            return state
    return "evicts nothing"


def _strategies(profile: Profile) -> list[str]:
    """The strategies that the profile configures or enables."""
    named = {*profile.args, *profile.enabled.get("balance", ())}
    if profile.low_node_load is not None:
        named.add(LOW_NODE_LOAD)
    return [name for name in STRATEGIES if name in named]


def _state(descheduling: Descheduling, profile: Profile, name: str) -> str:
    """What a strategy of the profile does, if the evictor acts; with the reason if it evicts
    nothing."""
    low, keys = profile.low_node_load, descheduling.keys
    args: Any = profile.args.get(name)
    if name == LOW_NODE_LOAD:
        args = None if low is None else low.args
    if args is None:
        return f"evicts nothing: {name} has no arguments in pluginConfig"
    if args.paused:
        return "paused"
    if name == LOW_NODE_LOAD and profile is not descheduling.detecting:
        return f"evicts nothing: {name} of the first profile that configures it counts"
    if off := why_off(profile, name):
        return f"evicts nothing: {off}"
    caps = (keys.most_evictions, keys.most_evictions_per_node, keys.most_evictions_per_namespace)
    if 0 in caps:
        return "evicts nothing: a cap of the evictions of a plan is 0"
    # ScaleDownBinPack has no dry run of its own.
    is_dry = getattr(args, "dry_run", False) or migration_policy(descheduling).is_dry
    return "dry run" if is_dry else _EVICTS


def _profile_lines(descheduling: Descheduling, profile: Profile) -> Iterator[str]:
    enabled = [f"{point} {', '.join(names)}" for point, names in profile.enabled.items() if names]
    yield f"profile {profile.name}: {'; '.join(enabled) or 'no plugin is enabled'}"
    if profile.node_selector is not None:
        yield f"  only nodes with {_selector_text(profile.node_selector)}"
    strategies = _strategies(profile)
    for name in strategies:
        state = _state(descheduling, profile, name)
        low = profile.low_node_load if name == LOW_NODE_LOAD else None
        args = profile.args.get(name) if low is None else low.args
        values = _own_values(args, _SAID if low is None else _SAID | _OF_POOLS)
        yield f"  {name}: {'; '.join([state, *values])}"
        if low is not None:
            yield from _pool_lines(low)
    for name, args in profile.args.items():
        if name not in (MIGRATION_CONTROLLER, *strategies):
            yield f"  {name}: {'; '.join(['does not run here', *_own_values(args, _SAID)])}"
    yield from _migration_lines(profile)


def _own_values(args: msgspec.Struct | None, said: Set[str]) -> Iterator[str]:
    """The arguments that are not the default, except for those that are `said` elsewhere."""
    default = {} if args is None else _builtins(type(args)())
    for key, value in ({} if args is None else _builtins(args)).items():
        if key not in said and default.get(key) != value:
            yield f"{key} {_value_text(value)}"


def _value_text(value: Any) -> str:
    match value:
        case str():
            return value
        case {"count": count, **others} if not others:
            return str(count)
        case {"percent": percent, **others} if not others:
            return f"{percent}%"
    return json.dumps(value)


def _pool_lines(low: LowNodeLoad) -> Iterator[str]:
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
    head = (
        f"{'dry run' if migration.dry_run else migration.eviction_policy}, at once "
        f"{', '.join(limits) or 'no limit'}, {migration.evict_per_second:g} per second"
    )
    protected = "no priority is protected"
    if priority is not None:
        protected = f"not from priority {priority} on"
    values = [head, protected, *_own_values(migration, _SAID_OF_MIGRATION)]
    yield f"  {MIGRATION_CONTROLLER}: {'; '.join(values)}"


def hot_node_text(record: NodeRecord) -> str:
    """Describe when a node counts as hot."""
    if record.hot_nodes is None:
        return "no thresholds of hot nodes"
    return f"pool {record.hot_nodes.pool}: {policy_text(record.hot_nodes)}"


def policy_text(policy: HotNodePolicy) -> str:
    """Describe the thresholds of a HotNodePolicy."""
    over, under = ("mean + ", "mean - ") if policy.use_deviation_thresholds else ("", "")
    parts = [
        f"{name} {', '.join(f'{resource} {mean}{value:g}%' for resource, value in percent.items())}"
        for name, mean, percent in (
            ("hot above", over, policy.high_percent),
            ("low to", under, policy.low_percent),
            ("Prod hot above", over, policy.prod_high_percent),
            ("Prod low to", under, policy.prod_low_percent),
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
