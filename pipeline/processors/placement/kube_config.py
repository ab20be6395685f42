"""A KubeSchedulerConfiguration as kube-scheduler reads it: versions, keys, profiles, plugins.

Owes the rest: a profile of known form, each key known or refused by name, and which plugins run at
an extension point. What plugins are and mean is of no interest here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidPolicyError

GROUP: Final = "kubescheduler.config.k8s.io"
VERSIONS: Final = tuple(f"{GROUP}/{version}" for version in ("v1", "v1beta3", "v1beta2"))
CONFIGURATION: Final = "KubeSchedulerConfiguration"
KEYS: Final = (
    "apiVersion", "kind", "parallelism", "leaderElection", "clientConnection", "enableProfiling",
    "enableContentionProfiling", "percentageOfNodesToScore", "podInitialBackoffSeconds",
    "podMaxBackoffSeconds", "profiles", "extenders", "delayCacheUntilActive", "healthzBindAddress",
    "metricsBindAddress",
)  # fmt: skip
EVERYWHERE: Final = "multiPoint"
FILTER_POINTS: Final = ("preFilter", "filter")
SCORE_POINTS: Final = ("score",)
POINTS: Final = (
    EVERYWHERE, *FILTER_POINTS, *SCORE_POINTS, "preEnqueue", "queueSort", "postFilter",
    "preScore", "reserve", "permit", "preBind", "bind", "postBind",
)  # fmt: skip
"""The extension points of kube-scheduler."""


class Enabled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: int | None = None


class Plugins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one extension point."""

    enabled: tuple[Enabled, ...] | None = None
    disabled: tuple[Enabled, ...] | None = None


class PluginConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] | None = None


class Profile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    scheduler_name: str = "default-scheduler"
    percentage_of_nodes_to_score: int | None = None
    plugins: dict[str, Any] | None = None
    plugin_config: tuple[PluginConfig, ...] | None = None


def read_configuration(tree: Any) -> Mapping[str, Any]:
    """The keys of a KubeSchedulerConfiguration. Raises InvalidPolicyError for what is none."""
    if not isinstance(tree, Mapping):
        raise InvalidPolicyError(f"not a {CONFIGURATION}: {type(tree).__name__}")
    if tree.get("kind") == "ConfigMap":
        raise InvalidPolicyError(
            f"it is a ConfigMap, and not the {CONFIGURATION} in it",
            hint="give what stands under a key of its data, as a file of its own",
        )
    for key in tree:
        refuse_misspelt(key, KEYS, "key")
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if version not in VERSIONS:
        raise InvalidPolicyError(
            f"apiVersion: {version!r:.80} is none of {', '.join(VERSIONS)}",
        )
    if kind != CONFIGURATION:
        raise InvalidPolicyError(f"kind: {kind!r:.80} is not {CONFIGURATION}")
    return tree


def read_profile(tree: Any) -> Profile:
    """A profile. Raises InvalidPolicyError, which says where it is none."""
    try:
        profile = msgspec.convert(tree, Profile)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"profiles: {error}") from error
    for point in profile.plugins or {}:
        refuse_misspelt(point, POINTS, "plugins: extension point")
    said = [one.name for one in profile.plugin_config or ()]
    if twice := sorted({name for name in said if said.count(name) > 1}):
        raise InvalidPolicyError(f"pluginConfig: {twice[0]:.80} is there more than once")
    return profile


def refuse_misspelt(name: Any, known: Sequence[str], what: str) -> None:
    """Raise InvalidPolicyError for a name that is nearly one that is known. What is far from all of
    them may be of a newer scheduler, which knows what it means."""
    if name in known:
        return
    text = str(name)
    near = [one for one in known if _plain(one) == _plain(text)]
    if near := near or get_close_matches(text, known, n=1, cutoff=0.85):
        raise InvalidPolicyError(f"{what} {name!r:.80} is not known: is it {near[0]}?")


def _plain(name: str) -> str:
    """As it is whoever wrote it: Go's fields begin with a capital, settings of ours have `_`."""
    return name.replace("_", "").replace("-", "").lower()


def points(profile: Profile) -> Iterator[tuple[str, Plugins]]:
    """What a profile enables and disables, by extension point; a point may come several times."""
    for point, tree in (profile.plugins or {}).items():
        # A post prints the sets of a point as a list.
        for part in tree if isinstance(tree, list) else [tree]:
            try:
                yield point, msgspec.convert(part or {}, Plugins)
            except msgspec.ValidationError as error:
                raise InvalidPolicyError(f"plugins.{point}: {error}") from error


def running_at(
    where: Sequence[str],
    enabled: Mapping[str, Mapping[str, int]],
    disabled: Mapping[str, Collection[str]],
) -> dict[str, int]:
    """The plugins that run at these points, with their weights, as kube-scheduler has it: what is
    enabled at a point runs, and what is enabled at all points unless the point disables it."""
    off = {name for point in where for name in disabled.get(point, ())}
    inherited = {} if "*" in off else enabled.get(EVERYWHERE, {})
    found = {name: weight for name, weight in inherited.items() if name not in off}
    for point in where:
        found |= enabled.get(point, {})
    return found
