"""Read which plugins a KubeSchedulerConfiguration, or a profile of one, enables here.

Plugins that run here are read with their arguments; every key is known or refused by name. Plugins
that run in the scheduler are ignored.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.placement.kube_config import (
    EVERYWHERE,
    FILTER_POINTS,
    POINTS,
    SCORE_POINTS,
    VERSIONS,
    Enabled,
    Profile,
    plugins_running_at,
    points,
    read_configuration,
    read_profile,
    refuse_misspelt,
)
from pipeline.processors.placement.threshold_hours import (
    TIME_SHARED,
    args_in_force,
    with_all_resources,
)
from pipeline.processors.placement.threshold_hours import read_args as read_time_shared
from pipeline.processors.scorers import load_aware, predicted_headroom
from pipeline.processors.scorers.load_aware import LOAD_AWARE
from pipeline.processors.scorers.registry import SCORERS
from pipeline.processors.scorers.scheduling_hint import HINT
from pipeline.topics.node_state import YOUNG_SECONDS

_IN_TREE: Final = frozenset(
    {
        "NodeResourcesFit", "NodeResourcesBalancedAllocation", "NodeResourcesLeastAllocated",
        "NodeResourcesMostAllocated", "RequestedToCapacityRatio",
    }
)  # fmt: skip
"""Plugins of kube-scheduler with names similar to those of plugins that run here."""
_HIGHEST_WEIGHT: Final = 2**31
_PROFILE_KEYS: Final = frozenset({"plugins", "pluginConfig"})
"""Keys of a profile that a configuration does not have."""
FILTERS: Final = (LOAD_AWARE, HINT, TIME_SHARED)
"""The plugins that filter. `TIME_SHARED` sets the thresholds of `LOAD_AWARE` and does not score."""


def plugins() -> tuple[str, ...]:
    return tuple(dict.fromkeys((LOAD_AWARE, TIME_SHARED, *SCORERS.points)))


class Score(NamedTuple):
    plugin: str
    weight: int = 1


class Placement(NamedTuple):
    """The plugins that are enabled, and their arguments by plugin name; `notes` are sentences that
    users should read."""

    filters: tuple[str, ...]
    scores: tuple[Score, ...]
    args: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def load_aware(self) -> LoadAwareArgs:
        """The arguments of LoadAware; its estimates are used even if it is not enabled."""
        args: LoadAwareArgs = self.args[LOAD_AWARE]
        return args

    def expiration_seconds(self, stale_after_seconds: float) -> float:
        """The age at which usage of a node is lost: that of LoadAware, by default that from which
        data is stale."""
        return float(self.load_aware.node_metric_expiration_seconds or stale_after_seconds)

    def load_aware_filter(self, now: float) -> LoadAwareArgs | None:
        """LoadAware's arguments with the thresholds in force at `now`, Unix time; None if it does
        not filter."""
        if LOAD_AWARE not in self.filters:
            return None
        if TIME_SHARED in self.filters:
            return args_in_force(self.args[TIME_SHARED], self.load_aware, now)
        return self.load_aware


def default_placement(thresholds: Mapping[str, float], expiration_seconds: float) -> Placement:
    """LoadAware and PredictedHeadroom with their defaults, except for the usage thresholds in
    percent, and for nodes that did not report for `expiration_seconds`: they take pods and are
    never the best."""
    args = msgspec.structs.replace(
        load_aware.SCORER.read({"enableScheduleWhenNodeMetricsExpired": True}),
        usage_thresholds=dict(thresholds),
        node_metric_expiration_seconds=expiration_seconds,
    )
    headroom = predicted_headroom.PredictedHeadroomArgs(usage_expiration_seconds=expiration_seconds)
    names = LOAD_AWARE, predicted_headroom.SCORER.name
    return Placement(
        (LOAD_AWARE,), tuple(map(Score, names)), dict(zip(names, (args, headroom), strict=True))
    )


def read_config(tree: Any, scheduler_name: str | None = None) -> Placement:
    """The plugins that a KubeSchedulerConfiguration enables here, in the profile of
    `scheduler_name` or the only one that enables any.

    Raises InvalidPolicyError that names the invalid key and why.
    """
    profiles = [read_profile(profile) for profile in _profiles(tree)]
    candidates = [p for p in profiles if scheduler_name in (None, p.scheduler_name)]
    if not candidates:
        names = ", ".join(sorted({p.scheduler_name for p in profiles})) or "none"
        raise InvalidPolicyError(f"no profile is named {scheduler_name!r:.80}: there is {names}")
    ours = [p for p in candidates if _has_ours(p)]
    if len(ours) > 1:
        names = ", ".join(p.scheduler_name for p in ours)
        raise InvalidPolicyError(f"several profiles have plugins that run here: {names}")
    if not ours:
        enabled = [
            each.name
            for p in candidates
            for _, plugin_set in points(p)
            for each in plugin_set.enabled or ()
        ]
        others = ", ".join(dict.fromkeys(enabled)) or "none"
        raise InvalidPolicyError(
            f"no plugin that runs here is enabled ({', '.join(plugins())}): there is {others:.300}"
        )
    return _placement(ours[0])


def _profiles(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping) and "profiles" not in tree and tree.keys() & _PROFILE_KEYS:
        return [tree]
    profiles = read_configuration(tree).get("profiles")
    if not isinstance(profiles, list) or not profiles:
        raise InvalidPolicyError("profiles: there is none")
    return profiles


def _has_ours(profile: Profile) -> bool:
    enabled = {each.name for _, plugin_set in points(profile) for each in plugin_set.enabled or ()}
    configured = {each.name for each in profile.plugin_config or ()}
    for name in sorted((enabled | configured) - _IN_TREE):
        refuse_misspelt(name, plugins(), "plugin")
    return not enabled.isdisjoint(plugins())


def _placement(profile: Profile) -> Placement:
    enabled: dict[str, dict[str, int]] = {}
    disabled: dict[str, set[str]] = {}
    for point, plugin_set in points(profile):
        disabled.setdefault(point, set()).update(each.name for each in plugin_set.disabled or ())
        for each in plugin_set.enabled or ():
            if each.name in plugins():
                enabled.setdefault(point, {})[each.name] = _weight(each, point)
    scores = plugins_running_at(SCORE_POINTS, enabled, disabled)
    scores = {name: weight for name, weight in scores.items() if name != TIME_SHARED}
    filters = {
        name for name in plugins_running_at(FILTER_POINTS, enabled, disabled) if name in FILTERS
    }
    used = {*scores, *filters}
    idle = tuple(_idle(enabled, used))
    if not used:
        raise InvalidPolicyError(f"nothing is left to run here: {'; '.join(idle)}")
    given = {each.name: each.args or {} for each in profile.plugin_config or ()}
    # Read arguments of disabled plugins too, so that enabling one does not reveal an error.
    named = {LOAD_AWARE, *used, *(name for name in given if name in plugins())}
    args = {name: _read(name, given.get(name, {})) for name in sorted(named)}
    if TIME_SHARED in filters:
        args[LOAD_AWARE] = with_all_resources(args[TIME_SHARED], args[LOAD_AWARE])
    return Placement(
        filters=tuple(name for name in FILTERS if name in filters),
        scores=tuple(Score(name, weight) for name, weight in scores.items()),
        args=args,
        notes=(*idle, *_notes(given, used, args)),
    )


def _idle(enabled: Mapping[str, Mapping[str, int]], used: Collection[str]) -> Iterator[str]:
    """Plugins that are enabled only at points that do nothing here. Raises InvalidPolicyError for
    a point that kube-scheduler does not have; at its own points the plugin may do something there.
    """
    for point, names in enabled.items():
        for name in sorted(set(names) - set(used)):
            where = [EVERYWHERE]
            where += ["filter"] if name in FILTERS else []
            where += ["score"] if name != TIME_SHARED else []
            message = f"plugins.{point}: {name} does nothing here, only at {', '.join(where)}"
            if point not in POINTS:
                raise InvalidPolicyError(message)
            yield message if point != EVERYWHERE else f"{name} is disabled wherever it would run"


def _weight(plugin: Enabled, point: str) -> int:
    weight = plugin.weight or 1
    if not 0 < weight <= _HIGHEST_WEIGHT:
        wrong = f"more than {_HIGHEST_WEIGHT}" if weight > 0 else "not above 0"
        raise InvalidPolicyError(f"plugins.{point}: weight {weight} of {plugin.name} is {wrong}")
    return weight


def _read(name: str, tree: Mapping[str, Any]) -> Any:
    kind = tree.get("kind", f"{name}Args")
    if kind != f"{name}Args":
        raise InvalidPolicyError(f"pluginConfig {name}: kind {kind!r:.80} is not {name}Args")
    version = tree.get("apiVersion", VERSIONS[0])
    if version not in VERSIONS:
        raise InvalidPolicyError(
            f"pluginConfig {name}: apiVersion {version!r:.80} is not one of {', '.join(VERSIONS)}"
        )
    return read_time_shared(tree) if name == TIME_SHARED else SCORERS.get(name).read(tree)


def _notes(given: Mapping[str, Any], used: set[str], args: Mapping[str, Any]) -> Iterator[str]:
    for name in given:
        if name in plugins() and name not in used:
            yield f"{name} has arguments, and is not enabled"
    estimates = args[LOAD_AWARE]
    for key, seconds in (
        ("estimatedSecondsAfterPodScheduled", estimates.estimated_seconds_after_pod_scheduled),
        ("estimatedSecondsAfterInitialized", estimates.estimated_seconds_after_initialized),
    ):
        if seconds is not None and seconds > YOUNG_SECONDS:
            yield f"{LOAD_AWARE}: {key} counts for {YOUNG_SECONDS} s, not for {seconds}"
    for name in sorted(used - {TIME_SHARED}):
        notes = SCORERS.get(name).notes(given.get(name, {}), args[name])
        yield from (f"{name}: {note}" for note in notes)
    if TIME_SHARED in used:
        yield from _notes_on_hours(estimates, used, args)


def _notes_on_hours(
    load_aware_args: LoadAwareArgs, used: set[str], args: Mapping[str, Any]
) -> Iterator[str]:
    if LOAD_AWARE not in used:
        yield f"{TIME_SHARED} sets thresholds of {LOAD_AWARE} by the hour, which is not enabled"
    aggregated = load_aware_args.aggregated
    has_aggregated = aggregated is not None and bool(aggregated.usage_thresholds)
    if has_aggregated and any(
        hours.usage_thresholds and not hours.aggregated_usage_thresholds
        for hours in args[TIME_SHARED].windows
    ):
        yield (
            f"{TIME_SHARED}: usageThresholds of a window yield to aggregated.usageThresholds of "
            f"{LOAD_AWARE}: give it aggregatedUsageThresholds"
        )
