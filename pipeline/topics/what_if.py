"""`springtide.what-if`: results of `springtide what-if` that operators published, keyed by name.

The command writes a record with `--publish`, and a tombstone with `--withdraw`. A name is published
again with another result: the newest counts.
"""

import re
from typing import Final, Literal

import msgspec

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.registry import MAX_WHAT_IF_BYTES

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What names a result: it is part of an address."""
MOST_SHARES: Final = 101
"""Values of a measure over its nodes."""
MOST_TRACES: Final = 50
"""Traces of a result: the console draws a plot of each."""

Unit = Literal["millicores", "bytes", "share", "count", "hours"]


class WhatIfMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """A measure of all nodes of a trace under both policies; null is unknown.

    key: Name as in `springtide what-if -o json`.
    label: Name as in its table.
    unit: Unit of the amounts; shares are 0 to 1.
    old: Under the policy that was compared with.
    new: Under the policy that was tried.
    old_by_node: The amount that each 5% more of the nodes stay below, from none to all; empty if
      it is unknown of every node.
    new_by_node: The same under the policy that was tried.
    """

    key: str
    label: str
    unit: Unit
    old: float | None
    new: float | None
    old_by_node: tuple[float, ...] = ()
    new_by_node: tuple[float, ...] = ()


class WhatIfTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What would have been on the nodes of a trace.

    dataset: Name of the data set.
    scenario: Name of the scenario.
    days: Length in days.
    nodes: Number of nodes.
    notes: What was assumed.
    measures: The measures.
    """

    dataset: str
    scenario: str
    days: float
    nodes: int
    notes: tuple[str, ...] = ()
    measures: tuple[WhatIfMeasure, ...] = ()


class WhatIfRecord(Record, frozen=True, kw_only=True):
    """A published result.

    name: Name of the result.
    policy: Name of the file with the policy that was tried.
    against: Name of the file with the policy that it was compared with; empty: the settings of the
      command alone.
    difference: Lines that differ between the files, as `diff -u` prints them.
    traces: The results by trace.
    """

    name: str
    policy: str
    against: str
    difference: tuple[str, ...]
    traces: tuple[WhatIfTrace, ...]


def read_what_if(key: bytes | None, value: bytes) -> WhatIfRecord:
    """The result in a record of the topic. Raises `RecordError`."""
    if len(value) > MAX_WHAT_IF_BYTES:
        reason = f"the result has {len(value)} bytes, more than {MAX_WHAT_IF_BYTES}"
        raise InvalidRecordError(reason)
    record = decode_json(WhatIfRecord, value)
    if not NAME.fullmatch(record.name):
        raise InvalidRecordError(f"{record.name[:80]!r} is no name of a result")
    if record.name.encode() != key:
        raise KeyMismatchError(f"payload is about {record.name[:80]!r}, key {key!r:.100}")
    if len(record.traces) > MOST_TRACES:
        raise InvalidRecordError(
            f"the result has {len(record.traces)} traces, more than {MOST_TRACES}"
        )
    for trace in record.traces:
        for measure in trace.measures:
            if max(len(measure.old_by_node), len(measure.new_by_node)) > MOST_SHARES:
                raise InvalidRecordError(f"a measure has more than {MOST_SHARES} values by node")
    return record
