"""Find what in a KubeSchedulerConfiguration does not work with the extender, or works against it.

Each finding names a place, its consequence and what to do. Other extenders are checked only for
what kube-scheduler refuses. Source: what kube-scheduler 1.36 validates, and how it calls extenders.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.durations import go_seconds
from pipeline.processors.placement.enabled_plugins import plugins
from pipeline.processors.placement.extender_config import BY_REQUESTS, TIMEOUT_SECONDS, VERBS, Mode
from pipeline.processors.placement.kube_config import (
    EVERYWHERE,
    FILTER_POINTS,
    KEYS,
    POINTS,
    SCORE_POINTS,
    VERSIONS,
    Profile,
    plugins_running_at,
    points,
    read_configuration,
    read_profile,
)

_FIT: Final = BY_REQUESTS[0]
_DEFAULT_TIMEOUT_SECONDS: Final = Decimal(5)
_SET_TIMEOUT: Final = f"set it to {TIMEOUT_SECONDS}s"
_POINTS_A_STEP: Final = 10
"""kube-scheduler multiplies an extender's scores by its weight and this; plugins score to 100."""


class Finding(NamedTuple):
    """A problem: where, its consequence, and what to do. If it `is_refused`, kube-scheduler does
    not start, or the extender cannot work with it."""

    where: str
    problem: str
    advice: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.advice}"


class _Extender(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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
    """The problems of a KubeSchedulerConfiguration, if the extender at `url` is in this mode.

    Without `url` the extender is the entry with `springtide` in its address, or the only entry.
    Raises InvalidPolicyError if `tree` is not a KubeSchedulerConfiguration.
    """
    configuration = read_configuration(tree)
    yield from _check_document(configuration)
    entries = enumerate(_entries(configuration, "extenders"))
    extenders = {f"extenders[{index}]": _extender(index, entry) for index, entry in entries}
    ours = _ours(extenders, url)
    prefixes = Counter(extender.url_prefix.rstrip("/") for extender in ours.values())
    for prefix, count in prefixes.items():
        if count > 1:
            problem = f"{prefix:.80} is there {count} times, and its scores count as often"
            yield Finding("extenders", problem, "name it once")
    for where, extender in extenders.items():
        yield from _check_any(where, extender)
        if where in ours:
            yield from _check_ours(where, extender)
    if not extenders:
        advice = "springtide scheduler config prints an entry"
        yield Finding("extenders", "there is none, so none is called", advice, is_refused=True)
    elif not ours:
        problem = f"no extender has the address {url}" if url else "no address contains springtide"
        yield Finding("extenders", problem, "give the address by --url", is_refused=url is not None)
    profiles = [read_profile(tree) for tree in _entries(configuration, "profiles") or [{}]]
    names = Counter(profile.scheduler_name for profile in profiles)
    for name, count in names.items():
        if count > 1:
            problem = f"{count} profiles have the schedulerName {name:.80}"
            yield Finding("profiles", problem, "give each its own", is_refused=True)
    scoring = [each.weight for each in ours.values() if each.prioritize_verb and each.weight > 0]
    for profile in profiles:
        yield from _check_profile(profile)
        yield from _check_scores(profile, mode, max(scoring, default=None))


def _check_document(configuration: Mapping[str, Any]) -> Iterator[Finding]:
    version = configuration["apiVersion"]
    if version != VERSIONS[0]:
        problem = "only kube-scheduler before 1.29 reads it"
        yield Finding(f"apiVersion {version}", problem, f"set it to {VERSIONS[0]}", is_refused=True)
    for key in configuration:
        if key not in KEYS:
            problem = "kube-scheduler has no such key"
            yield Finding(f"{key!s:.80}", problem, "leave it out", is_refused=True)
    yield from _check_share(
        "percentageOfNodesToScore", configuration.get("percentageOfNodesToScore")
    )
    workers = configuration.get("parallelism", 1)
    if type(workers) is not int or workers < 1:  # a bool is an int of Python, but not of Go
        problem = f"{workers!r:.40} is no whole number above 0"
        yield Finding("parallelism", problem, "leave it out", is_refused=True)


def _check_share(where: str, share: Any) -> Iterator[Finding]:
    if share is not None and not (type(share) is int and 0 <= share <= 100):
        problem = f"{share!r:.40} is no whole number of 0 to 100"
        yield Finding(where, problem, "leave it out, or set it to 100", is_refused=True)


def _entries(configuration: Mapping[str, Any], key: str) -> list[Any]:
    entries = configuration.get(key)
    if not isinstance(entries, list | None):
        raise InvalidPolicyError(f"{key}: not a list")
    return entries or []


def _extender(index: int, tree: Any) -> _Extender:
    try:
        return msgspec.convert(tree, _Extender)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"extenders[{index}]: {error}") from error


