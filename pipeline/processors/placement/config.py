"""Plugins and their arguments as users have them: a KubeSchedulerConfiguration, or a profile of it.

Owes the rest: what is enabled of the plugins that are ours to run, with arguments that hold, each
key known or refused by name. Plugins of others are passed over: they run in the scheduler.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware.args import LoadAwareArgs, oddities
from pipeline.processors.loadaware.args import read_args as read_load_aware
from pipeline.processors.placement.schedule import looking_at_all
from pipeline.processors.placement.schedule import read_args as read_time_shared
from pipeline.processors.scorers import plugin_args, trimaran_args
from pipeline.topics.node_state import YOUNG_SECONDS

LOAD_AWARE: Final = "LoadAwareScheduling"
HINT: Final = "SchedulingHint"
HEADROOM: Final = "PredictedHeadroom"
TIME_SHARED: Final = "TimeSharedThresholds"

GROUP: Final = "kubescheduler.config.k8s.io"
_VERSIONS: Final = tuple(f"{GROUP}/{version}" for version in ("v1", "v1beta3", "v1beta2"))
CONFIGURATION: Final = "KubeSchedulerConfiguration"
_IN_TREE: Final = frozenset(
    {
        "NodeResourcesFit", "NodeResourcesBalancedAllocation", "NodeResourcesLeastAllocated",
        "NodeResourcesMostAllocated", "RequestedToCapacityRatio",
    }
)  # fmt: skip
"""Plugins of kube-scheduler whose names are like those of others that run here."""
_MOST_WEIGHT: Final = 2**31
_KEYS: Final = (
    "apiVersion", "kind", "parallelism", "leaderElection", "clientConnection", "enableProfiling",
    "enableContentionProfiling", "percentageOfNodesToScore", "podInitialBackoffSeconds",
    "podMaxBackoffSeconds", "profiles", "extenders", "delayCacheUntilActive", "healthzBindAddress",
    "metricsBindAddress",
)  # fmt: skip
_EVERYWHERE: Final = "multiPoint"
_FILTER_POINTS: Final = ("preFilter", "filter")
_SCORE_POINTS: Final = ("score",)
_POINTS: Final = (
    _EVERYWHERE, *_FILTER_POINTS, *_SCORE_POINTS, "preEnqueue", "queueSort", "postFilter",
    "preScore", "reserve", "permit", "preBind", "bind", "postBind",
)  # fmt: skip
"""The extension points of kube-scheduler; of these only the first four lead to something here."""

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


class _Enabled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: int | None = None


class _Set(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: tuple[_Enabled, ...] | None = None
    disabled: tuple[_Enabled, ...] | None = None


class _Plugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] | None = None


class _Profile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    scheduler_name: str = "default-scheduler"
    percentage_of_nodes_to_score: int | None = None
    plugins: dict[str, Any] | None = None
    plugin_config: tuple[_Plugin, ...] | None = None


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
    profiles = [_profile(profile) for profile in _profiles(tree)]
    named = [p for p in profiles if scheduler_name in (None, p.scheduler_name)]
    if not named:
        found = ", ".join(sorted({p.scheduler_name for p in profiles})) or "none"
        raise InvalidPolicyError(f"no profile is of {scheduler_name!r:.80}: there is {found}")
    ours = [p for p in named if _has_ours(p)]
    if len(ours) > 1:
        names = ", ".join(p.scheduler_name for p in ours)
        raise InvalidPolicyError(f"several profiles have plugins that run here: {names}")
    if not ours:
        enabled = [one.name for p in named for _, at in _points(p) for one in at.enabled or ()]
        others = ", ".join(dict.fromkeys(enabled)) or "none"
        raise InvalidPolicyError(
            f"no plugin is enabled of those that run here, which are {_offered()}: there is "
            f"{others:.300}"
        )
    return _placement(ours[0])


def _offered() -> str:
    return ", ".join(PLUGINS)


def _profiles(tree: Any) -> list[Any]:
    if not isinstance(tree, Mapping):
        raise InvalidPolicyError(f"not a {CONFIGURATION}: {type(tree).__name__}")
    if "profiles" not in tree and ("plugins" in tree or "pluginConfig" in tree):
        return [tree]
    for key in tree:
        _refuse_misspelt(key, _KEYS, "key")
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if version not in _VERSIONS:
        raise InvalidPolicyError(
            f"apiVersion: {version!r:.80} is none of {', '.join(_VERSIONS)}",
        )
    if kind != CONFIGURATION:
        raise InvalidPolicyError(f"kind: {kind!r:.80} is not {CONFIGURATION}")
    profiles = tree.get("profiles")
    if not isinstance(profiles, list) or not profiles:
        raise InvalidPolicyError("profiles: there is none")
    return profiles


def _profile(tree: Any) -> _Profile:
    try:
        profile = msgspec.convert(tree, _Profile)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"profiles: {error}") from error
    for point in profile.plugins or {}:
        _refuse_misspelt(point, _POINTS, "plugins: extension point")
    said = [one.name for one in profile.plugin_config or ()]
    if twice := sorted({name for name in said if said.count(name) > 1}):
        raise InvalidPolicyError(f"pluginConfig: {twice[0]:.80} is there more than once")
    return profile


def _refuse_misspelt(name: Any, known: Sequence[str], what: str) -> None:
    """What is far from all that is known may be of a newer scheduler, which knows what it means."""
    if name in known:
        return
    text = str(name)
    near = [one for one in known if _plain(one) == _plain(text)]
    if near := near or get_close_matches(text, known, n=1, cutoff=0.85):
        raise InvalidPolicyError(f"{what} {name!r:.80} is not known: is it {near[0]}?")


def _plain(name: str) -> str:
    """As it is whoever wrote it: Go's fields begin with a capital, settings of ours have `_`."""
    return name.replace("_", "").replace("-", "").lower()


