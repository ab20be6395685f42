"""From the ConfigMap `slo-controller-config` to the rules of quality of service.

Owes the rest: what `loading` owes for colocation, for each of five keys by itself: a part that
cannot be used changes nothing and is reported; what is good beside it counts (colocation 7, 14).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy import slo_defaults
from pipeline.processors.policy.loading import CONFIG_MAP, Entry, Policy, Problem
from pipeline.processors.policy.sections import merged, read_object
from pipeline.processors.policy.selectors import Selector, check
from pipeline.processors.policy.slo_checks import (
    HostApplications,
    as_go_reads,
    oddities_of,
    problems_of,
    read_as,
)
from pipeline.processors.slo.fields import Document
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    QosStrategy,
    SystemStrategy,
    ThresholdStrategy,
)

T = TypeVar("T", bound=Document)

_NO_APPLICATIONS: Final = HostApplications(applications=())


class SloPolicy(NamedTuple):
    """The rules in force by key; None while there were no usable ones of a key."""

    threshold: Policy[ThresholdStrategy] | None = Policy(slo_defaults.THRESHOLD)
    qos: Policy[QosStrategy] | None = Policy(slo_defaults.QOS)
    burst: Policy[BurstStrategy] | None = Policy(slo_defaults.BURST)
    system: Policy[SystemStrategy] | None = Policy(slo_defaults.SYSTEM)
    host_applications: Policy[HostApplications] | None = Policy(_NO_APPLICATIONS)


class LoadedSlo(NamedTuple):
    """The rules in force; `failed` where what a key says of the cluster is not in them."""

    policy: SloPolicy
    failed: bool
    problems: tuple[Problem, ...] = ()


_UNKNOWN: Final = SloPolicy(None, None, None, None, None)


@dataclass(frozen=True)
class _Key(Generic[T]):
    """A key of the ConfigMap. `cluster` is where in it the cluster's part is, all of it where there
    is no such place, `entries` where the entries are; what an entry says lies over `of_entry`."""

    name: str
    struct: type[T]
    defaults: T
    of_entry: T
    cluster: str = "clusterStrategy"
    entries: str = "nodeStrategies"


_THRESHOLD: Final = _Key(
    "resource-threshold-config",
    ThresholdStrategy,
    slo_defaults.THRESHOLD,
    ThresholdStrategy(),
)
_QOS: Final = _Key("resource-qos-config", QosStrategy, slo_defaults.QOS, QosStrategy())
_BURST: Final = _Key("cpu-burst-config", BurstStrategy, slo_defaults.BURST, BurstStrategy())
_SYSTEM: Final = _Key("system-config", SystemStrategy, slo_defaults.SYSTEM, SystemStrategy())
# The applications of an entry are all that there are, also where it has none.
_HOST_APPLICATIONS: Final = _Key(
    "host-application-config",
    HostApplications,
    _NO_APPLICATIONS,
    _NO_APPLICATIONS,
    cluster="",
    entries="nodeConfigs",
)
SLO_KEYS: Final = tuple(key.name for key in (_THRESHOLD, _QOS, _BURST, _SYSTEM, _HOST_APPLICATIONS))
"""The keys of the ConfigMap, in the order of `SloPolicy`."""
_OF_ENTRY: Final = ("name", "nodeSelector")


def load_slo(data: Mapping[str, str] | None, last: SloPolicy | None = None) -> LoadedSlo:
    """The rules after reading the data of the ConfigMap, None if there is no such object.

    Without the object, or without a key, the defaults are in force. Where a key's cluster part
    cannot be used, what `last` has of that key stays in force; for an entry what `last` has for the
    same selector, or the cluster's values.
    """
    if data is None:
        return LoadedSlo(SloPolicy(), True, (Problem(CONFIG_MAP, "there is none", True),))
    last = _UNKNOWN if last is None else last
    threshold = _read(_THRESHOLD, data, last.threshold)
    qos = _read(_QOS, data, last.qos)
    burst = _read(_BURST, data, last.burst)
    system = _read(_SYSTEM, data, last.system)
    hosts = _read(_HOST_APPLICATIONS, data, last.host_applications)
    policy = SloPolicy(threshold.of_key, qos.of_key, burst.of_key, system.of_key, hosts.of_key)
    found = (threshold, qos, burst, system, hosts)
    return LoadedSlo(
        policy,
        any(one.failed for one in found),
        tuple(problem for one in found for problem in one.problems),
    )


class _Read(NamedTuple, Generic[T]):
    of_key: Policy[T] | None
    failed: bool
    problems: tuple[Problem, ...] = ()


def _read(key: _Key[T], data: Mapping[str, str], last: Policy[T] | None) -> _Read[T]:
    text = data.get(key.name, "")
    if not text.strip():
        return _Read(Policy(key.defaults), False)
    try:
        found = _named(read_object(text), (key.cluster, key.entries))
        cluster = merged(key.defaults, read_as(key.struct, _cluster_part(key, found)))
    except InvalidPolicyError as error:
        return _Read(last, True, (Problem(key.name, error.message),))
    if wrong := tuple(Problem(key.name, text) for text in problems_of(cluster)):
        return _Read(last, True, wrong)
    problems = [Problem(key.name, text, taken=True) for text in oddities_of(cluster)]
    entries, of_entries = _entries(key, found.get(key.entries), cluster, last)
    return _Read(Policy(cluster, entries), False, (*problems, *of_entries))


def _cluster_part(key: _Key[T], found: Mapping[str, Any]) -> Mapping[str, Any]:
    part = found.get(key.cluster, {}) if key.cluster else found
    if not isinstance(part, Mapping):
        raise InvalidPolicyError(f"{key.cluster} is {type(part).__name__}, not an object")
    return part


def _entries(
    key: _Key[T], found: Any, cluster: T, last: Policy[T] | None
) -> tuple[tuple[Entry[T], ...], list[Problem]]:
    if found is None:
        return (), []
    where = f"{key.name}.{key.entries}"
    if not isinstance(found, list):
        kept = last.entries if last is not None else ()
        return kept, [Problem(where, f"{type(found).__name__}, not a list")]
    entries, problems = [], []
    for number, one in enumerate(found):
        entry, wrong = _entry(key, one, f"{where}[{number}]", cluster, last)
        entries.append(entry)
        problems += wrong
    return tuple(entries), problems


def _entry(
    key: _Key[T], found: Any, where: str, cluster: T, last: Policy[T] | None
) -> tuple[Entry[T], list[Problem]]:
    if not isinstance(found, dict):
        text = f"{type(found).__name__}, not an object"
        return Entry("", None, key.struct()), [Problem(where, text)]
    found = _named(found, _OF_ENTRY)
    name = found["name"] if isinstance(found.get("name"), str) else ""
    if name:
        where = f"{where} ({name:.100})"
    selector, problems = _selector(found.get("nodeSelector"), where)
    try:
        own = merged(key.of_entry, read_as(key.struct, found))
        # An order can be broken by what the cluster says of the other end.
        problems += [Problem(where, text) for text in problems_of(merged(cluster, own))]
    except InvalidPolicyError as error:
        own = key.struct()
        problems.append(Problem(where, error.message))
    if any(not problem.taken for problem in problems):
        own = _last_of(key, selector, cluster, last)
    else:
        problems += [Problem(where, text, taken=True) for text in oddities_of(own)]
    return Entry(name, selector, own), problems


def _selector(found: Any, where: str) -> tuple[Selector | None, list[Problem]]:
    """The selector of an entry; one that cannot be read selects nothing."""
    if found is None:
        return None, [Problem(where, "has no nodeSelector and is for no node")]
    try:
        selector = msgspec.convert(found, Selector)
        check(selector)
    except (msgspec.ValidationError, InvalidPolicyError) as error:
        return None, [Problem(where, f"nodeSelector: {error}")]
    return selector, []


def _last_of(key: _Key[T], selector: Selector | None, cluster: T, last: Policy[T] | None) -> T:
    """What the entry of the same selector said when it was good, if it still is over what the
    cluster says now; else nothing of its own."""
    for entry in last.entries if last is not None and selector is not None else ():
        if entry.selector == selector and not any(problems_of(merged(cluster, entry.own))):
            return entry.own
    return key.struct()


def _named(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The object with these keys by their names, in whatever case they are written."""
    read: dict[str, Any] = as_go_reads(found, {"properties": {name: {} for name in names}})
    return read
