"""Published results of `springtide what-if` as one JSON document, whatever the topic has."""

from typing import Literal, NamedTuple

import msgspec

from pipeline import API_VERSION
from pipeline.errors import RecordError
from pipeline.processors.console import limits
from pipeline.topics.what_if import WhatIfRecord, WhatIfTrace, read_what_if


class WhatIfResult(msgspec.Struct, frozen=True, kw_only=True):
    """A published result.

    name: Name of the result.
    published_at_seconds: When the broker got it, in seconds since 1970.
    policy: Name of the file with the policy that was tried.
    against: Name of the file with the policy that it was compared with; empty: the settings of the
      command alone.
    difference: Lines that differ between the files, as `diff -u` prints them.
    traces: The results by trace.
    """

    name: str
    published_at_seconds: float
    policy: str
    against: str
    difference: tuple[str, ...]
    traces: tuple[WhatIfTrace, ...]


class RefusedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the topic that is no result.

    name: Its key.
    reason: Why it is refused.
    """

    name: str
    reason: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Published results, the newest first.

    items: The results.
    more: The number of older results that are not listed.
    refused: Records that are no results.
    """

    apiVersion: str = API_VERSION
    kind: Literal["WhatIf"] = "WhatIf"
    items: list[WhatIfResult]
    more: int
    refused: list[RefusedResult]


class _Published(NamedTuple):
    at: float
    size: int
    record: WhatIfRecord


class PublishedResults:
    """The newest results by name, at most `limits.RESULTS` of together `limits.RESULT_BYTES`, from
    records in the order of the topic."""

    def __init__(self) -> None:
        self._results: dict[bytes, _Published] = {}
        self._refused: dict[bytes, str] = {}
        self._left_out: set[bytes] = set()

    def take(self, key: bytes | None, value: bytes | None, appended_at: float) -> None:
        """Take a record that the broker appended at this time (Unix); None withdraws a result."""
        name = (key or b"")[: limits.RESULT_NAME_BYTES]
        for known in (self._results, self._refused):
            known.pop(name, None)
        self._left_out.discard(name)
        if value is None:
            return
        try:
            record = read_what_if(key, value)
        except RecordError as error:
            self.refuse(key, error)
            return
        self._results[name] = _Published(appended_at, len(value), record)
        total = sum(each.size for each in self._results.values())
        while len(self._results) > limits.RESULTS or total > limits.RESULT_BYTES:
            oldest = min(self._results, key=lambda name: self._results[name].at)
            total -= self._results.pop(oldest).size
            if len(self._left_out) < limits.COUNTED_RESULTS:
                self._left_out.add(oldest)

    def refuse(self, key: bytes | None, error: RecordError) -> None:
        """Note that a record is no result. Of many the newest are remembered."""
        self._refused[(key or b"")[: limits.RESULT_NAME_BYTES]] = str(error)[:300]
        if len(self._refused) > limits.REFUSED_RESULTS:
            self._refused.pop(next(iter(self._refused)))

    def document(self) -> WhatIf:
        """The results that are known."""
        newest = sorted(self._results.values(), key=lambda each: -each.at)
        return WhatIf(
            items=[
                WhatIfResult(
                    name=each.record.name, published_at_seconds=round(each.at, 3),
                    policy=each.record.policy, against=each.record.against,
                    difference=each.record.difference, traces=each.record.traces,
                )
                for each in newest
            ],
            more=len(self._left_out),
            refused=[
                RefusedResult(name=name.decode(errors="replace"), reason=reason)
                for name, reason in self._refused.items()
            ],
        )  # fmt: skip
