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
    """One key, for people."""

    key: str
    allowed: str
    default: object
    doc: str


def describe_settings() -> Iterator[SettingDescription]:
    """Every key in the order of the schema."""
    for key, kind in leaf_types().items():
        default: object = Settings()
        for name in key.split("."):
            default = getattr(default, name)
        yield SettingDescription(key, allowed_values(kind), default, description(kind))


@cache
def leaf_types() -> dict[str, Any]:
    """Dotted key -> annotated type, for all keys that take a value."""
    return dict(_leaves(Settings, ""))


def _leaves(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _leaves(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


def section_types(kind: Any) -> dict[str, Any]:
    """Name -> annotated type of the keys of a section; empty for anything else."""
    is_section = isinstance(kind, type) and issubclass(kind, Section)
    return get_type_hints(kind, include_extras=True) if is_section else {}


def description(kind: Any) -> str:
    """What the key means, in a sentence or two."""
    texts = [meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description]
    return texts[-1] if texts else ""


def is_nullable(kind: Any) -> bool:
    """Whether null (unset) is allowed."""
    return NoneType in _members(kind)


def is_secret(kind: Any) -> bool:
    """Whether the value must never be shown."""
    return Secret in _members(kind)


def is_structured(kind: Any) -> bool:
    """Whether the value is a list or mapping: in a variable or flag it is written as YAML."""
    return any(get_origin(part) in (tuple, dict) or section_types(part) for part in _members(kind))


def plain_types(kind: Any) -> tuple[Any, ...]:
    """The bare types of a key, without annotations and without None."""
    return tuple(member for member in _members(kind) if member is not NoneType)


def _members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _members(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        return tuple(part for member in get_args(kind) for part in _members(member))
    return (kind,)


def allowed_values(kind: Any) -> str:
    """What may be written for a type, in words: `a number from 0 to 100, or null`."""
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
            lines += ["| key | default | allowed | meaning |", "|---|---|---|---|"]
        cells = (f"`{setting.key}`", f"`{written(setting.default)}`", setting.allowed, setting.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """
# Settings

Made from the types of `pipeline/settings` by `make docs`; do not edit.

One YAML file (`--config FILE`, or `SPRINGTIDE_CONFIG`) is overridden by the environment, which is
overridden by flags. In the file, sections hold keys:

```yaml
kafka:
  bootstrap_servers: kafka-0:9092,kafka-1:9092
model:
  half_life_seconds:
    cpu: 21600
```

The variable of a key is `SPRINGTIDE_` and the key in upper case with `_` for each dot
(`SPRINGTIDE_MODEL_HALF_LIFE_SECONDS_CPU=21600`), its flag the key without its section
(`--half-life-seconds-cpu 21600`), on the commands that use it. `null`, or an empty variable, unsets
a key that may be unset; lists are written as YAML. What the kubelet adds for Services
(`SPRINGTIDE_EXTENDER_SERVICE_HOST`, `SPRINGTIDE_EXTENDER_PORT=tcp://...`) is not taken for a
setting. An unknown key, an unknown variable or a value out of range ends the command with code 2
and a message that names key, value, source and what is allowed.
"""


def written(value: object) -> str:
    """A value as it is written in the settings file."""
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
