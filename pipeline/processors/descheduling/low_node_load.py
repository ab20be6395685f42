"""The arguments of LowNodeLoad in force: pools with what they take from the top level, and checks.

The keys of the top level make the default pool, and each of `nodePools` takes from it what it does
not set; no two pools share a value that changes. Pools are judged one by one: an invalid one leaves
the others in force.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.processors.descheduling.field_types import (
    PercentByResource,
    Problem,
    above,
    namespace_problems,
    resource_problems,
)
from pipeline.processors.descheduling.low_node_load_args import (
    AVERAGED,
    AnomalyCondition,
    LowNodeLoadArgs,
    PoolArgs,
    PoolKeys,
)
from pipeline.processors.descheduling.strict_reading import NOTHING, child, read_struct
from pipeline.processors.policy.config_sections import json_keys
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy, UsageKind
from pipeline.topics.node_state import AGGREGATED

NAME: Final = "LowNodeLoad"
DETECTED: Final = ("cpu", "memory")
"""Resources with thresholds in the records of nodes."""
_DEFAULT_POLICY: Final = HotNodePolicy()
_THRESHOLDS: Final = ("high_percent", "low_percent", "prod_high_percent", "prod_low_percent")
_KEYS: Final = json_keys(PoolKeys)
_ONE_POOL: Final = "both are relieved as one pool, by the thresholds of most of its nodes"
_KEPT: Final = "not in force: its nodes keep their last thresholds"


class NodePool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pool in force. If it is not certain, its values are invalid: its nodes keep the last."""

    name: str = DEFAULT_POOL
    node_selector: Selector | None = None
    use_deviation_thresholds: bool = False
    high_percent: PercentByResource = {}
    low_percent: PercentByResource = {}
    prod_high_percent: PercentByResource = {}
    prod_low_percent: PercentByResource = {}
    resource_weights: dict[str, int] = {}
    anomaly_timeout_seconds: float = 60.0
    open_windows: int = 5
    close_windows: int = 3
    usage: UsageKind = "average"
    span_seconds: int = 300
    hysteresis_percent: float = 5.0
    is_certain: bool = True

    @cached_property
    def hot_node_policy(self) -> HotNodePolicy | None:
        """The thresholds of a node of this pool; None if it has none of cpu and memory."""
        policy = HotNodePolicy(
            pool=self.name,
            use_deviation_thresholds=self.use_deviation_thresholds,
            high_percent=_detected(self.high_percent),
            low_percent=_detected(self.low_percent),
            prod_high_percent=_detected(self.prod_high_percent),
            prod_low_percent=_detected(self.prod_low_percent),
            usage=self.usage,
            span_seconds=self.span_seconds,
            open_windows=self.open_windows,
            close_windows=self.close_windows,
            hysteresis_percent=self.hysteresis_percent,
        )
        # omit_defaults compares texts by identity: equal policies must have equal bytes.
        names = {n: getattr(policy, n) for n in HotNodePolicy.__struct_fields__}
        own = {n: value for n, value in names.items() if value != getattr(_DEFAULT_POLICY, n)}
        return HotNodePolicy(**own) if own.keys() & {*_THRESHOLDS} else None


class LowNodeLoad(NamedTuple):
    """The arguments in force: those outside of pools, and the pools, the default pool last."""

    args: LowNodeLoadArgs
    pools: tuple[NodePool, ...]

    def pool_of(self, labels: Mapping[str, str]) -> NodePool | None:
        """The first pool that selects a node with these labels."""
        for pool in self.pools:
            if pool.node_selector is None or pool.node_selector.matches(labels):
                return pool
        return None


