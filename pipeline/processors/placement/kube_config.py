"""Read a KubeSchedulerConfiguration as kube-scheduler does: versions, keys, profiles, plugins.

Each key is known or refused by name. This module does not know what plugins are for.
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
    """The keys of a KubeSchedulerConfiguration. Raises InvalidPolicyError if `tree` is not one."""
    if not isinstance(tree, Mapping):
        what = "it is empty" if tree is None else "it is not an object"
        raise InvalidPolicyError(f"not a {CONFIGURATION}: {what}")
    if tree.get("kind") == "ConfigMap":
        raise InvalidPolicyError(
            f"it is a ConfigMap, not the {CONFIGURATION} in it",
            hint="save the value of its key as a file, and give that",
        )
    for key in tree:
        refuse_misspelt(key, KEYS, "key")
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if version not in VERSIONS:
        raise InvalidPolicyError(f"apiVersion: {version!r:.80} is not one of {', '.join(VERSIONS)}")
    if kind != CONFIGURATION:
        raise InvalidPolicyError(f"kind: {kind!r:.80} is not {CONFIGURATION}")
    return tree


def read_profile(tree: Any) -> Profile:
    """A profile. Raises InvalidPolicyError that names the invalid key."""
    try:
        profile = msgspec.convert(tree, Profile)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"profiles: {error}") from error
    for point in profile.plugins or {}:
        refuse_misspelt(point, POINTS, "plugins: extension point")
    names = [config.name for config in profile.plugin_config or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidPolicyError(f"pluginConfig: {twice[0]:.80} is there more than once")
    return profile


def refuse_misspelt(name: Any, known: Sequence[str], what: str) -> None:
    """Raise InvalidPolicyError for a name that is similar to a known one. Another unknown name may
    belong to a newer scheduler."""
    if name in known:
        return
    text = str(name)
    near = [each for each in known if _plain(each) == _plain(text)]
    if near := near or get_close_matches(text, known, n=1, cutoff=0.85):
        raise InvalidPolicyError(f"{what} {name!r:.80} is not known: is it {near[0]}?")


def _plain(name: str) -> str:
    """A name without case, `_` and `-`, by which Go's fields and our settings differ."""
    return name.replace("_", "").replace("-", "").lower()


def points(profile: Profile) -> Iterator[tuple[str, Plugins]]:
    """The plugins of a profile by extension point; a point may come several times."""
    for point, tree in (profile.plugins or {}).items():
        # Some documents write the sets of a point as a list.
        for part in tree if isinstance(tree, list) else [tree]:
            try:
                yield point, msgspec.convert(part or {}, Plugins)
            except msgspec.ValidationError as error:
                raise InvalidPolicyError(f"plugins.{point}: {error}") from error


def plugins_running_at(
    extension_points: Sequence[str],
    enabled: Mapping[str, Mapping[str, int]],
    disabled: Mapping[str, Collection[str]],
) -> dict[str, int]:
    """The plugins that run at extension points, with their weights, as in kube-scheduler: those
    enabled at a point, and those enabled at all points unless the point disables them."""
    off = {name for point in extension_points for name in disabled.get(point, ())}
    inherited = {} if "*" in off else enabled.get(EVERYWHERE, {})
    running = {name: weight for name, weight in inherited.items() if name not in off}
    for point in extension_points:
        running |= enabled.get(point, {})
    return running
