"""Kubernetes label selectors: decode, check and match."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VALUE_OPERATORS: Final = ("In", "NotIn")
_KEY_OPERATORS: Final = ("Exists", "DoesNotExist")


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the label of a key.

    key: Key of the label.
    operator: In, NotIn, Exists or DoesNotExist.
    values: Values for In and NotIn.
    """

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class Selector(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A LabelSelector: all of its parts must match. An empty selector matches everything.

    match_labels: Labels with exactly these values.
    """

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector, which `check_selector` accepts, selects these labels."""
        return all(
            labels.get(key) == value for key, value in (self.match_labels or {}).items()
        ) and all(_is_met(requirement, labels) for requirement in self.match_expressions or ())


def check_selector(selector: Selector) -> None:
    """Raise InvalidPolicyError for a selector that Kubernetes would refuse."""
    for key, value in (selector.match_labels or {}).items():
        check_label_key(key)
        check_label_value(value)
    for requirement in selector.match_expressions or ():
        check_label_key(requirement.key)
        if requirement.operator not in (*_VALUE_OPERATORS, *_KEY_OPERATORS):
            raise InvalidPolicyError(
                f"{requirement.operator!r:.40} is not an operator of selectors"
            )
        if (requirement.operator in _VALUE_OPERATORS) != bool(requirement.values):
            needs = "needs" if requirement.operator in _VALUE_OPERATORS else "takes no"
            raise InvalidPolicyError(f"operator {requirement.operator} {needs} values")
        for value in requirement.values or ():
            check_label_value(value)


def _is_met(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    match requirement.operator:
        case "In":
            return labels.get(requirement.key) in (requirement.values or ())
        case "NotIn":
            return labels.get(requirement.key) not in (requirement.values or ())
        case "Exists":
            return requirement.key in labels
        case _:
            return requirement.key not in labels


def check_label_key(key: str) -> None:
    """Raise InvalidPolicyError for what is no key of a label or annotation."""
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
        raise InvalidPolicyError(f"{key!r:.100} is not the key of a label")


def check_label_value(value: str) -> None:
    """Raise InvalidPolicyError for what is no value of a label."""
    if value and not _NAME.fullmatch(value):
        raise InvalidPolicyError(f"{value!r:.100} is not the value of a label")
