"""What was found out once and may be asked for again, within a number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values by key, of at most `most_bytes` altogether: for what is put in, that goes which was
    not asked for longest. What takes more than a hundredth of it by itself is not kept."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Value | None:
        """The value of `key`, None if it is not kept."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value that takes `size` bytes with its key."""
        _, before = self._held.pop(key, (None, 0))
        self.bytes -= before
        if size > self.most_bytes // 100:
            return
        self._held[key] = value, size
        self.bytes += size
        while self.bytes > self.most_bytes:
            _, (_, gone) = self._held.popitem(last=False)
            self.bytes -= gone
