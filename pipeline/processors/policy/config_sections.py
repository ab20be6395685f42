"""Read, check and merge the keys of `slo-controller-config`: JSON objects, read as Go reads them.

A section is a key of the ConfigMap and a struct whose fields are None if not set.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from pipeline.errors import InvalidPolicyError

Said = TypeVar("Said", bound=msgspec.Struct)

_MOST_UNREAD: Final = 100


def _nothing(of: Any) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Section(Generic[Said]):
    """A key of the ConfigMap. `problems` names the values out of range by field, `oddities` warns
    of accepted but unusual values.

    `cluster` is the key of the cluster's part, empty if that is the whole object; `entries` the key
    of the entries for some nodes, which are merged over `of_entry`. All keys of a section that
    `is_ours` are known. If the field `switch` is false, that counts even in an invalid part."""

    key: str
    defaults: Said
    problems: Callable[[Said], Iterator[tuple[str, str]]]
    oddities: Callable[[Said], Iterator[str]] = _nothing
    cluster: str = ""
    entries: str = "nodeConfigs"
    of_entry: Said | None = None
    is_ours: bool = False
    switch: str = ""

    @property
    def nothing(self) -> Said:
        """The struct without any field set."""
        return type(self.defaults)()

    def unread(self, found: Mapping[str, Any], *more: str) -> Iterator[str]:
        """Warnings of possible typing errors: unknown keys other than `more`."""
        names = {*keys_of(type(self.defaults)).values(), *more}
        return unknown_keys(found, names, only_near=not self.is_ours)

    def convert(self, found: Mapping[str, Any]) -> Said:
        """Convert an object. Raises InvalidPolicyError for a value of another type."""
        return convert(found, type(self.defaults))

    def convert_each(self, found: Mapping[str, Any]) -> tuple[Said, dict[str, str]]:
        """Convert an object; a value of another type is not set, and has its problem by field."""
        own, wrong = self.nothing, {}
        keys = keys_of(type(own))
        read = named(found, keys.values())
        for field, key in keys.items():
            try:
                own = merged(own, self.convert({key: read.get(key)}))
            except InvalidPolicyError as error:
                wrong[field] = error.message
        return own, wrong

    def what_counts(self, found: Mapping[str, Any]) -> Said:
        """The part of an invalid object that counts: that it switches off, or nothing."""
        key = keys_of(type(self.defaults)).get(self.switch, "")
        is_off = named(found, (key,)).get(key) is False
        return self.convert({key: False}) if is_off else self.nothing


@cache
def keys_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The JSON key of each field."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


def read_object(text: str | bytes) -> dict[str, Any]:
    """Decode a JSON object, its keys as written. Raises InvalidPolicyError for anything else."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"not JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise InvalidPolicyError(f"{json_type(found)}, not an object")
    return found


def json_type(found: Any) -> str:
    """The name of a JSON value's type.

    >>> json_type(None), json_type([]), json_type(1.5)
    ('null', 'a list', 'a number')
    """
    if found is None or isinstance(found, bool):
        return "null" if found is None else "a boolean"
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names[type(found)]


def convert(found: Mapping[str, Any], kind: type[Said]) -> Said:
    """Convert an object with keys in any case; unknown keys are ignored, null is not set. Raises
    InvalidPolicyError for a value of another type, and for an unknown word of an enumeration."""
    try:
        return msgspec.convert(_as_go_reads(found, _type_of(kind)), kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidPolicyError(str(error)) from error


@cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _as_go_reads(found: Any, of: inspect.Type) -> Any:
    """The value with every key in the case that its type `of` expects."""
    match of:
        case inspect.Metadata(type=inner):
            return _as_go_reads(found, inner)
        case inspect.UnionType(types=types):
            for one in types:
                found = _as_go_reads(found, one)
        case inspect.StructType(fields=fields) if isinstance(found, Mapping):
            types_of = {field.encode_name: field.type for field in fields}
            read = named(found, types_of)
            return {k: _as_go_reads(v, types_of[k]) for k, v in read.items() if k in types_of}
        case inspect.DictType(value_type=value) if isinstance(found, Mapping):
            return {name: _as_go_reads(one, value) for name, one in found.items()}
        case inspect.VarTupleType(item_type=item) if isinstance(found, list):
            return [_as_go_reads(one, item) for one in found]
    return found


def named(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The object with these keys in the given case, however they are written, as encoding/json
    reads them: of several the last counts. Null is not set."""
    lower = {name.casefold(): name for name in names}
    read: dict[str, Any] = {}
    for name, value in found.items():
        if value is not None:
            read[lower.get(name.casefold(), name)] = value
    return read


def unknown_keys(found: Mapping[str, Any], of: Iterable[str], *, only_near: bool) -> Iterator[str]:
    """A warning for each unknown key, which may be a typing error; with `only_near` only for keys
    that are similar to a known one. At most `_MOST_UNREAD` are checked, because each is compared
    with every known key and an annotation has room for thousands."""
    known = {name.casefold(): name for name in of}
    unread = (name for name in found if name.casefold() not in known)
    for name in islice(unread, _MOST_UNREAD):
        near = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.8)
        if near:
            yield f"unknown key {name!r:.80}: is {known[near[0]]} meant?"
        elif not only_near:
            yield f"unknown key {name!r:.80}"


def merged(usual: Said, own: Said) -> Said:
    """Merge `own` over `usual`: values and lists replace those of `usual`, objects are merged key
    by key, as in a JSON merge patch."""
    replaced: dict[str, Any] = {}
    for field in keys_of(type(usual)):
        before, value = getattr(usual, field), getattr(own, field)
        if value is None:
            continue
        if isinstance(value, msgspec.Struct) and before is not None:
            value = merged(before, value)
        elif isinstance(value, dict) and before is not None:
            value = before | value
        replaced[field] = value
    return msgspec.structs.replace(usual, **replaced)


def without(of: Said, fields: Iterable[str]) -> Said:
    """`of` with these fields not set."""
    return msgspec.structs.replace(of, **dict.fromkeys(fields, None))


def document(of: msgspec.Struct) -> dict[str, Any]:
    """The set fields by their JSON keys."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(of))
    return fields


def out_of_range(
    of: msgspec.Struct, ranges: Mapping[str, tuple[int, int]], those: str = "allowed"
) -> Iterator[tuple[str, str]]:
    """Every number outside of its range in `ranges`, whose ends are included."""
    keys = keys_of(type(of))
    for field, (least, most) in ranges.items():
        value = getattr(of, field)
        if value is not None and not least <= value <= most:
            endless = most == MOST and value < least
            allowed = f"{least} or more" if endless else f"{least} to {most}"
            yield field, f"{keys[field]} is {value}, {those} is {allowed}"


def strange_texts(
    of: msgspec.Struct, known: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str]]:
    """Every text that is not `known` for its field."""
    keys = keys_of(type(of))
    for field, texts in known.items():
        value = getattr(of, field)
        if value and value not in texts:
            yield field, f"{keys[field]} is {value!r:.60}, allowed are {', '.join(texts)}"


# The largest int64 of Go.
MOST = 2**63 - 1
