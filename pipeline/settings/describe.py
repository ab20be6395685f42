"""Describe settings from their types: for `--help`, docs/reference/settings.md and errors."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from pipeline.settings.base import Secret, Section
from pipeline.settings.schema import Settings


class SettingDescription(NamedTuple):
    """A key with its allowed values, default and description."""

    key: str
    allowed: str
    default: object
    doc: str


def describe_settings() -> Iterator[SettingDescription]:
    """Yield every key in the order of the schema."""
    for key, kind in leaf_types().items():
        default: object = Settings()
        for name in key.split("."):
            default = getattr(default, name)
        yield SettingDescription(key, allowed_values(kind), default, description(kind))


@cache
def leaf_types() -> dict[str, Any]:
    """Map each dotted key to its annotated type."""
    return dict(_leaves(Settings, ""))


def _leaves(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _leaves(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


def section_types(kind: Any) -> dict[str, Any]:
    """Map the keys of a section to their annotated types; empty for other types."""
    is_section = isinstance(kind, type) and issubclass(kind, Section)
    return get_type_hints(kind, include_extras=True) if is_section else {}


def description(kind: Any) -> str:
    texts = [meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description]
    return texts[-1] if texts else ""


def is_nullable(kind: Any) -> bool:
    return NoneType in _members(kind)


def is_secret(kind: Any) -> bool:
    """Return whether the value must never be printed."""
    return Secret in _members(kind)


def is_structured(kind: Any) -> bool:
    """Return whether the value is a list or mapping, written as YAML in variables and flags."""
    return any(get_origin(part) in (tuple, dict) or section_types(part) for part in _members(kind))


def plain_types(kind: Any) -> tuple[Any, ...]:
    """Return the types of a key without annotations and None."""
    return tuple(member for member in _members(kind) if member is not NoneType)


def _members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _members(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        return tuple(part for member in get_args(kind) for part in _members(member))
    return (kind,)


def allowed_values(kind: Any) -> str:
    """Describe the allowed values of a type, such as `a number from 0 to 100, or null`."""
    return _in_words(inspect.type_info(kind))


def _in_words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(extra_json_schema={"title": str(words)}):
            return words
        case inspect.Metadata(type=inner):
            return _in_words(inner)
        case inspect.UnionType(types=types):
            rest = [_in_words(t) for t in types if not isinstance(t, inspect.NoneType)]
            return ", ".join([*rest, "or null"])
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            return f"{noun}{_range(info)}"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a text"
        case inspect.CustomType(cls=cls):
            return "a path" if cls is Path else "a text"
        case inspect.VarTupleType():
            return "a list"
        case inspect.DictType():
            return "a mapping"
        case inspect.StructType(fields=fields):
            return f"a mapping of {', '.join(field.encode_name for field in fields)}"
    raise TypeError(f"no words for {info!r}")


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    low = f"above {info.gt:g}" if info.gt is not None else ""
    if info.ge is not None:
        low = f"from {info.ge:.15g}"
    high = f"to {info.le:.15g}" if info.le is not None else ""
    if low.startswith("above") and high:
        high = f"up {high}"
    return "".join(f" {part}" for part in (low, high) if part)


def settings_markdown() -> str:
    """docs/reference/settings.md: a table for each section."""
    lines = [_INTRODUCTION.strip()]
    section = ""
    for setting in describe_settings():
        name = setting.key.split(".", 1)[0]
        if name != section:
            section = name
            doc = (get_type_hints(Settings)[name].__doc__ or "").strip()
            lines += ["", f"## {name}", "", doc, ""]
            lines += ["| key | default | allowed | description |", "|---|---|---|---|"]
        cells = (f"`{setting.key}`", f"`{written(setting.default)}`", setting.allowed, setting.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """
# Settings

For operators: all settings with their defaults. Generated from `pipeline/settings` by `make docs`;
do not edit.

Settings come from a YAML file (`--config FILE`, or `SPRINGTIDE_CONFIG`), from environment
variables, and from flags. Variables override the file, flags override variables. In the file,
sections contain keys:

```yaml
kafka:
  bootstrap_servers: kafka-0:9092,kafka-1:9092
model:
  half_life_seconds:
    cpu: 21600
```

The variable of a key is `SPRINGTIDE_` and the key in upper case with `_` for each dot:
`SPRINGTIDE_MODEL_HALF_LIFE_SECONDS_CPU=21600`. Its flag is the key without the section:
`--half-life-seconds-cpu 21600`; each command has flags for the keys that it uses. `null` or an
empty variable unsets a key that allows null. In variables and flags, lists and mappings are YAML.

An unknown key, an unknown variable or an invalid value is an error: the command exits with 2 and
prints the key, the value, its source and the allowed values. Variables that the kubelet adds for
Services (`SPRINGTIDE_EXTENDER_SERVICE_HOST`, `SPRINGTIDE_EXTENDER_PORT=tcp://...`) are ignored.
"""


def written(value: object) -> str:
    """Return a value as it is written in the settings file."""
    match value:
        case None:
            return "null"
        case tuple():
            return f"[{', '.join(map(written, value))}]"
        case dict() if not value:
            return "{}"
        case "":
            return '""'
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.15g}"
    return f"{value}"
