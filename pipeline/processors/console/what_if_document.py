"""Published results of `springtide what-if` as one JSON document, whatever the topic has."""

from itertools import accumulate
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
    problem: Why results could not be read again since; empty if the last reading succeeded.
    """

    apiVersion: str = API_VERSION
    kind: Literal["WhatIf"] = "WhatIf"
    items: list[WhatIfResult]
    more: int
    refused: list[RefusedResult]
    problem: str = ""


class _Published(NamedTuple):
    at: float
    value: bytes


class PublishedResults:
    """Results by name, from records in the order of the topic: the newest `limits.READ_RESULTS`, of
    together at most `limits.READ_RESULT_BYTES`, so that one is listed again when newer ones are
    withdrawn."""

    def __init__(self) -> None:
        self._results: dict[bytes, _Published] = {}  # valid records
        self._bytes = 0
        self._refused: dict[bytes, str] = {}
        self._left_out: set[bytes] = set()

    def take(self, key: bytes | None, value: bytes | None, appended_at: float) -> None:
        """Take a record that the broker appended at this time (Unix); None withdraws a result."""
        name = self._forget(key)
        if value is None:
            return
        try:
            read_what_if(key, value)
        except RecordError as error:
            self.refuse(key, error)
            return
        self._results[name] = _Published(appended_at, value)
        self._bytes += len(value)
        while len(self._results) > limits.READ_RESULTS or self._bytes > limits.READ_RESULT_BYTES:
            oldest = min(self._results, key=lambda name: self._results[name].at)
            self._bytes -= len(self._results.pop(oldest).value)
            if len(self._left_out) < limits.COUNTED_RESULTS:
                self._left_out.add(oldest)

    def refuse(self, key: bytes | None, error: RecordError) -> None:
        """Note that a record is no result. Of many the newest are remembered."""
        self._refused[self._forget(key)] = str(error)[:300]
        if len(self._refused) > limits.REFUSED_RESULTS:
            self._refused.pop(next(iter(self._refused)))

    def _forget(self, key: bytes | None) -> bytes:
        """Drop what is known of a name, and return the name."""
        name = (key or b"")[: limits.RESULT_NAME_BYTES]
        known = self._results.pop(name, None)
        self._bytes -= 0 if known is None else len(known.value)
        self._refused.pop(name, None)
        self._left_out.discard(name)
        return name

    def document(self) -> WhatIf:
        """The newest results, at most `limits.RESULTS` of together `limits.RESULT_BYTES`."""
        newest = sorted(self._results.items(), key=lambda item: -item[1].at)
        sizes = accumulate(len(each.value) for _, each in newest)
        fitting = sum(size <= limits.RESULT_BYTES for size in sizes)
        listed = newest[: min(fitting, limits.RESULTS)]
        return WhatIf(
            items=[_result(each.at, read_what_if(name, each.value)) for name, each in listed],
            more=len(newest) - len(listed) + len(self._left_out),
            refused=[
                RefusedResult(name=name.decode(errors="replace"), reason=reason)
                for name, reason in self._refused.items()
            ],
        )


def _result(at: float, record: WhatIfRecord) -> WhatIfResult:
    return WhatIfResult(
        name=record.name, published_at_seconds=round(at, 3), policy=record.policy,
        against=record.against, difference=record.difference, traces=record.traces,
    )  # fmt: skip
