"""Plugins and their arguments as users have them: a KubeSchedulerConfiguration, or a profile of it.

Owes the rest: what is enabled of the plugins that are ours to run, with arguments that hold, each
key known or refused by name. Plugins of others are passed over: they run in the scheduler.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, oddities
from pipeline.processors.loadaware.loadaware_args import read_args as read_load_aware
from pipeline.processors.placement.kube_config import (
    EVERYWHERE,
    FILTER_POINTS,
    POINTS,
    SCORE_POINTS,
    VERSIONS,
    Enabled,
    Profile,
    at,
    points,
    read_configuration,
    read_profile,
    refuse_misspelt,
)
from pipeline.processors.placement.threshold_hours import looking_at_all
from pipeline.processors.placement.threshold_hours import read_args as read_time_shared
from pipeline.processors.scorers import plugin_args, trimaran_args
from pipeline.topics.node_state import YOUNG_SECONDS

LOAD_AWARE: Final = "LoadAwareScheduling"
HINT: Final = "SchedulingHint"
HEADROOM: Final = "PredictedHeadroom"
TIME_SHARED: Final = "TimeSharedThresholds"

_IN_TREE: Final = frozenset(
    {
        "NodeResourcesFit", "NodeResourcesBalancedAllocation", "NodeResourcesLeastAllocated",
        "NodeResourcesMostAllocated", "RequestedToCapacityRatio",
    }
)  # fmt: skip
"""Plugins of kube-scheduler whose names are like those of others that run here."""
_MOST_WEIGHT: Final = 2**31
_PARTS: Final = frozenset({"plugins", "pluginConfig"})
"""What a profile has, and a configuration has not."""
_TRIMARAN: Final[Mapping[str, Any]] = {
    "TargetLoadPacking": trimaran_args.TargetLoadPackingArgs,
    "LoadVariationRiskBalancing": trimaran_args.LoadVariationRiskBalancingArgs,
    "LowRiskOverCommitment": trimaran_args.LowRiskOverCommitmentArgs,
}
_OTHERS: Final[Mapping[str, Any]] = {
    HINT: plugin_args.SchedulingHintArgs,
    "Peaks": plugin_args.PeaksArgs,
    "ResourceLimits": plugin_args.ResourceLimitsArgs,
    "NodeResourcesFitPlus": plugin_args.NodeResourcesFitPlusArgs,
    "ScarceResourceAvoidance": plugin_args.ScarceResourceAvoidanceArgs,
    "NodeMetadata": plugin_args.NodeMetadataArgs,
    "NodeResourcesAllocatable": plugin_args.NodeResourcesAllocatableArgs,
    HEADROOM: plugin_args.PredictedHeadroomArgs,
}
_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    LOAD_AWARE: read_load_aware,
    TIME_SHARED: read_time_shared,
    **{name: partial(trimaran_args.read_args, kind=kind) for name, kind in _TRIMARAN.items()},
    **{name: partial(plugin_args.read_args, kind=kind) for name, kind in _OTHERS.items()},
}
PLUGINS: Final = tuple(_READERS)
"""The plugins that run here."""
FILTERS: Final = (LOAD_AWARE, HINT, TIME_SHARED)
"""Those that refuse nodes. All but the last score: it says when which thresholds of LoadAware's
hold."""


class Score(NamedTuple):
    plugin: str
    weight: int = 1


class Placement(NamedTuple):
    """What is enabled, with the arguments of each plugin by its name; `notes` are what users
    should know, each a sentence."""

    filters: tuple[str, ...]
    scores: tuple[Score, ...]
    args: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def load_aware(self) -> LoadAwareArgs:
        """The arguments of LoadAware: its estimates hold whether or not it is enabled."""
        args: LoadAwareArgs = self.args[LOAD_AWARE]
        return args


def usual(thresholds: Mapping[str, float], expiration_seconds: float) -> Placement:
    """LoadAware with its defaults, but for the thresholds of usage in percent; who was not heard of
    for `expiration_seconds` takes pods, and is never the best."""
    args = msgspec.structs.replace(
        read_load_aware({"enableScheduleWhenNodeMetricsExpired": True}),
        usage_thresholds=dict(thresholds),
        node_metric_expiration_seconds=expiration_seconds,
    )
    return Placement((LOAD_AWARE,), (Score(LOAD_AWARE),), {LOAD_AWARE: args})


def read_config(tree: Any, scheduler_name: str | None = None) -> Placement:
    """What a KubeSchedulerConfiguration enables of our plugins, in the profile of `scheduler_name`
    or the only one that has any.

    Raises InvalidPolicyError that says which key is of no use, and why.
    """
    profiles = [read_profile(profile) for profile in _profiles(tree)]
    named = [p for p in profiles if scheduler_name in (None, p.scheduler_name)]
    if not named:
        found = ", ".join(sorted({p.scheduler_name for p in profiles})) or "none"
        raise InvalidPolicyError(f"no profile is of {scheduler_name!r:.80}: there is {found}")
    ours = [p for p in named if _has_ours(p)]
    if len(ours) > 1:
        names = ", ".join(p.scheduler_name for p in ours)
        raise InvalidPolicyError(f"several profiles have plugins that run here: {names}")
    if not ours:
        enabled = [one.name for p in named for _, of in points(p) for one in of.enabled or ()]
        others = ", ".join(dict.fromkeys(enabled)) or "none"
        raise InvalidPolicyError(
            f"no plugin is enabled of those that run here, which are {_offered()}: there is "
            f"{others:.300}"
        )
    return _placement(ours[0])


def _offered() -> str:
    return ", ".join(PLUGINS)


def _profiles(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping) and "profiles" not in tree and not tree.keys().isdisjoint(_PARTS):
        return [tree]
    profiles = read_configuration(tree).get("profiles")
    if not isinstance(profiles, list) or not profiles:
        raise InvalidPolicyError("profiles: there is none")
    return profiles


def _has_ours(profile: Profile) -> bool:
    named = {one.name for _, found in points(profile) for one in found.enabled or ()}
    said = {one.name for one in profile.plugin_config or ()}
    for name in sorted((named | said) - _IN_TREE):
        refuse_misspelt(name, PLUGINS, "plugin")
    return not named.isdisjoint(PLUGINS)


def _placement(profile: Profile) -> Placement:
    enabled: dict[str, dict[str, int]] = {}
    disabled: dict[str, set[str]] = {}
    for point, found in points(profile):
        disabled.setdefault(point, set()).update(one.name for one in found.disabled or ())
        for one in found.enabled or ():
            if one.name in PLUGINS:
                enabled.setdefault(point, {})[one.name] = _weight(one, point)
    scores = at(SCORE_POINTS, enabled, disabled)
    scores = {name: weight for name, weight in scores.items() if name != TIME_SHARED}
    filters = {name for name in at(FILTER_POINTS, enabled, disabled) if name in FILTERS}
    used = {*scores, *filters}
    idle = tuple(_idle(enabled, used))
    if not used:
        raise InvalidPolicyError(f"nothing is left to run here: {'; '.join(idle)}")
    given = {one.name: one.args or {} for one in profile.plugin_config or ()}
    # What is not enabled is read, too: who looks at it should not find that it is wrong later.
    named = {LOAD_AWARE, *used, *(name for name in given if name in PLUGINS)}
    args = {name: _read(name, given.get(name, {})) for name in sorted(named)}
    if TIME_SHARED in filters:
        args[LOAD_AWARE] = looking_at_all(args[TIME_SHARED], args[LOAD_AWARE])
    return Placement(
        filters=tuple(name for name in FILTERS if name in filters),
        scores=tuple(Score(name, weight) for name, weight in scores.items()),
        args=args,
        notes=(*idle, *_notes(given, used, args)),
    )


def _idle(enabled: Mapping[str, Mapping[str, int]], used: Collection[str]) -> Iterator[str]:
    """Who is enabled only where nothing comes of it, which nobody would find out. At points of the
    scheduler's own the plugin may have a part to play there. Raises for other points."""
    for point, names in enabled.items():
        for name in sorted(set(names) - set(used)):
            where = [EVERYWHERE]
            where += ["filter"] if name in FILTERS else []
            where += ["score"] if name != TIME_SHARED else []
            said = f"plugins.{point}: {name} does nothing here, only at {', '.join(where)}"
            if point not in POINTS:
                raise InvalidPolicyError(said)
            yield said if point != EVERYWHERE else f"{name} is disabled wherever it would run"


