"""What the keys of `slo-controller-config` have in common: JSON objects, read as Go reads them.

A section is a key of the ConfigMap and a struct, every field of which may be None: not said. Owes
the rest: reading one, merging one over another, and naming what is wrong, whichever section it is.
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
    """A key of the ConfigMap. `defaults` has what holds where nobody says anything; `problems`
    names every value that is out of range, by our name of its field; `oddities` what is taken, and
    hardly meant.

    `cluster` is where in it the cluster's part is, all of it where there is no such place;
    `entries` where those for some nodes are. What an entry says lies over `of_entry`. Of a section
    that `is_ours` all keys are known to us. Where the field `switch` is false nothing is handed on,
    so that it counts whatever else a place says."""

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
        """What a place says that says nothing."""
        return type(self.defaults)()

    def unread(self, found: Mapping[str, Any], *more: str) -> Iterator[str]:
        """What may be written wrongly: keys that nobody reads, beside those of `more`."""
        names = {*keys_of(type(self.defaults)).values(), *more}
        return unknown_keys(found, names, only_near=not self.is_ours)

    def convert(self, found: Mapping[str, Any]) -> Said:
        """What an object says. Raises InvalidPolicyError for a value of another type."""
        return convert(found, type(self.defaults))

    def convert_each(self, found: Mapping[str, Any]) -> tuple[Said, dict[str, str]]:
        """What an object says, and by our name of its field what is wrong with each value of
        another type, which says nothing."""
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
        """What of an object counts that cannot be used: that it switches off, or nothing."""
        key = keys_of(type(self.defaults)).get(self.switch, "")
        is_off = named(found, (key,)).get(key) is False
        return self.convert({key: False}) if is_off else self.nothing


@cache
def keys_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """By our name of a field the one that users write."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


def read_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object, its keys as they are written. Raises InvalidPolicyError for what is none."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"not JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise InvalidPolicyError(f"{json_type(found)}, not an object")
    return found


def json_type(found: Any) -> str:
    """What a value of a JSON document is called.

    >>> json_type(None), json_type([]), json_type(1.5)
    ('null', 'a list', 'a number')
    """
    if found is None or isinstance(found, bool):
        return "null" if found is None else "a boolean"
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names[type(found)]


def convert(found: Mapping[str, Any], kind: type[Said]) -> Said:
    """What an object says, its keys in whatever case; unknown ones are left alone, and null says
    nothing. Raises InvalidPolicyError for a value of another type, and for a word that is none."""
    try:
        return msgspec.convert(_as_go_reads(found, _type_of(kind)), kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidPolicyError(str(error)) from error


@cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _as_go_reads(found: Any, of: inspect.Type) -> Any:
    """What was found where a value of type `of` is expected, every key by its name."""
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
    """The object with these keys by their names, in whatever case they are written, as
    encoding/json takes them: of several the last one counts. What is null is not said."""
    lower = {name.casefold(): name for name in names}
    read: dict[str, Any] = {}
    for name, value in found.items():
        if value is not None:
            read[lower.get(name.casefold(), name)] = value
    return read


def unknown_keys(found: Mapping[str, Any], of: Iterable[str], *, only_near: bool) -> Iterator[str]:
    """What is said of each key of an object that nobody reads: it may be one that is written
    wrongly. With `only_near` of those alone that are nearly one that is read. Of more than
    `_MOST_UNREAD` the first ones: an annotation has room for thousands, and each is compared with
    every key."""
    known = {name.casefold(): name for name in of}
    unread = (name for name in found if name.casefold() not in known)
    for name in islice(unread, _MOST_UNREAD):
        near = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.8)
        if near:
            yield f"nobody reads {name!r:.80}: is {known[near[0]]} meant?"
        elif not only_near:
            yield f"nobody reads {name!r:.80}"


def merged(usual: Said, own: Said) -> Said:
    """`usual` with what `own` says: values and lists in place of those of `usual`, objects key by
    key, as a JSON merge."""
    said: dict[str, Any] = {}
    for field in keys_of(type(usual)):
        before, value = getattr(usual, field), getattr(own, field)
        if value is None:
            continue
        if isinstance(value, msgspec.Struct) and before is not None:
            value = merged(before, value)
        elif isinstance(value, dict) and before is not None:
            value = before | value
        said[field] = value
    return msgspec.structs.replace(usual, **said)


def without(of: Said, fields: Iterable[str]) -> Said:
    """`of`, which says nothing of these fields."""
    return msgspec.structs.replace(of, **dict.fromkeys(fields, None))


def document(of: msgspec.Struct) -> dict[str, Any]:
    """What is said, by the names that users write."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(of))
    return found


def out_of_range(
    of: msgspec.Struct, ranges: Mapping[str, tuple[int, int]], those: str = "allowed"
) -> Iterator[tuple[str, str]]:
    """Every number that is not between those of `ranges`, both of them among `those`."""
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
    """Every text that is none of those `known` for its field."""
    keys = keys_of(type(of))
    for field, texts in known.items():
        value = getattr(of, field)
        if value and value not in texts:
            yield field, f"{keys[field]} is {value!r:.60}, which is none of {', '.join(texts)}"


# More than Go's int64 is no number there either.
MOST = 2**63 - 1