def _ours(extenders: Mapping[str, _Extender], url: str | None) -> dict[str, _Extender]:
    ours = {
        where: extender
        for where, extender in extenders.items()
        if ("springtide" in extender.url_prefix if url is None
            else extender.url_prefix.rstrip("/") == url.rstrip("/"))
    }  # fmt: skip
    return dict(extenders) if not ours and url is None and len(extenders) == 1 else ours


def _check_any(where: str, extender: _Extender) -> Iterator[Finding]:
    """What kube-scheduler refuses in any extender."""
    if extender.prioritize_verb and extender.weight <= 0:
        problem = f"{extender.weight} with prioritizeVerb: kube-scheduler refuses it"
        yield Finding(f"{where}.weight", problem, "set it to 1 or more", is_refused=True)
    for resource in extender.managed_resources or ():
        name = resource.get("name")
        domain, has_domain, _ = str(name).partition("/")
        if not isinstance(name, str) or not has_domain or domain.endswith("kubernetes.io"):
            problem = f"{name!r:.80} is no extended resource"
            yield Finding(f"{where}.managedResources", problem, "leave it out", is_refused=True)
    tls = extender.tls_config or {}
    if tls.get("insecure") and (tls.get("caFile") or tls.get("caData")):
        problem = "insecure together with a CA: kube-scheduler refuses it"
        yield Finding(f"{where}.tlsConfig", problem, "leave out insecure", is_refused=True)
    if extender.http_timeout is not None and go_seconds(extender.http_timeout) is None:
        problem = f"{extender.http_timeout!r:.40} is no duration"
        yield Finding(f"{where}.httpTimeout", problem, _SET_TIMEOUT, is_refused=True)


_CONSEQUENCES: Final[Mapping[str, str]] = {
    "filterVerb": "hot nodes take pods",
    "prioritizeVerb": "usage does not count in which node is best",
    "preemptVerb": "pods are evicted where that makes no room by usage",
}


def _check_ours(where: str, extender: _Extender) -> Iterator[Finding]:
    yield from _check_address(where, extender)
    yield from _check_timeout(where, extender)
    for key, verb in VERBS.items():
        stated = getattr(extender, f"{verb}_verb")
        if not stated:
            yield Finding(f"{where}.{key}", f"not set: {_CONSEQUENCES[key]}", f"set it to {verb}")
        elif stated != verb:
            problem = f"{stated!r:.80} is no path of the extender's, which answers 404"
            yield Finding(f"{where}.{key}", problem, f"set it to {verb}", is_refused=True)
    if extender.bind_verb:
        problem = "the extender binds no pods: none would be bound"
        yield Finding(f"{where}.bindVerb", problem, "leave it out", is_refused=True)
    if not extender.node_cache_capable:
        problem = "whole Nodes are sent with each question, 32 MB for 5,000 of them"
        yield Finding(f"{where}.nodeCacheCapable", problem, "set it to true")
    if not extender.ignorable:
        problem = "while no extender answers no pod is scheduled, the extender's own included"
        yield Finding(f"{where}.ignorable", problem, "set it to true")
    if extender.managed_resources:
        names = ", ".join(str(resource.get("name")) for resource in extender.managed_resources)
        problem = f"it is called only for pods that request {names:.200}"
        yield Finding(f"{where}.managedResources", problem, "leave it out")


def _check_address(where: str, extender: _Extender) -> Iterator[Finding]:
    try:
        address = urlsplit(extender.url_prefix)
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
        is_address &= address.port != 0 and not re.search(r"\s", extender.url_prefix)
    except ValueError:
        is_address = False
    if not is_address:
        problem = f"{extender.url_prefix!r:.80} is no http:// or https:// address"
        advice = "name the extender's Service and port"
        yield Finding(f"{where}.urlPrefix", problem, advice, is_refused=True)
        return
    if address.path.strip("/") or address.query or address.fragment:
        problem = f"{extender.url_prefix:.80} has a path, and the extender's verbs are at the top"
        yield Finding(
            f"{where}.urlPrefix", problem, "leave the path out, unless a proxy removes it"
        )
    is_https = address.scheme == "https"
    if is_https != extender.enable_https:
        problem = (
            f"{str(extender.enable_https).lower()}, and urlPrefix is {extender.url_prefix:.80}"
        )
        yield Finding(f"{where}.enableHTTPS", problem, f"set it to {str(is_https).lower()}")
    if is_https and not (extender.tls_config or {}).keys() & {"caFile", "caData"}:
        problem = "the extender's certificate is not verified: anybody may answer in its place"
        yield Finding(f"{where}.tlsConfig", problem, "set caFile to the CA of its certificate")


