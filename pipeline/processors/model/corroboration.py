"""Compare the usage that two sources report of one node, and know which one to believe.

One source counts, never a sum or a mean. An exporter is believed over a provider: it measures on
the node. Of two providers the first is believed, until the other reported more in `COMPARISONS`
comparisons in a row: usage that may be too low is the greater risk. What differs as often in a row
is a dispute; it ends when as many comparisons in a row agree, or when one source falls silent. All
of it follows from the windows and their append times.
"""

import math
from typing import Final

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.training_batch import WindowHead
from pipeline.times import format_time
from pipeline.topics.node_state import Dispute
from pipeline.topics.resource_amounts import Usage

COMPARISONS: Final = 3
"""Comparisons in a row that begin or end a dispute, or make the other provider believed."""
# Rates over another span, and other rounding, differ by less.
_DIFFERENT_SHARE: Final = 0.25
_LEAST_SHARE_OF_NODE: Final = 0.05
# Usage of the believed source is known for half an hour.
_LONGEST_MS: Final = 900_000
_SILENT_WINDOWS: Final = 3


class SecondSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a node that is not believed, after its last window.

    Its windows from `start_ms` to `end_ms` are not compared yet; `usage` is their average in cores
    and bytes, NaN is unknown. `appended_ms` is the append time of the last one, which is
    `window_ms` long. `agreed`, `differed` and `more` count comparisons in a row: within the
    tolerance, beyond it, and those beyond it in which this source reported more.
    """

    source: str
    start_ms: int
    end_ms: int
    usage: tuple[float, float]
    window_ms: int
    appended_ms: int
    agreed: int = 0
    differed: int = 0
    more: int = 0
    dispute: Dispute | None = None

    def is_silent(self, appended_ms: int) -> bool:
        """Whether it has sent nothing for some windows, by the broker's clock."""
        return appended_ms - self.appended_ms > _SILENT_WINDOWS * self.window_ms

    def with_window(self, window: WindowHead, usage: FloatArray) -> "SecondSource":
        """It after its next window with this average usage (2,)."""
        start_ms, length = self.start_ms, self.end_ms - self.start_ms
        added = window.end_ms - window.start_ms
        if window.start_ms != self.end_ms or length + added > _LONGEST_MS:
            start_ms, length = window.start_ms, 0
        pairs = zip(self.usage, usage.tolist(), strict=True)
        average = [
            (old * length + new * added) / (length + added) if length else new for old, new in pairs
        ]
        return msgspec.structs.replace(
            self,
            start_ms=start_ms,
            end_ms=window.end_ms,
            usage=(average[0], average[1]),
            window_ms=added,
            appended_ms=max(self.appended_ms, window.appended_ms),
        )

    def compared(self, believed: FloatArray, room: FloatArray) -> "SecondSource":
        """It after a comparison of its windows with `believed` (2,), what the other source reported
        in the same time, on a node of this `room` (2,). No windows are left to compare."""
        rest = msgspec.structs.replace(self, start_ms=self.end_ms)
        usage = np.array(self.usage)
        known = np.isfinite(usage) & np.isfinite(believed)
        if not known.any():
            return rest
        tolerance = np.fmax(
            _DIFFERENT_SHARE * np.fmax(usage, believed), _LEAST_SHARE_OF_NODE * room
        )
        differs = known & (np.abs(usage - believed) > tolerance)
        if not differs.any():
            agreed = self.agreed + 1
            return msgspec.structs.replace(
                rest, agreed=agreed, differed=0, more=0,
                dispute=None if agreed >= COMPARISONS else self.dispute,
            )  # fmt: skip
        first = int(differs.argmax())
        is_more = bool(usage[first] > believed[first])
        differed, dispute = self.differed + 1, self.dispute
        if dispute is not None or differed >= COMPARISONS:
            since = format_time(self.end_ms / 1000) if dispute is None else dispute.since
            dispute = Dispute(
                source=self.source, usage=_usage(usage), believed=_usage(believed),
                is_more=is_more, since=since,
            )  # fmt: skip
        more = self.more + 1 if is_more else 0
        return msgspec.structs.replace(
            rest, agreed=0, differed=differed, more=more, dispute=dispute
        )

    def replaced_by(self, source: str, window_ms: int, appended_ms: int) -> "SecondSource":
        """The second source after this one was believed in place of `source`."""
        dispute = self.dispute and Dispute(
            source=source, usage=self.dispute.believed, believed=self.dispute.usage,
            is_more=False, since=self.dispute.since,
        )  # fmt: skip
        return SecondSource(
            source=source, start_ms=self.end_ms, end_ms=self.end_ms, usage=(math.nan, math.nan),
            window_ms=window_ms, appended_ms=appended_ms, dispute=dispute,
        )  # fmt: skip


def second_source(window: WindowHead, usage: FloatArray) -> SecondSource:
    """The second source of a node after its first window."""
    cpu, memory = usage.tolist()
    return SecondSource(
        source=window.source, start_ms=window.start_ms, end_ms=window.end_ms, usage=(cpu, memory),
        window_ms=window.end_ms - window.start_ms, appended_ms=window.appended_ms,
    )  # fmt: skip


def _usage(amounts: FloatArray) -> Usage:
    # JSON has null for NaN.
    cpu, memory = amounts.tolist()
    return Usage(cpu_cores=cpu, memory_bytes=memory)
