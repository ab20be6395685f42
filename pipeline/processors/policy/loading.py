"""From the ConfigMap `slo-controller-config` to a policy, and on from the last good one.

Owes the rest: a part that cannot be used changes nothing and is reported; what is good beside it
counts (colocation 7).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.colocation import (
    DEFAULTS,
    Colocation,
    convert,
    merged,
    oddities_of,
    problems_of,
    read_object,
)
from pipeline.processors.policy.selectors import Selector, check

KEY: Final = "colocation-config"
_OWN: Final = frozenset({"nodeConfigs"})


class Entry(NamedTuple):
    """What is different for the nodes that `selector` selects; none where it cannot be read."""

    name: str
    selector: Selector | None
    own: Colocation


class Policy(NamedTuple):
    """What the cluster says, over the defaults, and the entries for some of its nodes."""

    cluster: Colocation = DEFAULTS
    entries: tuple[Entry, ...] = ()


class Problem(NamedTuple):
    """What is wrong, where it is written, and whether it is in force all the same."""

    where: str
    text: str
    taken: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + ("" if self.taken else "; it is not in force")


class Loaded(NamedTuple):
    """The policy in force, None while there was no usable one; `failed` where the cluster's part of
    what was read is not in it."""

    policy: Policy | None
    failed: bool
    problems: tuple[Problem, ...] = ()


def load(data: Mapping[str, str] | None, last: Policy | None = None) -> Loaded:
    """The policy after reading the data of the ConfigMap, None if there is no such object.

    Without the object, or without the key, the defaults are in force. A cluster part that cannot be
    used leaves `last` in force, an entry what `last` has for the same selector, or the cluster's
    values.
    """
    if data is None:
        return Loaded(Policy(), True, (Problem("slo-controller-config", "there is none", True),))
    text = data.get(KEY, "")
    if not text.strip():
        return Loaded(Policy(), False)
    try:
        found = read_object(text)
        cluster = merged(DEFAULTS, convert(_without_entries(found)))
    except InvalidPolicyError as error:
        return Loaded(last, True, (Problem(KEY, error.message),))
    if wrong := tuple(Problem(KEY, text) for _, text in problems_of(cluster)):
        return Loaded(last, True, wrong)
    problems = [Problem(KEY, text, taken=True) for text in oddities_of(cluster)]
    entries, of_entries = _entries(found.get("nodeConfigs"), last)
    return Loaded(Policy(cluster, entries), False, (*problems, *of_entries))


def _entries(found: Any, last: Policy | None) -> tuple[tuple[Entry, ...], list[Problem]]:
    if found is None:
        return (), []
    where = f"{KEY}.nodeConfigs"
    if not isinstance(found, list):
        kept = last.entries if last is not None else ()
        return kept, [Problem(where, f"{type(found).__name__}, not a list")]
    entries, problems = [], []
    for number, one in enumerate(found):
        entry, wrong = _entry(one, f"{where}[{number}]", last)
        entries.append(entry)
        problems += wrong
    return tuple(entries), problems


def _entry(found: Any, where: str, last: Policy | None) -> tuple[Entry, list[Problem]]:
    if not isinstance(found, dict):
        return Entry("", None, Colocation()), [
            Problem(where, f"{type(found).__name__}, not an object")
        ]
    name = found["name"] if isinstance(found.get("name"), str) else ""
    if name:
        where = f"{where} ({name:.100})"
    selector, problems = _selector(found.get("nodeSelector"), where)
    try:
        own = convert(_without_entries(found))
        problems += [Problem(where, text) for text in _wrong(own)]
    except InvalidPolicyError as error:
        own = Colocation()
        problems.append(Problem(where, error.message))
    if any(not problem.taken for problem in problems):
        own = _last_of(selector, last)
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


def _wrong(own: Colocation) -> Iterator[str]:
    return (text for _, text in problems_of(own))


def _last_of(selector: Selector | None, last: Policy | None) -> Colocation:
    """What the entry of the same selector said when it was good; else nothing of its own."""
    for entry in last.entries if last is not None and selector is not None else ():
        if entry.selector == selector:
            return entry.own
    return Colocation()


def _without_entries(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in _OWN}
