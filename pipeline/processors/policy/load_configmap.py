"""From the ConfigMap `slo-controller-config` to what a section says, and on from the last good one.

Owes the rest: a part that cannot be used changes nothing and is reported; what is good beside it
counts (colocation 7).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import (
    Said,
    Section,
    convert,
    json_type,
    keys_of,
    merged,
    named,
    read_object,
    unknown_keys,
    without,
)
from pipeline.processors.policy.selectors import Selector, check

CONFIG_MAP: Final = "slo-controller-config"
_OF_ENTRY: Final = ("name", "nodeSelector")
_OF_SELECTOR: Final = ("matchLabels", "matchExpressions")


class PolicyEntry(NamedTuple, Generic[Said]):
    """What is different for the nodes that `selector` selects; none where it cannot be read. It is
    uncertain where what it says cannot be used, and what it said before is not known."""

    name: str
    selector: Selector | None
    own: Said
    is_certain: bool = True


class Policy(NamedTuple, Generic[Said]):
    """What the cluster says, over the defaults, and the entries for some of its nodes."""

    cluster: Said
    entries: tuple[PolicyEntry[Said], ...] = ()

    def of_labels(self, labels: Mapping[str, str]) -> Said:
        """What the cluster says, and over it the first entry that selects a node with these."""
        entry = self._entry_of(labels)
        return self.cluster if entry is None else merged(self.cluster, entry.own)

    def is_certain_of(self, labels: Mapping[str, str]) -> bool:
        """Whether what `of_labels` gives is what is meant: not where the entry that selects the
        node cannot be used, and what it said when it could is not known."""
        entry = self._entry_of(labels)
        return entry is None or entry.is_certain

    def _entry_of(self, labels: Mapping[str, str]) -> PolicyEntry[Said] | None:
        for entry in self.entries:
            if entry.selector is not None and entry.selector.matches(labels):
                return entry
        return None


class PolicyProblem(NamedTuple):
    """What is wrong, where it is written, and whether it is in force all the same."""

    where: str
    text: str
    taken: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + ("" if self.taken else "; it is not in force")


class Loaded(NamedTuple, Generic[Said]):
    """The policy in force, None while there was no usable one; `failed` where the cluster's part of
    what was read is not in it."""

    policy: Policy[Said] | None
    failed: bool
    problems: tuple[PolicyProblem, ...] = ()


def load(
    section: Section[Said], data: Mapping[str, str] | None, last: Policy[Said] | None = None
) -> Loaded[Said]:
    """What a section says after reading the data of the ConfigMap, None if there is no such object.

    Without the object, or without the key, the defaults are in force. A cluster part that cannot be
    used leaves `last` in force, an entry what `last` has for the same selector or, where that is
    what cannot be read, by the same name; else the cluster's values, which are uncertain then. That
    one of them switches off counts whatever else is wrong in it.
    """
    usual = Policy(section.defaults)
    if data is None:
        return Loaded(usual, True, (PolicyProblem(CONFIG_MAP, "there is none", True),))
    text = data.get(section.key, "")
    if not text.strip():
        return Loaded(usual, False)
    try:
        found = named(read_object(text), (section.cluster, section.entries))
        part = _cluster_part(section, found)
    except InvalidPolicyError as error:
        return Loaded(last, True, (PolicyProblem(section.key, error.message),))
    try:
        cluster = merged(section.defaults, section.convert(part))
        wrong = [PolicyProblem(section.key, text) for _, text in section.problems(cluster)]
    except InvalidPolicyError as error:
        wrong = [PolicyProblem(section.key, error.message)]
    if wrong:
        counts = section.what_counts(part)
        if counts == section.nothing:
            return Loaded(last, True, tuple(wrong))
        before = last or usual
        off = before._replace(cluster=merged(before.cluster, counts))
        return Loaded(off, True, (*wrong, _off_all_the_same(section.key)))
    odd = [*section.oddities(cluster), *_unread(section, found)]
    problems = [PolicyProblem(section.key, text, taken=True) for text in odd]
    entries, of_entries = _entries(section, found.get(section.entries), cluster, last)
    return Loaded(Policy(cluster, entries), False, (*problems, *of_entries))


def _off_all_the_same(where: str) -> PolicyProblem:
    return PolicyProblem(where, "that it is switched off is in force all the same", taken=True)


def _unread(section: Section[Said], found: Mapping[str, Any]) -> Iterator[str]:
    if not section.cluster:
        yield from section.unread(found, section.entries)
        return
    yield from unknown_keys(found, (section.cluster, section.entries), only_near=True)
    yield from section.unread(found.get(section.cluster, {}))


def _cluster_part(section: Section[Said], found: Mapping[str, Any]) -> Mapping[str, Any]:
    part = found.get(section.cluster, {}) if section.cluster else found
    if not isinstance(part, Mapping):
        raise InvalidPolicyError(f"{section.cluster} is {json_type(part)}, not an object")
    return part


def _entries(
    section: Section[Said], found: Any, cluster: Said, last: Policy[Said] | None
) -> tuple[tuple[PolicyEntry[Said], ...], list[PolicyProblem]]:
    if found is None:
        return (), []
    where = f"{section.key}.{section.entries}"
    if not isinstance(found, list):
        kept = last.entries if last is not None else ()
        return kept, [PolicyProblem(where, f"{json_type(found)}, not a list")]
    entries, problems = [], []
    for number, one in enumerate(found):
        entry, wrong = _entry(section, one, f"{where}[{number}]", cluster, last)
        entries.append(entry)
        problems += wrong
    return tuple(entries), problems


def _entry(
    section: Section[Said], found: Any, where: str, cluster: Said, last: Policy[Said] | None
) -> tuple[PolicyEntry[Said], list[PolicyProblem]]:
    nothing = section.nothing
    if not isinstance(found, dict):
        return PolicyEntry("", None, nothing), [
            PolicyProblem(where, f"{json_type(found)}, not an object")
        ]
    found = named(found, _OF_ENTRY)
    name = found["name"] if isinstance(found.get("name"), str) else ""
    if name:
        where = f"{where} ({name:.100})"
    selector, problems = _selector(found.get("nodeSelector"), where)
    try:
        own = merged(section.of_entry or nothing, section.convert(found))
        # What the cluster says of the other end of a range counts, too.
        problems += [
            PolicyProblem(where, text) for _, text in section.problems(merged(cluster, own))
        ]
    except InvalidPolicyError as error:
        own = nothing
        problems.append(PolicyProblem(where, error.message))
    if any(not problem.taken for problem in problems):
        kept = _last_of(section, PolicyEntry(name, selector, own), cluster, last)
        kept = kept or PolicyEntry(name, selector, nothing, is_certain=False)
        counts = section.what_counts(found)
        if counts == nothing:
            return kept, problems
        return kept._replace(own=merged(kept.own, counts)), [*problems, _off_all_the_same(where)]
    odd = [*section.oddities(own), *section.unread(found, *_OF_ENTRY)]
    problems += [PolicyProblem(where, text, taken=True) for text in odd]
    return PolicyEntry(name, selector, own), problems


def _selector(found: Any, where: str) -> tuple[Selector | None, list[PolicyProblem]]:
    """The selector of an entry; one that cannot be read selects nothing."""
    if found is None:
        return None, [PolicyProblem(where, "has no nodeSelector and is for no node")]
    try:
        if not isinstance(found, Mapping):
            raise InvalidPolicyError(f"{json_type(found)}, not an object")
        # Read as if it said nothing it would be for all nodes.
        if strange := sorted(named(found, _OF_SELECTOR).keys() - set(_OF_SELECTOR)):
            raise InvalidPolicyError(f"{strange[0]!r:.60} is no part of a selector")
        selector = convert(found, Selector)
        check(selector)
    except InvalidPolicyError as error:
        return None, [PolicyProblem(where, f"nodeSelector: {error}")]
    if selector == Selector():
        return selector, [
            PolicyProblem(where, "nodeSelector is empty and selects every node", True)
        ]
    return selector, []


def _last_of(
    section: Section[Said], broken: PolicyEntry[Said], cluster: Said, last: Policy[Said] | None
) -> PolicyEntry[Said] | None:
    """The entry as it was when it was good, if it still is over what the cluster says now."""
    for entry in last.entries if last is not None else ():
        same = (
            bool(broken.name) and entry.name == broken.name
            if broken.selector is None
            else entry.selector == broken.selector
        )
        if same and not any(section.problems(merged(cluster, entry.own))):
            return entry
    return None


def annotated(
    section: Section[Said], annotation: str, text: str | None, last: Said | None = None
) -> tuple[Said, list[PolicyProblem]]:
    """What a node's annotation says: a value of another type, or out of range, is that of `last`,
    or is left out; the rest counts."""
    where = f"annotation {annotation}"
    if text is None:
        return section.nothing, []
    try:
        found = read_object(text)
    except InvalidPolicyError as error:
        return last or section.nothing, [PolicyProblem(where, error.message)]
    own, wrong = section.convert_each(found)
    wrong |= dict(section.problems(own))
    problems = [PolicyProblem(where, problem) for problem in wrong.values()]
    own = without(own, wrong)
    if last is not None:
        own = merged(without(last, keys_of(type(own)).keys() - wrong), own)
    odd = [*section.oddities(own), *section.unread(found)]
    return own, [*problems, *(PolicyProblem(where, text, taken=True) for text in odd)]