def _points(profile: _Profile) -> Iterator[tuple[str, _Set]]:
    for point, tree in (profile.plugins or {}).items():
        # A post prints the sets of a point as a list.
        for part in tree if isinstance(tree, list) else [tree]:
            try:
                yield point, msgspec.convert(part or {}, _Set)
            except msgspec.ValidationError as error:
                raise InvalidPolicyError(f"plugins.{point}: {error}") from error


def _has_ours(profile: _Profile) -> bool:
    named = {one.name for _, found in _points(profile) for one in found.enabled or ()}
    said = {one.name for one in profile.plugin_config or ()}
    for name in sorted((named | said) - _IN_TREE):
        _refuse_misspelt(name, PLUGINS, "plugin")
    return not named.isdisjoint(PLUGINS)


def _placement(profile: _Profile) -> Placement:
    enabled: dict[str, dict[str, int]] = {}
    disabled: dict[str, set[str]] = {}
    for point, found in _points(profile):
        disabled.setdefault(point, set()).update(one.name for one in found.disabled or ())
        for one in found.enabled or ():
            if one.name in PLUGINS:
                enabled.setdefault(point, {})[one.name] = _weight(one, point)
    scores = _at(_SCORE_POINTS, enabled, disabled)
    scores = {name: weight for name, weight in scores.items() if name != TIME_SHARED}
    filters = {name for name in _at(_FILTER_POINTS, enabled, disabled) if name in FILTERS}
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


def _at(
    points: Sequence[str],
    enabled: Mapping[str, Mapping[str, int]],
    disabled: Mapping[str, Collection[str]],
) -> dict[str, int]:
    """The plugins that run at these points, with their weights, as kube-scheduler has it: what is
    enabled at a point runs, and what is enabled at all points unless the point disables it."""
    off = {name for point in points for name in disabled.get(point, ())}
    inherited = {} if "*" in off else enabled.get(_EVERYWHERE, {})
    found = {name: weight for name, weight in inherited.items() if name not in off}
    for point in points:
        found |= enabled.get(point, {})
    return found


def _idle(enabled: Mapping[str, Mapping[str, int]], used: Collection[str]) -> Iterator[str]:
    """Who is enabled only where nothing comes of it, which nobody would find out. At points of the
    scheduler's own the plugin may have a part to play there. Raises for other points."""
    for point, names in enabled.items():
        for name in sorted(set(names) - set(used)):
            points = [_EVERYWHERE]
            points += ["filter"] if name in FILTERS else []
            points += ["score"] if name != TIME_SHARED else []
            said = f"plugins.{point}: {name} does nothing here, only at {', '.join(points)}"
            if point not in _POINTS:
                raise InvalidPolicyError(said)
            yield said if point != _EVERYWHERE else f"{name} is disabled wherever it would run"


def _weight(one: _Enabled, point: str) -> int:
    weight = one.weight or 1
    if not 0 < weight <= _MOST_WEIGHT:
        raise InvalidPolicyError(f"plugins.{point}: weight {weight} of {one.name} is not above 0")
    return weight


def _read(name: str, tree: Mapping[str, Any]) -> Any:
    kind = tree.get("kind", f"{name}Args")
    if kind != f"{name}Args":
        raise InvalidPolicyError(f"pluginConfig {name}: kind {kind!r:.80} is not {name}Args")
    version = tree.get("apiVersion", _VERSIONS[0])
    if version not in _VERSIONS:
        raise InvalidPolicyError(
            f"pluginConfig {name}: apiVersion {version!r:.80} is none of {', '.join(_VERSIONS)}"
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