def read_low_node_load(
    tree: Any, where: str, interval_seconds: float = 0.0
) -> tuple[LowNodeLoad, tuple[PolicyProblem, ...]]:
    """Read the arguments at the path `where`. With any problem the strategy is dry: it evicts
    nothing. A pool with an invalid value is not certain."""
    args, unknown, invalid = read_struct(tree, LowNodeLoadArgs, where)
    invalid_keys = {name for name, key in _KEYS.items() if _is_in(child(where, key), invalid)}
    own = PoolArgs(
        name=DEFAULT_POOL,
        node_selector=None if args.node_selector is NOTHING else args.node_selector,
        use_deviation_thresholds=args.use_deviation_thresholds,
    )
    top = _merged(own, args)
    problems = [*unknown, *invalid, *_at(where, [*pool_problems(top), *_args_problems(args)])]
    is_certain = not invalid_keys and not any(pool_problems(top)) and args.node_selector != NOTHING
    top = msgspec.structs.replace(top, is_certain=is_certain)
    pools = []
    for i, pool_tree in enumerate(args.node_pools):
        pool, own_problems = _read_pool(pool_tree, args, invalid_keys, f"{where}.nodePools[{i}]")
        pools.append(pool)
        problems += own_problems
    notes = [] if is_certain else [PolicyProblem(where, f"the default pool is {_KEPT}", True)]
    notes += _at(where, _warnings(args, top, pools), in_force=True)
    changed: dict[str, Any] = {
        "node_pools": (),
        "detector_cache_seconds": max(args.detector_cache_seconds, interval_seconds),
    }
    if any(not problem.in_force for problem in problems):
        changed["dry_run"] = True
        notes.append(PolicyProblem(where, f"{NAME} evicts nothing until it is corrected", True))
    args = msgspec.structs.replace(args, **changed)
    return LowNodeLoad(args, (*pools, top)), (*problems, *notes)


def _read_pool(
    tree: Any, args: LowNodeLoadArgs, invalid_keys: Set[str], where: str
) -> tuple[NodePool, list[PolicyProblem]]:
    """Read an entry of `nodePools`. `invalid_keys` of the top level cannot be taken from it."""
    own, unknown, invalid = read_struct(tree, PoolArgs, where)
    own = msgspec.structs.replace(own, name=own.name or where.rpartition(".")[2])
    pool = _merged(own, args)
    problems = [*unknown, *invalid, *_at(where, pool_problems(pool))]
    problems += [
        PolicyProblem(where, f"takes the invalid {_KEYS[name]} of the top level")
        for name in sorted(invalid_keys)
        if getattr(own, name) is None
    ]
    if len(problems) == len(unknown):
        return pool, problems
    if pool.node_selector is NOTHING:
        problems.append(PolicyProblem(where, f"pool {own.name:.80} selects no node", True))
    else:
        problems.append(PolicyProblem(where, f"pool {own.name:.80} is {_KEPT}", True))
    return msgspec.structs.replace(pool, is_certain=False), problems


def _merged(own: PoolArgs, top: PoolKeys) -> NodePool:
    """A pool with what it takes from the top level, and the defaults."""
    keys = {n: getattr(own, n) if getattr(own, n) is not None else getattr(top, n) for n in _KEYS}
    runs = [part for part in (own.anomaly_condition, top.anomaly_condition) if part]
    runs.append(_DEFAULT_RUNS)
    values: dict[str, Any] = {name: dict(keys[name] or {}) for name in _THRESHOLDS}
    named = dict.fromkeys((*DETECTED, *values["low_percent"], *values["high_percent"]), 1)
    given = {name: w for name, w in (keys["resource_weights"] or {}).items() if w > 0}
    return NodePool(
        **values,
        name=own.name,
        node_selector=own.node_selector,
        use_deviation_thresholds=own.use_deviation_thresholds,
        resource_weights=named | given,
        anomaly_timeout_seconds=next(
            r.timeout_seconds for r in runs if r.timeout_seconds is not None
        ),
        open_windows=next(filter(None, (r.consecutive_abnormalities for r in runs))),
        close_windows=next(filter(None, (r.consecutive_normalities for r in runs))),
        **{name: keys[name] for name in ("usage", "hysteresis_percent") if keys[name] is not None},
        span_seconds=300 if keys["span_seconds"] is None else int(keys["span_seconds"]),
    )


_DEFAULT_RUNS: Final = AnomalyCondition(
    timeout_seconds=60.0, consecutive_abnormalities=5, consecutive_normalities=3
)


