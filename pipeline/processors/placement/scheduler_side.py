"""The scheduler's side of an extender: a KubeSchedulerConfiguration that asks it, and what in one
would not work, or would work against it.

Owes the rest: `generated` gives what kube-scheduler takes, and `findings` names all of it that
should be otherwise, whoever wrote it. Source: kube-scheduler's extender API, and KEP-61 of
scheduler-plugins, by which scores of what is asked for must not fight those of what is used.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.config import PLUGINS
from pipeline.processors.placement.kube_config import (
    CONFIGURATION,
    EVERYWHERE,
    SCORE_POINTS,
    VERSIONS,
    Profile,
    at,
    points,
    read_configuration,
    read_profile,
)

BY_REQUESTS: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""The scoring plugins of kube-scheduler that go by what is asked for."""
VERBS: Final[Mapping[str, str]] = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
}
TIMEOUT_SECONDS: Final = 1
_USUAL_TIMEOUT_SECONDS: Final = 5.0
_POINTS_A_STEP: Final = 10
"""kube-scheduler multiplies scores of an extender by its weight and this; a plugin has 0 to 100."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

Mode = Literal["observe", "act"]


class Wanted(NamedTuple):
    """What a configuration is to say: where the extender is, whether its answers count, how much
    beside other scores, and files as the scheduler sees them: of who signed the extender's
    certificate, and of the scheduler's own where it has to show one."""

    url: str
    mode: Mode = "observe"
    weight: int = 1
    scheduler_name: str = "default-scheduler"
    kubeconfig: str = "/etc/kubernetes/scheduler.conf"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Finding(NamedTuple):
    """Something that should be otherwise: where, what it leads to, and what to do. If it
    `is_refused`, kube-scheduler does not start with it, or never asks."""

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


