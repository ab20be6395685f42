"""Read, check and merge the keys of `slo-controller-config`: JSON objects, read as Go reads them.

A section is a key of the ConfigMap and a struct whose fields are None if not set. Keys may be in
any case, and of several the last counts, because Koordinator's encoding/json reads them so: the
same ConfigMap must mean the same here.
"""

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from pipeline.errors import InvalidPolicyError

Config = TypeVar("Config", bound=msgspec.Struct)

_MOST_REPORTED_KEYS: Final = 100
# Koordinator's sections use one or the other, which invites mistakes.
_ENTRIES_KEYS: Final = ("nodeconfigs", "nodestrategies")


@dataclass(frozen=True, slots=True)
class Section(Generic[Config]):
    """A key of the ConfigMap. `problems` names values out of range by field, `warnings` warns of
    accepted but unusual values.

    `cluster` is the key of the cluster's part, empty if that is the whole object; `entries` the key
    of the entries for some nodes, which are merged over `entry_defaults`. If the field `switch` is
    false, that counts even in an invalid part: an operator must always be able to switch off.
    """

    key: str
    defaults: Config
    problems: Callable[[Config], Iterator[tuple[str, str]]]
    warnings: Callable[[Config], Iterator[str]] = lambda config: iter(())
    cluster: str = ""
    entries: str = "nodeConfigs"
    entry_defaults: Config | None = None
    switch: str = ""

    @property
    def empty(self) -> Config:
        """The struct without any field set."""
        return type(self.defaults)()

    def unknown_keys(self, tree: Mapping[str, Any], *more: str) -> Iterator[str]:
        """Warnings of unknown keys other than `more`."""
        meant = dict.fromkeys(_ENTRIES_KEYS, self.entries) if self.entries in more else {}
        return unknown_keys(tree, {*json_keys(type(self.defaults)).values(), *more}, meant)

    def misplaced_keys(self, tree: Mapping[str, Any]) -> Iterator[str]:
        """Warnings of keys beside the cluster's part and the entries."""
        keys = json_keys(type(self.defaults)).values()
        meant = {key.casefold(): f"{self.cluster}.{key}" for key in keys}
        meant |= dict.fromkeys(_ENTRIES_KEYS, self.entries)
        return unknown_keys(tree, (self.cluster, self.entries), meant)

    def convert(self, tree: Mapping[str, Any]) -> Config:
        """Convert an object. Raises InvalidPolicyError for a value of another type."""
        return convert(tree, type(self.defaults))

    def convert_each(self, tree: Mapping[str, Any]) -> tuple[Config, dict[str, str]]:
        """Convert an object; a value of another type is not set, and has its problem by field."""
        config, problems = self.empty, {}
        keys = json_keys(type(config))
        values = canonical_keys(tree, keys.values())
        for field, key in keys.items():
            try:
                config = merge(config, self.convert({key: values.get(key)}))
            except InvalidPolicyError as error:
                problems[field] = error.message
        return config, problems

    def switched_off(self, tree: Mapping[str, Any]) -> Config:
        """The part of an invalid object that counts: that it switches off, or nothing."""
        key = json_keys(type(self.defaults)).get(self.switch, "")
        is_off = canonical_keys(tree, (key,)).get(key) is False
        return self.convert({key: False}) if is_off else self.empty


