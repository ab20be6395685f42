"""Load a section of the ConfigMap `slo-controller-config`, and keep the last valid one.

An invalid part changes nothing and is reported; valid parts beside it count.
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
    """The settings of the nodes that `selector` selects; None if the selector is invalid. An entry
    is uncertain if its settings are invalid and the last valid ones are unknown."""

    name: str
    selector: Selector | None
    own: Said
    is_certain: bool = True


class Policy(NamedTuple, Generic[Said]):
    """The cluster's settings, merged over the defaults, and the entries for some nodes."""

    cluster: Said
    entries: tuple[PolicyEntry[Said], ...] = ()

    def of_labels(self, labels: Mapping[str, str]) -> Said:
        """The cluster's settings, and over them the first entry that selects these labels."""
        entry = self._entry_of(labels)
        return self.cluster if entry is None else merged(self.cluster, entry.own)

    def is_certain_of(self, labels: Mapping[str, str]) -> bool:
        """Whether `of_labels` is what the user meant: not if the entry that selects the labels is
        uncertain."""
        entry = self._entry_of(labels)
        return entry is None or entry.is_certain

    def _entry_of(self, labels: Mapping[str, str]) -> PolicyEntry[Said] | None:
        for entry in self.entries:
            if entry.selector is not None and entry.selector.matches(labels):
                return entry
        return None


class PolicyProblem(NamedTuple):
    """A problem, its place, and whether the setting is in force nevertheless (`taken`)."""

    where: str
    text: str
    taken: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + ("" if self.taken else "; it is not in force")


class Loaded(NamedTuple, Generic[Said]):
    """The policy in force, None before the first valid one; `failed` if the cluster's part was
    invalid."""

    policy: Policy[Said] | None
    failed: bool
    problems: tuple[PolicyProblem, ...] = ()


def load(
    section: Section[Said], data: Mapping[str, str] | None, last: Policy[Said] | None = None
) -> Loaded[Said]:
    """Load a section from the data of the ConfigMap, None if there is no such object.

    Without object or key the defaults are in force. An invalid cluster part leaves `last` in force.
    An invalid entry is replaced by that of `last` with the same selector, or with the same name if
    the selector is invalid; otherwise by the cluster's values, which are then uncertain. Switching
    off counts even in an invalid part.
    """
    defaults = Policy(section.defaults)
    if data is None:
        return Loaded(defaults, True, (PolicyProblem(CONFIG_MAP, "there is none", True),))
    text = data.get(section.key, "")
    if not text.strip():
        return Loaded(defaults, False)
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
        before = last or defaults
        off = before._replace(cluster=merged(before.cluster, counts))
        return Loaded(off, True, (*wrong, _off_all_the_same(section.key)))
    odd = [*section.oddities(cluster), *_unread(section, found)]
    problems = [PolicyProblem(section.key, text, taken=True) for text in odd]
    entries, of_entries = _entries(section, found.get(section.entries), cluster, last)
    return Loaded(Policy(cluster, entries), False, (*problems, *of_entries))


def _off_all_the_same(where: str) -> PolicyProblem:
    return PolicyProblem(where, "that it is switched off is in force nevertheless", taken=True)


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
        # The cluster may set the other end of a range.
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
    """The selector of an entry; an invalid selector selects nothing."""
    if found is None:
        return None, [PolicyProblem(where, "has no nodeSelector and is for no node")]
    try:
        if not isinstance(found, Mapping):
            raise InvalidPolicyError(f"{json_type(found)}, not an object")
        # Ignoring an unknown key would make the entry apply to all nodes.
        if strange := sorted(named(found, _OF_SELECTOR).keys() - set(_OF_SELECTOR)):
            raise InvalidPolicyError(f"{strange[0]!r:.60} is not a key of a selector")
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
    """The last valid entry, if it is valid over the cluster's present settings."""
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
    """Read a node's annotation. An invalid value is replaced by that of `last`, or not set; the
    others count."""
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
