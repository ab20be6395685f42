"""Inputs of cases that record which of their keys an adapter reads."""

from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]


class Recorded(dict[str, Any]):
    """An object of a case. A key is read when its value is taken, or asked for with `in`."""

    def __init__(self, values: Case) -> None:
        super().__init__({key: recorded(value) for key, value in values.items()})
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def items(self) -> Any:
        self.read.update(self)
        return super().items()

    def values(self) -> Any:
        self.read.update(self)
        return super().values()


def recorded(value: Any) -> Any:
    """`value` with all objects in it as `Recorded`."""
    if isinstance(value, dict):
        return Recorded(value)
    return [recorded(item) for item in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """`value` as plain objects, all keys read: for an object that the product reads as a whole."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def unread(value: Any, path: str = "") -> Iterator[str]:
    """The paths of keys that were not read."""
    if isinstance(value, Recorded):
        for key in dict.keys(value):
            at = f"{path}.{key}" if path else key
            if key in value.read:
                yield from unread(dict.__getitem__(value, key), at)
            else:
                yield at
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unread(item, f"{path}[{index}]")
