"""Descriptions of structs and of their fields, for references and schemas.

The docstring of a struct describes its fields in lines `field: text`, which may continue on
indented lines. A field may have a description in its type (`Meta`) instead. Fields that a base
class describes need no second description.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

_LINE: Final = re.compile(r"^(\w+): (.+(?:\n  +.+)*)\n?", re.MULTILINE)


def text_of(struct: type) -> str:
    """The docstring of a struct without the lines of its fields, in one line a paragraph."""
    fields = {field.name for field in msgspec.structs.fields(struct)}
    doc = inspect.cleandoc(struct.__doc__ or "")
    rest = _LINE.sub(lambda line: "" if line[1] in fields else line[0], doc)
    return "\n\n".join(" ".join(part.split()) for part in rest.split("\n\n") if part.strip())


def field_texts(struct: type) -> dict[str, str]:
    """The descriptions of the fields of a struct, by the names in records."""
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__doc__ is not None:
            lines = _LINE.findall(inspect.cleandoc(base.__doc__))
            texts |= {name: " ".join(text.split()) for name, text in lines}
    fields = msgspec.structs.fields(struct)
    texts |= {field.name: text for field in fields if (text := _stated(field.type))}
    return {field.encode_name: texts[field.name] for field in fields if field.name in texts}


def structs_of(types: Iterable[Any]) -> list[type]:
    """These structs and all that are nested in them, each once, in the order of their fields."""
    found: dict[type, None] = {}
    pending = list(types)
    while pending:
        kind = pending.pop(0)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            pending += [field.type for field in msgspec.structs.fields(kind)]
        pending += get_args(kind)
    return [*found]


def _stated(kind: Any) -> str | None:
    """The description in an annotated type."""
    described = [getattr(item, "description", None) for item in getattr(kind, "__metadata__", ())]
    return next((str(text) for text in described if text), None)