def generated(wanted: Wanted) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. In mode observe the scheduler's own scores stay as they are,
    for the extender gives none; in mode act those by requests are off."""
    is_https = wanted.url.startswith("https://")
    extender: dict[str, Any] = {"urlPrefix": wanted.url, **VERBS, "weight": wanted.weight}
    extender |= {"nodeCacheCapable": True, "ignorable": True, "httpTimeout": f"{TIMEOUT_SECONDS}s"}
    extender["enableHTTPS"] = is_https
    files = {"caFile": wanted.ca_file, "certFile": wanted.cert_file, "keyFile": wanted.key_file}
    if is_https:
        extender["tlsConfig"] = {key: file for key, file in files.items() if file is not None}
    profile: dict[str, Any] = {"schedulerName": wanted.scheduler_name}
    if wanted.mode == "act":
        profile["plugins"] = {"score": {"disabled": [{"name": name} for name in BY_REQUESTS]}}
    return {
        "apiVersion": VERSIONS[0],
        "kind": CONFIGURATION,
        "leaderElection": {"leaderElect": True},
        "clientConnection": {"kubeconfig": wanted.kubeconfig},
        "extenders": [extender],
        "profiles": [profile],
    }


def findings(tree: Any, mode: Mode) -> Iterator[Finding]:
    """What should be otherwise in what kube-scheduler is started with, if the extender is in this
    mode. Raises InvalidPolicyError for what is no KubeSchedulerConfiguration."""
    configuration = read_configuration(tree)
    said = enumerate(_entries(configuration, "extenders"))
    extenders = [_extender(place, one) for place, one in said]
    if not extenders:
        todo = "springtide scheduler config prints an entry"
        yield Finding("extenders", "there is none, so nobody is asked", todo, is_refused=True)
    for place, one in enumerate(extenders):
        yield from _of_extender(f"extenders[{place}]", one)
    profiles = [read_profile(one) for one in _entries(configuration, "profiles") or [{}]]
    weight = max((one.weight for one in extenders if one.prioritize_verb), default=0)
    for profile in profiles:
        yield from _of_profile(profile, mode, weight)


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


def _of_extender(where: str, of: _Extender) -> Iterator[Finding]:
    yield from _of_address(where, of)
    said = {
        "filterVerb": of.filter_verb,
        "prioritizeVerb": of.prioritize_verb,
        "preemptVerb": of.preempt_verb,
    }
    for key, verb in VERBS.items():
        if not said[key]:
            yield Finding(f"{where}.{key}", f"not set: {_WITHOUT[key]}", f"set it to {verb}")
        elif said[key].strip("/") != verb:
            found = f"{said[key]!r:.80} is no path of the extender's, which answers 404"
            yield Finding(f"{where}.{key}", found, f"set it to {verb}", is_refused=True)
    if of.bind_verb:
        found = "the extender binds no pods: none would be bound"
        yield Finding(f"{where}.bindVerb", found, "leave it out", is_refused=True)
    if of.prioritize_verb and of.weight <= 0:
        found = f"{of.weight} with prioritizeVerb: kube-scheduler refuses it"
        yield Finding(f"{where}.weight", found, "set it to 1 or more", is_refused=True)
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


_WITHOUT: Final[Mapping[str, str]] = {
    "filterVerb": "hot nodes take pods like others",
    "prioritizeVerb": "usage has no say in which node is best",
    "preemptVerb": "pods are evicted where that makes no room by usage",
}


def _of_address(where: str, of: _Extender) -> Iterator[Finding]:
    is_https = of.url_prefix.startswith("https://")
    if not is_https and not of.url_prefix.startswith("http://"):
        found = f"{of.url_prefix!r:.80} is no http:// or https:// address"
        todo = "name the extender's Service and port"
        yield Finding(f"{where}.urlPrefix", found, todo, is_refused=True)
    elif is_https != of.enable_https:
        found = f"{str(of.enable_https).lower()}, and urlPrefix is {of.url_prefix:.80}"
        yield Finding(f"{where}.enableHTTPS", found, f"set it to {str(is_https).lower()}")
    if is_https and not (of.tls_config or {}).keys() & {"caFile", "caData", "insecure"}:
        found = "a certificate of your own authority is not trusted"
        yield Finding(f"{where}.tlsConfig", found, "name its caFile")
    seconds = _USUAL_TIMEOUT_SECONDS if of.http_timeout is None else _seconds(of.http_timeout)
    if seconds is None:
        found = f"{of.http_timeout!r:.40} is no duration"
        yield Finding(f"{where}.httpTimeout", found, "set it to 1s", is_refused=True)
    elif seconds > TIMEOUT_SECONDS:
        found = f"a connection that hangs holds up each pod for {seconds:g} s"
        yield Finding(f"{where}.httpTimeout", found, "set it to 1s")


def _seconds(text: str) -> float | None:
    """A duration as Go writes it.

    >>> _seconds("1m30s"), _seconds("500ms"), _seconds("1"), _seconds("")
    (90.0, 0.5, None, None)
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _of_profile(profile: Profile, mode: Mode, weight: int) -> Iterator[Finding]:
    where = f"profile {profile.scheduler_name:.80}"
    enabled: dict[str, dict[str, int]] = {EVERYWHERE: dict.fromkeys(BY_REQUESTS, 1)}
    disabled: dict[str, set[str]] = {}
    ours = set()
    for point, found in points(profile):
        off = {one.name for one in found.disabled or ()}
        disabled.setdefault(point, set()).update(off)
        if point == EVERYWHERE:
            gone = BY_REQUESTS if "*" in off else off
            enabled[EVERYWHERE] = {
                name: weight for name, weight in enabled[EVERYWHERE].items() if name not in gone
            }
        for one in found.enabled or ():
            enabled.setdefault(point, {})[one.name] = one.weight or 1
            ours.update({one.name} & {*PLUGINS})
    if ours:
        yield Finding(
            where,
            f"kube-scheduler has no {', '.join(sorted(ours))} and does not start, unless it is one "
            "that was built with them",
            "name them in extender.scheduler_config_file",
            is_refused=True,
        )
    on = at(SCORE_POINTS, enabled, disabled)
    fighting = {name: on[name] for name in BY_REQUESTS if name in on}
    theirs, step = 100 * sum(fighting.values()), _POINTS_A_STEP * weight
    if mode == "act" and step < theirs:
        yield Finding(
            where,
            f"{', '.join(fighting)} score by requests with up to {theirs} points, where a step of "
            f"the extender's score is {step}: they may outvote it, and a pod in flight counts on "
            "the wrong node until its bind is seen",
            "disable them at score, or give the extender more weight",
        )
    elif mode == "observe" and not fighting:
        yield Finding(
            where,
            "nothing scores by requests, and an extender in mode observe gives no scores: nodes "
            "are filled as it happens",
            f"let {' and '.join(BY_REQUESTS)} score until the extender acts",
        )
