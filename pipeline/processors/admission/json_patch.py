"""The difference of two JSON documents as a JSON Patch (RFC 6902)."""

from collections.abc import Iterator
from typing import Any

JsonObject = dict[str, Any]


def json_patch(old: JsonObject, new: JsonObject) -> list[JsonObject]:
    """The operations that turn `old` into `new`.

    Entries of lists of the same length are compared one by one; other lists are replaced whole.
    """
    return list(_differences(old, new, ""))


def _differences(old: Any, new: Any, path: str) -> Iterator[JsonObject]:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() - new.keys()):
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, value in new.items():
            place = f"{path}/{_escaped(key)}"
            if key in old:
                yield from _differences(old[key], value, place)
            else:
                yield {"op": "add", "path": place, "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}/{number}")
    # In Python, True equals 1.
    elif type(old) is not type(new) or old != new:
        yield {"op": "replace", "path": path, "value": new}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