@cache
def json_keys(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


def read_object(text: str | bytes) -> dict[str, Any]:
    """Decode a JSON object, its keys as written. Raises InvalidPolicyError for anything else."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError as error:
        raise InvalidPolicyError("nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidPolicyError(f"not JSON: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise InvalidPolicyError(f"{json_type(value)}, not an object")
    return value


def json_type(value: Any) -> str:
    """The name of a JSON value's type.

    >>> json_type(None), json_type([]), json_type(1.5)
    ('null', 'a list', 'a number')
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names[type(value)]


def convert(tree: Mapping[str, Any], kind: type[Config]) -> Config:
    """Convert an object with keys in any case; unknown keys are ignored, null is not set. Raises
    InvalidPolicyError for a value of another type, and for an unknown word of an enumeration."""
    try:
        return msgspec.convert(_with_canonical_keys(tree, _type_info(kind)), kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidPolicyError(str(error)) from error


_type_info: Final = cache(inspect.type_info)


def _with_canonical_keys(value: Any, kind: inspect.Type) -> Any:
    """The value with every key in the case that its type `kind` expects."""
    match kind:
        case inspect.Metadata(type=inner):
            return _with_canonical_keys(value, inner)
        case inspect.UnionType(types=types):
            for inner in types:
                value = _with_canonical_keys(value, inner)
        case inspect.StructType(fields=fields) if isinstance(value, Mapping):
            field_types = {field.encode_name: field.type for field in fields}
            items = canonical_keys(value, field_types).items()
            return {
                key: _with_canonical_keys(v, field_types[key])
                for key, v in items
                if key in field_types
            }
        case inspect.DictType(value_type=inner) if isinstance(value, Mapping):
            return {key: _with_canonical_keys(item, inner) for key, item in value.items()}
        case inspect.VarTupleType(item_type=inner) if isinstance(value, list):
            return [_with_canonical_keys(item, inner) for item in value]
    return value


def canonical_keys(tree: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The object with these keys in the given case, however they are written, as encoding/json
    reads them: of several the last counts. Null is not set."""
    lower = {name.casefold(): name for name in names}
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if value is not None:
            values[lower.get(name.casefold(), name)] = value
    return values


def unknown_keys(
    tree: Mapping[str, Any],
    known_keys: Iterable[str],
    meant: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """A warning for each unknown key, with the known key that is `meant` by it or similar to it.

    `meant` has known keys by lower-case unknown ones. At most `_MOST_REPORTED_KEYS` are checked:
    each is compared with every known key, and an annotation has room for thousands.
    """
    known = {name.casefold(): name for name in known_keys}
    unknown = (name for name in tree if name.casefold() not in known)
    for name in islice(unknown, _MOST_REPORTED_KEYS):
        near = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.8)
        key = meant.get(name.casefold()) or (known[near[0]] if near else None)
        yield f"ignored key {name!r:.80}: " + (f"is {key} meant?" if key else "it is unknown")


def repeated_keys(text: str | bytes) -> list[str]:
    """A warning for each key that an object of a JSON text has twice; none for invalid JSON."""
    repeated: dict[str, None] = {}

    def note(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in pairs)
        repeated.update((key, None) for key, count in counts.items() if count > 1)

    try:
        json.loads(text, object_pairs_hook=note, parse_int=str)
    except (ValueError, RecursionError):
        return []
    keys = islice(repeated, _MOST_REPORTED_KEYS)
    return [f"key {key!r:.80} occurs twice: the last value counts" for key in keys]


def merge(base: Config, own: Config) -> Config:
    """Merge `own` over `base`: values and lists replace those of `base`, objects are merged key
    by key, as in a JSON merge patch."""
    replaced: dict[str, Any] = {}
    for field in json_keys(type(base)):
        before, value = getattr(base, field), getattr(own, field)
        if value is None:
            continue
        if isinstance(value, msgspec.Struct) and before is not None:
            value = merge(before, value)
        elif isinstance(value, dict) and before is not None:
            value = before | value
        replaced[field] = value
    return msgspec.structs.replace(base, **replaced)


def unset(config: Config, fields: Iterable[str]) -> Config:
    return msgspec.structs.replace(config, **dict.fromkeys(fields, None))


def document(struct: msgspec.Struct) -> dict[str, Any]:
    """The set fields by their JSON keys."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(struct))
    return fields


def out_of_range(
    struct: msgspec.Struct, ranges: Mapping[str, tuple[int, int]], qualifier: str = "allowed"
) -> Iterator[tuple[str, str]]:
    """Every number outside of its range in `ranges`, whose ends are included."""
    keys = json_keys(type(struct))
    for field, (least, most) in ranges.items():
        value = getattr(struct, field)
        if value is not None and not least <= value <= most:
            is_open = most == MOST and value < least
            allowed = f"{least} or more" if is_open else f"{least} to {most}"
            yield field, f"{keys[field]} is {value}, {qualifier} is {allowed}"


def unknown_words(
    struct: msgspec.Struct, known: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str]]:
    """Every text that is not `known` for its field."""
    keys = json_keys(type(struct))
    for field, texts in known.items():
        value = getattr(struct, field)
        if value and value not in texts:
            yield field, f"{keys[field]} is {value!r:.60}, allowed are {', '.join(texts)}"


# The largest int64 of Go.
MOST = 2**63 - 1
