"""What in a KubeSchedulerConfiguration does not work with an extender of ours, or works against it.

Owes the rest: each finding with where it is, what it leads to and what to do, whoever wrote the
file. Extenders of others are looked at only for what kube-scheduler refuses. Source: what
kube-scheduler 1.36 validates, and how it asks extenders.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.extender_config import (
    BY_REQUESTS,
    TIMEOUT_SECONDS,
    VERBS,
    Mode,
)
from pipeline.processors.placement.kube_config import (
    EVERYWHERE,
    FILTER_POINTS,
    KEYS,
    POINTS,
    SCORE_POINTS,
    VERSIONS,
    Profile,
    points,
    read_configuration,
    read_profile,
    running_at,
)
from pipeline.processors.placement.plugin_config import plugins

_FIT: Final = BY_REQUESTS[0]
_USUAL_TIMEOUT_SECONDS: Final = 5.0
_POINTS_A_STEP: Final = 10
"""kube-scheduler multiplies scores of an extender by its weight and this; a plugin has 0 to 100."""
_SECONDS: Final = {
    "ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0,
    "h": 3600.0,
}  # fmt: skip
_PART: Final = re.compile(rf"(\d+\.?\d*|\.\d+)({'|'.join(_SECONDS)})")
_DURATION: Final = re.compile(rf"[-+]?(?:(?:{_PART.pattern})+|0)")


class Finding(NamedTuple):
    """Something that should be otherwise: where, what it leads to, and what to do. If it
    `is_refused`, it does not work: kube-scheduler does not start, or the extender has no say."""

    where: str
    says: str
    todo: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.says}; {self.todo}"


class _Extender(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An entry of `extenders`."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: dict[str, Any] | None = None
    http_timeout: str | None = None
    node_cache_capable: bool = False
    managed_resources: tuple[dict[str, Any], ...] | None = None
    ignorable: bool = False


def findings(tree: Any, mode: Mode, url: str | None = None) -> Iterator[Finding]:
    """What should be otherwise in what kube-scheduler is started with, if the extender at `url` is
    in this mode; without it that is the one whose address says so, or the only one. Raises
    InvalidPolicyError for what is no KubeSchedulerConfiguration."""
    configuration = read_configuration(tree)
    yield from _of_document(configuration)
    said = enumerate(_entries(configuration, "extenders"))
    extenders = {f"extenders[{place}]": _extender(place, one) for place, one in said}
    ours = _ours(extenders, url)
    prefixes = Counter(one.url_prefix.rstrip("/") for one in ours.values())
    for prefix, count in prefixes.items():
        if count > 1:
            found = f"{prefix:.80} is there {count} times, and its scores count as often"
            yield Finding("extenders", found, "name it once")
    for where, one in extenders.items():
        yield from _refused(where, one)
        if where in ours:
            yield from _of_ours(where, one)
    if not extenders:
        todo = "springtide scheduler config prints an entry"
        yield Finding("extenders", "there is none, so nobody is asked", todo, is_refused=True)
    elif not ours:
        found = (
            f"none of them is {url}" if url else "which of them is Springtide's is not to be seen"
        )
        yield Finding("extenders", found, "name its address by --url", is_refused=url is not None)
    profiles = [read_profile(one) for one in _entries(configuration, "profiles") or [{}]]
    names = Counter(profile.scheduler_name for profile in profiles)
    for name, count in names.items():
        if count > 1:
            found = f"{count} profiles have the schedulerName {name:.80}"
            yield Finding("profiles", found, "give each its own", is_refused=True)
    scoring = [one.weight for one in ours.values() if one.prioritize_verb and one.weight > 0]
    for profile in profiles:
        yield from _of_profile(profile)
        yield from _of_scores(profile, mode, max(scoring, default=None))


def _of_document(configuration: Mapping[str, Any]) -> Iterator[Finding]:
    version = configuration["apiVersion"]
    if version != VERSIONS[0]:
        found = "read by kube-scheduler before 1.29 alone"
        yield Finding(f"apiVersion {version}", found, f"set it to {VERSIONS[0]}", is_refused=True)
    for key in configuration:
        if key not in KEYS:
            found = "kube-scheduler knows no such key"
            yield Finding(f"{key!s:.80}", found, "leave it out", is_refused=True)
    yield from _of_share("percentageOfNodesToScore", configuration.get("percentageOfNodesToScore"))
    workers = configuration.get("parallelism", 1)
    if not isinstance(workers, int) or workers < 1:
        found = f"{workers!r:.40} is no whole number above 0"
        yield Finding("parallelism", found, "leave it out", is_refused=True)


def _of_share(where: str, share: Any) -> Iterator[Finding]:
    if share is not None and not (isinstance(share, int) and 0 <= share <= 100):
        found = f"{share!r:.40} is no whole number of 0 to 100"
        yield Finding(where, found, "leave it out, or set it to 100", is_refused=True)


def _entries(configuration: Mapping[str, Any], key: str) -> list[Any]:
    found = configuration.get(key)
    if not isinstance(found, list | None):
        raise InvalidPolicyError(f"{key}: not a list")
    return found or []


def _extender(place: int, tree: Any) -> _Extender:
    try:
        return msgspec.convert(tree, _Extender)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"extenders[{place}]: {error}") from error


def _ours(extenders: Mapping[str, _Extender], url: str | None) -> dict[str, _Extender]:
    if url is not None:
        wanted = url.rstrip("/")
        return {at: one for at, one in extenders.items() if one.url_prefix.rstrip("/") == wanted}
    named = {at: one for at, one in extenders.items() if "springtide" in one.url_prefix}
    return named or (dict(extenders) if len(extenders) == 1 else {})


def _refused(where: str, of: _Extender) -> Iterator[Finding]:
    """What kube-scheduler itself refuses, of any extender."""
    if of.prioritize_verb and of.weight <= 0:
        found = f"{of.weight} with prioritizeVerb: kube-scheduler refuses it"
        yield Finding(f"{where}.weight", found, "set it to 1 or more", is_refused=True)
    for one in of.managed_resources or ():
        name = one.get("name")
        domain, has_domain, _ = str(name).partition("/")
        if not isinstance(name, str) or not has_domain or domain.endswith("kubernetes.io"):
            found = f"{name!r:.80} is no extended resource"
            yield Finding(f"{where}.managedResources", found, "leave it out", is_refused=True)
    tls = of.tls_config or {}
    if tls.get("insecure") and (tls.get("caFile") or tls.get("caData")):
        found = "insecure together with a CA: kube-scheduler refuses it"
        yield Finding(f"{where}.tlsConfig", found, "leave out insecure", is_refused=True)
    if of.http_timeout is not None and _seconds(of.http_timeout) is None:
        found = f"{of.http_timeout!r:.40} is no duration"
        yield Finding(f"{where}.httpTimeout", found, "set it to 1s", is_refused=True)


_WITHOUT: Final[Mapping[str, str]] = {
    "filterVerb": "hot nodes take pods like others",
    "prioritizeVerb": "usage has no say in which node is best",
    "preemptVerb": "pods are evicted where that makes no room by usage",
}


def _of_ours(where: str, of: _Extender) -> Iterator[Finding]:
    yield from _of_address(where, of)
    yield from _of_timeout(where, of)
    said = {
        "filterVerb": of.filter_verb,
        "prioritizeVerb": of.prioritize_verb,
        "preemptVerb": of.preempt_verb,
    }
    for key, verb in VERBS.items():
        if not said[key]:
            yield Finding(f"{where}.{key}", f"not set: {_WITHOUT[key]}", f"set it to {verb}")
        elif said[key] != verb:
            found = f"{said[key]!r:.80} is no path of the extender's, which answers 404"
            yield Finding(f"{where}.{key}", found, f"set it to {verb}", is_refused=True)
    if of.bind_verb:
        found = "the extender binds no pods: none would be bound"
        yield Finding(f"{where}.bindVerb", found, "leave it out", is_refused=True)
    if not of.node_cache_capable:
        found = "whole Nodes are sent with each question, 32 MB for 5,000 of them"
        yield Finding(f"{where}.nodeCacheCapable", found, "set it to true")
    if not of.ignorable:
        found = "while no extender answers no pod is scheduled, the extender's own included"
        yield Finding(f"{where}.ignorable", found, "set it to true")
    if of.managed_resources:
        names = ", ".join(str(one.get("name")) for one in of.managed_resources)
        found = f"it is asked about pods alone that name {names:.200}"
        yield Finding(f"{where}.managedResources", found, "leave it out")


def _of_address(where: str, of: _Extender) -> Iterator[Finding]:
    try:
        address = urlsplit(of.url_prefix)
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
        is_address &= address.port != 0 and not re.search(r"\s", of.url_prefix)
    except ValueError:
        is_address = False
    if not is_address:
        found = f"{of.url_prefix!r:.80} is no http:// or https:// address"
        todo = "name the extender's Service and port"
        yield Finding(f"{where}.urlPrefix", found, todo, is_refused=True)
        return
    if address.path.strip("/") or address.query or address.fragment:
        found = f"{of.url_prefix:.80} has a path, and the extender's verbs are at the top"
        yield Finding(
            f"{where}.urlPrefix", found, "leave the path out, unless a proxy takes it off"
        )
    is_https = address.scheme == "https"
    if is_https != of.enable_https:
        found = f"{str(of.enable_https).lower()}, and urlPrefix is {of.url_prefix:.80}"
        yield Finding(f"{where}.enableHTTPS", found, f"set it to {str(is_https).lower()}")
    if is_https and not (of.tls_config or {}).keys() & {"caFile", "caData"}:
        found = "the extender's certificate is not checked: anybody may answer in its place"
        yield Finding(f"{where}.tlsConfig", found, "name the caFile of who signed it")


def _of_timeout(where: str, of: _Extender) -> Iterator[Finding]:
    seconds = _seconds(of.http_timeout or "0")
    if seconds is None:
        return
    seconds = seconds or _USUAL_TIMEOUT_SECONDS
    if not 0 < seconds <= TIMEOUT_SECONDS:
        held = f"{seconds:g} s" if seconds > 0 else "ever"
        found = f"a connection that hangs holds up each pod for {held}"
        yield Finding(f"{where}.httpTimeout", found, "set it to 1s")


def _seconds(text: str) -> float | None:
    """A duration as Go writes it.

    >>> _seconds("1m30s"), _seconds("-.5s"), _seconds("0"), _seconds("1"), _seconds("")
    (90.0, -0.5, 0.0, None, None)
    """
    if not _DURATION.fullmatch(text):
        return None
    total = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


class _Running(NamedTuple):
    """What a profile enables and disables by point, and what it leaves of `BY_REQUESTS`."""

    enabled: Mapping[str, Mapping[str, int]]
    disabled: Mapping[str, set[str]]

    def at(self, where: Sequence[str]) -> dict[str, int]:
        return running_at(where, self.enabled, self.disabled)


def _running(profile: Profile) -> _Running:
    enabled: dict[str, dict[str, int]] = {EVERYWHERE: dict.fromkeys(BY_REQUESTS, 1)}
    disabled: dict[str, set[str]] = {}
    for point, found in points(profile):
        off = {one.name for one in found.disabled or ()}
        disabled.setdefault(point, set()).update(off)
        if point == EVERYWHERE:
            gone = {*BY_REQUESTS} if "*" in off else off
            left = {name: one for name, one in enabled[EVERYWHERE].items() if name not in gone}
            enabled[EVERYWHERE] = left
        for one in found.enabled or ():
            enabled.setdefault(point, {})[one.name] = one.weight or 1
    return _Running(enabled, disabled)


def _of_profile(profile: Profile) -> Iterator[Finding]:
    """What is wrong with a profile whatever the extender does."""
    where, of = f"profile {profile.scheduler_name:.80}", _running(profile)
    yield from _of_share(f"{where}: percentageOfNodesToScore", profile.percentage_of_nodes_to_score)
    for point, tree in (profile.plugins or {}).items():
        if point not in POINTS:
            found = f"plugins.{point:.80} is no extension point"
            yield Finding(where, found, f"choose of {', '.join(POINTS)}", is_refused=True)
        if isinstance(tree, list):
            found = f"plugins.{point} is a list, and kube-scheduler takes none there"
            yield Finding(where, found, "write enabled and disabled", is_refused=True)
    ours = {name for names in of.enabled.values() for name in names} & {*plugins()}
    if ours:
        yield Finding(
            where,
            f"a kube-scheduler that was not built with {', '.join(sorted(ours))} does not start",
            "name them in extender.scheduler_config_file, if they are to run here",
        )
    everywhere = of.disabled.get(EVERYWHERE, set())
    missing = [
        point for point in ("queueSort", "bind")
        if "*" in everywhere and not of.enabled.get(point) and not of.enabled[EVERYWHERE]
    ]  # fmt: skip
    if missing:
        found = f"nothing is enabled at {' and '.join(missing)}: kube-scheduler does not start"
        yield Finding(where, found, "disable at score alone", is_refused=True)
    elif _FIT not in of.at(FILTER_POINTS):
        found = f"{_FIT} does not run at filter: pods land on nodes where they do not fit"
        yield Finding(where, found, "disable it at score, not at multiPoint")


def _of_scores(profile: Profile, mode: Mode, weight: int | None) -> Iterator[Finding]:
    """Who scores by requests, where that is what the extender does (of this weight, if it does)."""
    where, on = f"profile {profile.scheduler_name:.80}", _running(profile).at(SCORE_POINTS)
    fighting = {name: on[name] for name in BY_REQUESTS if name in on}
    if mode == "observe" and not fighting:
        yield Finding(
            where,
            "nothing scores by requests, and an extender in mode observe gives no scores: nodes "
            "are filled as it happens",
            f"let {' and '.join(BY_REQUESTS)} score until the extender acts",
        )
    theirs, step = 100 * sum(fighting.values()), _POINTS_A_STEP * (weight or 0)
    if mode == "act" and weight is not None and step < theirs:
        yield Finding(
            where,
            f"{', '.join(fighting)} score by requests with up to {theirs} points, where a step of "
            f"the extender's score is {step}: they may outvote it, and a pod in flight counts on "
            "the wrong node until its bind is seen",
            "disable them at score, or give the extender more weight",
        )