def _weight(one: Enabled, point: str) -> int:
    weight = one.weight or 1
    if not 0 < weight <= _MOST_WEIGHT:
        wrong = f"more than {_MOST_WEIGHT}" if weight > 0 else "not above 0"
        raise InvalidPolicyError(f"plugins.{point}: weight {weight} of {one.name} is {wrong}")
    return weight


def _read(name: str, tree: Mapping[str, Any]) -> Any:
    kind = tree.get("kind", f"{name}Args")
    if kind != f"{name}Args":
        raise InvalidPolicyError(f"pluginConfig {name}: kind {kind!r:.80} is not {name}Args")
    version = tree.get("apiVersion", VERSIONS[0])
    if version not in VERSIONS:
        raise InvalidPolicyError(
            f"pluginConfig {name}: apiVersion {version!r:.80} is none of {', '.join(VERSIONS)}"
        )
    return _READERS[name](tree)


def _without_effect(
    load_aware: LoadAwareArgs, used: set[str], args: Mapping[str, Any]
) -> Iterator[str]:
    """What upstream takes without a word, and nothing comes of."""
    if LOAD_AWARE in used:
        yield from (f"{LOAD_AWARE}: {odd}" for odd in oddities(load_aware))
    if "Peaks" in used and not args["Peaks"].node_power_model:
        yield "Peaks: without nodePowerModel every node is as good as any other"
    if TIME_SHARED not in used:
        return
    if LOAD_AWARE not in used:
        yield f"{TIME_SHARED} says when which thresholds of {LOAD_AWARE} hold, which is not enabled"
    hours = args[TIME_SHARED].windows
    aggregated = load_aware.aggregated
    is_hidden = aggregated is not None and bool(aggregated.usage_thresholds)
    if is_hidden and any(
        one.usage_thresholds and not one.aggregated_usage_thresholds for one in hours
    ):
        yield (
            f"{TIME_SHARED}: usageThresholds of a window yield to aggregated.usageThresholds of "
            f"{LOAD_AWARE}: give it aggregatedUsageThresholds"
        )


def _notes(given: Mapping[str, Any], used: set[str], args: Mapping[str, Any]) -> Iterator[str]:
    for name in given:
        if name in PLUGINS and name not in used:
            yield f"{name} has arguments, and is not enabled"
    load_aware = args[LOAD_AWARE]
    for key, seconds in (
        ("estimatedSecondsAfterPodScheduled", load_aware.estimated_seconds_after_pod_scheduled),
        ("estimatedSecondsAfterInitialized", load_aware.estimated_seconds_after_initialized),
    ):
        if seconds is not None and seconds > YOUNG_SECONDS:
            yield f"{LOAD_AWARE}: {key} counts for {YOUNG_SECONDS} s, not for {seconds}"
    yield from _without_effect(load_aware, used, args)
    for name in sorted(used):
        said = given.get(name) or {}
        if name in _TRIMARAN:
            stated = trimaran_args.stated(said, _TRIMARAN[name])
            yield from (f"{name}: {odd}" for odd in trimaran_args.oddities(stated))
        if name in _TRIMARAN and ("watcherAddress" in said or "metricProvider" in said):
            yield f"{name}: usage comes from the state table, not from a watcher or provider"
