"""Load a section of the ConfigMap `slo-controller-config`, or retain the last valid policy.

An invalid part changes nothing and is reported; valid parts beside it count. A typing error in one
entry must neither stop colocation in the cluster nor offer more than before.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import (
    Config,
    Section,
    canonical_keys,
    convert,
    json_keys,
    json_type,
    merge,
    read_object,
    repeated_keys,
    unset,
)
from pipeline.processors.policy.selectors import Selector, check_selector

InForce = TypeVar("InForce")

CONFIG_MAP: Final = "slo-controller-config"
_ENTRY_KEYS: Final = ("name", "nodeSelector")
_SELECTOR_KEYS: Final = ("matchLabels", "matchExpressions")


class PolicyEntry(NamedTuple, Generic[Config]):
    """The settings of the nodes that `selector` selects; None if the selector is invalid. An entry
    is uncertain if its settings are invalid and the last valid ones are unknown."""

    name: str
    selector: Selector | None
    own: Config
    is_certain: bool = True


class Policy(NamedTuple, Generic[Config]):
    """The cluster's settings, merged over the defaults, and the entries for some nodes."""

    cluster: Config
    entries: tuple[PolicyEntry[Config], ...] = ()

    def for_labels(self, labels: Mapping[str, str]) -> Config:
        """The cluster's settings, and over them the first entry that selects these labels."""
        entry = self._entry_of(labels)
        return self.cluster if entry is None else merge(self.cluster, entry.own)

    def is_certain_for(self, labels: Mapping[str, str]) -> bool:
        """Whether `for_labels` has the user's settings: not if the entry that selects the labels
        is uncertain."""
        entry = self._entry_of(labels)
        return entry is None or entry.is_certain

    def _entry_of(self, labels: Mapping[str, str]) -> PolicyEntry[Config] | None:
        for entry in self.entries:
            if entry.selector is not None and entry.selector.matches(labels):
                return entry
        return None


class PolicyProblem(NamedTuple):
    """A problem and its place. The setting may be `in_force` nevertheless: then it is a warning."""

    where: str
    text: str
    in_force: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + ("" if self.in_force else "; it is not in force")


class Loaded(NamedTuple, Generic[InForce]):
    """The policy in force; `failed` if the cluster's part of a key was invalid."""

    policy: InForce
    failed: bool
    problems: tuple[PolicyProblem, ...] = ()


def load_section(
    section: Section[Config], data: Mapping[str, str] | None, last: Policy[Config] | None = None
) -> Loaded[Policy[Config] | None]:
    """Load a section from the data of the ConfigMap, None if there is no such object. The policy is
    None before the first valid one.

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
        tree = canonical_keys(read_object(text), (section.cluster, section.entries))
        part = _cluster_part(section, tree)
    except InvalidPolicyError as error:
        return Loaded(last, True, (PolicyProblem(section.key, error.message),))
    own, wrong_types = section.convert_each(part)
    cluster = merge(section.defaults, own)
    texts = [*wrong_types.values(), *(text for _, text in section.problems(cluster))]
    invalid = [PolicyProblem(section.key, text) for text in texts]
    ignored = [
        PolicyProblem(section.key, text, in_force=True)
        for text in (*_unknown_keys(section, tree, part), *repeated_keys(text))
    ]
    # Beside an invalid part the entries are not in force either, but their problems are reported.
    base = section.defaults if invalid else cluster
    entries, entry_problems = _entries(section, tree.get(section.entries), base, last)
    if invalid:
        entry_problems = [problem for problem in entry_problems if not problem.in_force]
        problems = (*invalid, *ignored, *entry_problems)
        off = section.switched_off(part)
        if off == section.empty:
            return Loaded(last, True, problems)
        before = last or defaults
        policy = before._replace(cluster=merge(before.cluster, off))
        note = _switched_off_anyway(section.key, "on every node of the cluster")
        return Loaded(policy, True, (*problems, note))
    warnings = [PolicyProblem(section.key, text, True) for text in section.warnings(cluster)]
    return Loaded(Policy(cluster, entries), False, (*warnings, *ignored, *entry_problems))


def _switched_off_anyway(where: str, nodes: str) -> PolicyProblem:
    return PolicyProblem(where, f"it is switched off nevertheless, {nodes}", in_force=True)


def _unknown_keys(
    section: Section[Config], tree: Mapping[str, Any], part: Mapping[str, Any]
) -> Iterator[str]:
    """Warn of unknown keys of the section and of the cluster's `part`."""
    if not section.cluster:
        yield from section.unknown_keys(tree, section.entries)
        return
    yield from section.misplaced_keys(tree)
    yield from section.unknown_keys(part)


def _cluster_part(section: Section[Config], tree: Mapping[str, Any]) -> Mapping[str, Any]:
    part = tree.get(section.cluster, {}) if section.cluster else tree
    if not isinstance(part, Mapping):
        raise InvalidPolicyError(f"{section.cluster} is {json_type(part)}, not an object")
    return part