def pool_problems(pool: NodePool) -> Iterator[Problem]:
    """Invalid values of a pool. Deviations from a mean have no order among each other."""
    for name in _THRESHOLDS:
        yield from resource_problems(_KEYS[name], getattr(pool, name))
    # Resources with a threshold have a weight that nobody wrote.
    named = {name for key in _THRESHOLDS for name in getattr(pool, key)}
    weights = {name: w for name, w in pool.resource_weights.items() if name not in named}
    yield from resource_problems(_KEYS["resource_weights"], weights)
    if not pool.use_deviation_thresholds:
        for low, high in (
            ("low_percent", "high_percent"),
            ("prod_high_percent", "high_percent"),
            ("prod_low_percent", "prod_high_percent"),
        ):
            yield from above(_KEYS[low], getattr(pool, low), _KEYS[high], getattr(pool, high))
    is_percentile = pool.usage not in ("average", "peak")
    spans, what = (AGGREGATED, pool.usage) if is_percentile else (AVERAGED, "usage")
    if pool.span_seconds not in spans.values():
        text = f"{what} is known over {', '.join(spans)}, not over {pool.span_seconds} s"
        yield _KEYS["span_seconds"], text


def _args_problems(args: LowNodeLoadArgs) -> Iterator[Problem]:
    yield from namespace_problems("evictableNamespaces", args.evictable_namespaces)
    if args.kind not in ("", f"{NAME}Args"):
        yield "kind", f"{args.kind!r:.60} is not {NAME}Args"


def _warnings(args: LowNodeLoadArgs, top: NodePool, pools: Sequence[NodePool]) -> Iterator[Problem]:
    names = [pool.name for pool in pools]
    for i, pool in enumerate(pools):
        if pool.name in names[:i]:
            yield f"nodePools[{i}]", f"pool {pool.name:.80} is there twice: {_ONE_POOL}"
        if pool.name == top.name:
            yield f"nodePools[{i}]", f"{top.name} is the name of the default pool: {_ONE_POOL}"
        if any(earlier.node_selector is None for earlier in pools[:i]):
            yield f"nodePools[{i}]", "applies to no node: an earlier pool selects all nodes"
    used = {name for pool in (top, *pools) for key in _THRESHOLDS for name in getattr(pool, key)}
    for name in sorted(used - {*DETECTED}):
        yield "", f"usage of {name:.80} causes no alert"
    yield from _fractions(top, pools)
    condition = args.anomaly_condition
    if condition is not None and condition.timeout_seconds is not None:
        text = "has no effect: an alert stays open while the node is hot"
        yield "anomalyCondition.timeout", text
    for name, weight in (args.resource_weights or {}).items():
        if weight <= 0:
            yield f"resourceWeights.{name:.80}", f"{weight} counts as 1"


def _fractions(top: NodePool, pools: Sequence[NodePool]) -> Iterator[Problem]:
    """Thresholds below one percent, which are in force, and may have been meant as fractions."""
    places = [("", top), *((f"nodePools[{i}].", pool) for i, pool in enumerate(pools))]
    for key in _THRESHOLDS:
        of_top = getattr(top, key)
        for where, pool in places:
            for name, percent in getattr(pool, key).items():
                is_inherited = pool is not top and of_top.get(name) == percent
                if 0 < percent < 1 and not is_inherited:
                    text = f"{percent:g} is in percent (is {100 * percent:g} meant?)"
                    yield f"{where}{_KEYS[key]}.{name:.80}", text


def _at(where: str, problems: Any, *, in_force: bool = False) -> list[PolicyProblem]:
    return [
        PolicyProblem(f"{where}.{key}" if key else where, text, in_force) for key, text in problems
    ]


def _is_in(path: str, problems: Sequence[PolicyProblem]) -> bool:
    """Whether a problem is at this path or below it."""
    return any(f"{problem.where}.".startswith(f"{path}.") for problem in problems)


def _detected(percent: Mapping[str, float]) -> dict[str, float]:
    return {name: float(percent[name]) for name in DETECTED if name in percent}