def _check_timeout(where: str, extender: _Extender) -> Iterator[Finding]:
    seconds = go_seconds(extender.http_timeout or "0")
    if seconds is None:
        return
    seconds = seconds or _DEFAULT_TIMEOUT_SECONDS
    if not 0 < seconds <= TIMEOUT_SECONDS:
        delay = f"{seconds:g} s" if seconds > 0 else "ever"
        problem = f"a connection that hangs holds up each pod for {delay}"
        yield Finding(f"{where}.httpTimeout", problem, _SET_TIMEOUT)


class _Running(NamedTuple):
    """The plugins that a profile enables and disables by point; `BY_REQUESTS` are on by default."""

    enabled: Mapping[str, Mapping[str, int]]
    disabled: Mapping[str, set[str]]

    def at(self, where: Sequence[str]) -> dict[str, int]:
        return plugins_running_at(where, self.enabled, self.disabled)


def _running(profile: Profile) -> _Running:
    enabled: dict[str, dict[str, int]] = {EVERYWHERE: dict.fromkeys(BY_REQUESTS, 1)}
    disabled: dict[str, set[str]] = {}
    for point, at_point in points(profile):
        off = {each.name for each in at_point.disabled or ()}
        disabled.setdefault(point, set()).update(off)
        if point == EVERYWHERE:
            removed = {*BY_REQUESTS} if "*" in off else off
            left = {name: w for name, w in enabled[EVERYWHERE].items() if name not in removed}
            enabled[EVERYWHERE] = left
        for each in at_point.enabled or ():
            enabled.setdefault(point, {})[each.name] = each.weight or 1
    return _Running(enabled, disabled)


def _check_profile(profile: Profile) -> Iterator[Finding]:
    """Problems of a profile in any mode of the extender."""
    where, running = f"profile {profile.scheduler_name:.80}", _running(profile)
    yield from _check_share(
        f"{where}: percentageOfNodesToScore", profile.percentage_of_nodes_to_score
    )
    for point, tree in (profile.plugins or {}).items():
        if point not in POINTS:
            problem = f"plugins.{point:.80} is no extension point"
            yield Finding(where, problem, f"choose of {', '.join(POINTS)}", is_refused=True)
        if isinstance(tree, list):
            problem = f"plugins.{point} is a list, which kube-scheduler refuses"
            yield Finding(where, problem, "write enabled and disabled", is_refused=True)
    ours = {name for names in running.enabled.values() for name in names} & {*plugins()}
    if ours:
        yield Finding(
            where,
            f"a kube-scheduler that was not built with {', '.join(sorted(ours))} does not start",
            "name them in extender.scheduler_config_file, if they are to run here",
        )
    yield from _check_peaks(where, profile)
    everywhere = running.disabled.get(EVERYWHERE, set())
    missing = [
        point for point in ("queueSort", "bind")
        if "*" in everywhere and not running.enabled.get(point) and not running.enabled[EVERYWHERE]
    ]  # fmt: skip
    if missing:
        problem = f"nothing is enabled at {' and '.join(missing)}: kube-scheduler does not start"
        yield Finding(where, problem, "disable at score alone", is_refused=True)
    elif _FIT not in running.at(FILTER_POINTS):
        problem = f"{_FIT} does not run at filter: pods land on nodes where they do not fit"
        yield Finding(where, problem, "disable it at score, not at multiPoint")


def _check_peaks(where: str, profile: Profile) -> Iterator[Finding]:
    """Keys that scheduler-plugins' Peaks does not know: the tags of its fields are malformed, so it
    reads them by their names in Go."""
    for each in profile.plugin_config or ():
        for key in each.args or {} if each.name == "Peaks" else ():
            if key in ("watcherAddress", "nodePowerModel"):
                problem = f"Peaks has no key {key}, and kube-scheduler does not start"
                advice = f"spell it {key[0].upper()}{key[1:]}"
                yield Finding(where, problem, advice, is_refused=True)


def _check_scores(profile: Profile, mode: Mode, weight: int | None) -> Iterator[Finding]:
    """Plugins whose scores by requests compete with an acting extender of this weight, if any."""
    where, running = f"profile {profile.scheduler_name:.80}", _running(profile).at(SCORE_POINTS)
    competing = {name: running[name] for name in BY_REQUESTS if name in running}
    if mode == "observe" and not competing:
        yield Finding(
            where,
            "nothing scores by requests, and an extender in mode observe gives no scores: load is "
            "not considered",
            f"let {' and '.join(BY_REQUESTS)} score until the extender acts",
        )
    total, step = 100 * sum(competing.values()), _POINTS_A_STEP * (weight or 0)
    if mode == "act" and weight is not None and step < total:
        yield Finding(
            where,
            f"{', '.join(competing)} score by requests with up to {total} points, where a step of "
            f"the extender's score is {step}: they may outvote it, and a pod in flight counts on "
            "the wrong node until its bind is seen",
            "disable them at score, or give the extender more weight",
        )
