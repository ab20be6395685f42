"""Read a tree of YAML or JSON into structs; each unknown key and each invalid value has its path.

As the strict decoding of Kubernetes: keys are read in their exact case, null is not set. An invalid
value leaves the default of its field, and the values beside it are read.
"""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.selectors import Requirement, Selector, check_selector
from pipeline.settings.describe import allowed_values

S = TypeVar("S", bound=msgspec.Struct)

NOTHING: Final = Selector(match_expressions=(Requirement(key="none", operator="In", values=()),))
"""Stands for an invalid selector: it selects nothing, so that a typing error selects no more."""

_MOST_REPORTED_KEYS: Final = 20
_PLAIN_KEY: Final = re.compile(r"[-A-Za-z0-9_./]{1,80}")
_INVALID: Final = object()


class Reading(NamedTuple, Generic[S]):
    """The struct, and the problems: unknown keys, and invalid values, whose fields are default."""

    value: S
    unknown: tuple[PolicyProblem, ...]
    invalid: tuple[PolicyProblem, ...]


def read_struct(tree: Any, kind: type[S], where: str) -> Reading[S]:
    """Read a tree into a struct of this kind, whose fields all have defaults. `where` is the path
    of the tree. A field may have a converter of written values: `Meta(extra={"read": function})`,
    which raises InvalidPolicyError; and a written value that is the same as none, as most empty
    values are in Go: `Meta(extra={"unset": value})`."""
    reader = _Reader()
    value = reader.struct(tree, kind, where)
    problems = tuple(reader.unknown), tuple(reader.invalid)
    return Reading(kind() if value is _INVALID else value, *problems)


class _Reader:
    def __init__(self) -> None:
        self.unknown: list[PolicyProblem] = []
        self.invalid: list[PolicyProblem] = []

    def struct(self, tree: Any, kind: type[msgspec.Struct], where: str) -> Any:
        fields = _fields(kind)
        if not isinstance(tree, Mapping):
            fix = ": write {name: ...}" if isinstance(tree, str) and [*fields] == ["name"] else ""
            refused = self._refuse(where, f"{shown(tree)} is not an object{fix}")
            return NOTHING if kind is Selector else refused
        before = len(self.unknown) + len(self.invalid)
        unknown = (key for key in tree if key not in fields)
        for key in islice(unknown, _MOST_REPORTED_KEYS):
            self.unknown.append(PolicyProblem(child(where, key), unknown_key(key, fields)))
        values = {}
        for key, field in fields.items():
            if tree.get(key) not in (None, *_extras(field.type, "unset")):
                value = self.value(tree[key], field.type, child(where, key))
                if value is not _INVALID:
                    values[field.name] = value
            elif field.required:
                self._refuse(where, f"has no {key}")
        if kind is Selector:
            return self._selector(values, where, len(self.unknown) + len(self.invalid) > before)
        if any(field.required and field.name not in values for field in fields.values()):
            return _INVALID
        return kind(**values)

    def value(self, value: Any, kind: Any, where: str) -> Any:
        """Read a value of an annotated type; `_INVALID` if it is not one."""
        plain = _plain(kind)
        for read in _extras(kind, "read"):
            try:
                value = read(value)
            except InvalidPolicyError as error:
                refused = self._refuse(where, f"{shown(value)} {error.message}")
                return NOTHING if plain is Selector else refused
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return value if isinstance(value, plain) else self.struct(value, plain, where)
        if get_origin(plain) is tuple:
            return self._items(value, get_args(plain)[0], where)
        if get_origin(plain) is dict:
            key_kind, value_kind = get_args(plain)
            return self._values(value, key_kind, value_kind, where)
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(where, f"{value} is not a finite number")
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError):
            return self._refuse(where, f"{shown(value)} is not {allowed_values(kind)}")

    def _items(self, items: Any, kind: Any, where: str) -> Any:
        if not isinstance(items, list):
            return self._refuse(where, f"{shown(items)} is not a list")
        values = [self.value(item, kind, f"{where}[{i}]") for i, item in enumerate(items)]
        return tuple(value for value in values if value is not _INVALID)

    def _values(self, items: Any, key_kind: Any, kind: Any, where: str) -> Any:
        if not isinstance(items, Mapping):
            return self._refuse(where, f"{shown(items)} is not an object")
        values = {}
        for key, item in items.items():
            if not isinstance(key, str):
                self._refuse(where, f"{shown(key)} is not a text")
                continue
            if key_kind is not str and key not in get_args(key_kind):
                known = dict.fromkeys(get_args(key_kind))
                self.unknown.append(PolicyProblem(child(where, key), unknown_key(key, known)))
                continue
            value = self.value(item, kind, child(where, key))
            if value is not _INVALID:
                values[key] = value
        return values

    def _selector(self, values: dict[str, Any], where: str, has_problem: bool) -> Selector:
        """A part of a selector would select more than the whole."""
        if has_problem:
            return NOTHING
        selector = Selector(**values)
        try:
            check_selector(selector)
        except InvalidPolicyError as error:
            self._refuse(where, error.message)
            return NOTHING
        return selector

    def _refuse(self, where: str, text: str) -> Any:
        self.invalid.append(PolicyProblem(where, text))
        return _INVALID


def unknown_key(key: Any, known: Mapping[str, Any]) -> str:
    """The problem of a key that is not `known`, with a known one that resembles it."""
    names = {name.casefold(): name for name in known}
    near = get_close_matches(str(key)[:80].casefold(), names, n=1, cutoff=0.8)
    return "unknown key" + (f" (is {names[near[0]]} meant?)" if near else "")


def child(where: str, key: Any) -> str:
    """The path of a key below `where`."""
    is_plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key)
    text = key if is_plain else f"[{shown(key)}]"
    return f"{where}.{text}" if where and is_plain else f"{where}{text}"


def shown(value: Any) -> str:
    """A value in a problem: short texts and numbers as they are, of others the type."""
    if isinstance(value, str):
        return f"{value!r:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 100):
        return str(value)
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "an object"
    return f"a {type(value).__name__}"


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _plain(kind: Any) -> Any:
    """The type without annotations and None."""
    if get_origin(kind) is Annotated:
        return _plain(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        (member,) = (member for member in get_args(kind) if member is not NoneType)
        return _plain(member)
    return kind


def _extras(kind: Any, name: str) -> list[Any]:
    """What the annotations of a type, and of its members, have by this name in `extra`."""
    if get_origin(kind) in (Union, UnionType):
        return [extra for member in get_args(kind) for extra in _extras(member, name)]
    if get_origin(kind) is not Annotated:
        return []
    metas = [meta for meta in kind.__metadata__ if name in (meta.extra or ())]
    return [meta.extra[name] for meta in metas] + _extras(kind.__origin__, name)