def _entries(
    section: Section[Config], trees: Any, cluster: Config, last: Policy[Config] | None
) -> tuple[tuple[PolicyEntry[Config], ...], list[PolicyProblem]]:
    where = f"{section.key}.{section.entries}"
    if trees is not None and not isinstance(trees, list):
        last_entries = () if last is None else last.entries
        return last_entries, [PolicyProblem(where, f"{json_type(trees)}, not a list")]
    entries, problems = [], []
    for number, tree in enumerate(trees or ()):
        entry, entry_problems = _entry(section, tree, f"{where}[{number}]", cluster, last)
        entries.append(entry)
        problems += entry_problems
    return tuple(entries), problems


def _entry(
    section: Section[Config], tree: Any, where: str, cluster: Config, last: Policy[Config] | None
) -> tuple[PolicyEntry[Config], list[PolicyProblem]]:
    empty = section.empty
    if not isinstance(tree, dict):
        problem = PolicyProblem(where, f"{json_type(tree)}, not an object")
        return PolicyEntry("", None, empty), [problem]
    tree = canonical_keys(tree, _ENTRY_KEYS)
    name = tree["name"] if isinstance(tree.get("name"), str) else ""
    if name:
        where = f"{where} ({name:.100})"
    selector, problems = _selector(tree.get("nodeSelector"), where)
    own, wrong_types = section.convert_each(tree)
    own = merge(section.entry_defaults or empty, own)
    # The cluster may set the other end of a range.
    out_of_range = [text for _, text in section.problems(merge(cluster, own))]
    problems += [PolicyProblem(where, text) for text in (*wrong_types.values(), *out_of_range)]
    ignored = section.unknown_keys(tree, *_ENTRY_KEYS)
    problems += [PolicyProblem(where, text, in_force=True) for text in ignored]
    entry = PolicyEntry(name, selector, own)
    if any(not problem.in_force for problem in problems):
        entry = _last_valid(section, entry, cluster, last) or entry._replace(
            own=empty, is_certain=False
        )
        off = section.switched_off(tree)
        if off == empty:
            return entry, problems
        if entry.selector is not None:
            problems.append(_switched_off_anyway(where, "on the nodes that the entry selects"))
        return entry._replace(own=merge(entry.own, off)), problems
    problems += [PolicyProblem(where, text, in_force=True) for text in section.warnings(own)]
    return entry, problems


def _selector(tree: Any, where: str) -> tuple[Selector | None, list[PolicyProblem]]:
    """The selector of an entry; an invalid selector selects nothing."""
    if tree is None:
        return None, [PolicyProblem(where, "has no nodeSelector and is for no node")]
    try:
        if not isinstance(tree, Mapping):
            raise InvalidPolicyError(f"{json_type(tree)}, not an object")
        # Ignoring an unknown key would make the entry apply to all nodes.
        if unknown := sorted(canonical_keys(tree, _SELECTOR_KEYS).keys() - set(_SELECTOR_KEYS)):
            raise InvalidPolicyError(f"{unknown[0]!r:.60} is not a key of a selector")
        selector = convert(tree, Selector)
        check_selector(selector)
    except InvalidPolicyError as error:
        return None, [PolicyProblem(where, f"nodeSelector: {error}")]
    if selector == Selector():
        problem = PolicyProblem(where, "nodeSelector is empty and selects every node", True)
        return selector, [problem]
    return selector, []


def _last_valid(
    section: Section[Config],
    invalid: PolicyEntry[Config],
    cluster: Config,
    last: Policy[Config] | None,
) -> PolicyEntry[Config] | None:
    """The last valid entry, if it is valid over the cluster's present settings."""
    for entry in last.entries if last is not None else ():
        is_same = entry.selector == invalid.selector
        if invalid.selector is None:
            is_same = bool(invalid.name) and entry.name == invalid.name
        if is_same and not any(section.problems(merge(cluster, entry.own))):
            return entry
    return None


def read_annotation(
    section: Section[Config], annotation: str, text: str | None, last: Config | None = None
) -> tuple[Config, list[PolicyProblem]]:
    """Read a node's annotation. An invalid value is replaced by that of `last`, or not set; the
    others count."""
    where = f"annotation {annotation}"
    if text is None:
        return section.empty, []
    try:
        tree = read_object(text)
    except InvalidPolicyError as error:
        return last or section.empty, [PolicyProblem(where, error.message)]
    own, invalid = section.convert_each(tree)
    invalid |= dict(section.problems(own))
    problems = [PolicyProblem(where, problem) for problem in invalid.values()]
    own = unset(own, invalid)
    if last is not None:
        own = merge(unset(last, json_keys(type(own)).keys() - invalid), own)
    warnings = [*section.warnings(own), *section.unknown_keys(tree), *repeated_keys(text)]
    return own, [*problems, *(PolicyProblem(where, text, in_force=True) for text in warnings)]
