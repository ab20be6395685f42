"""Means of the last seconds, in bounded memory."""

from collections import deque
from typing import Final

LONGEST_SECONDS: Final = 3600.0
_MOST_SAMPLES: Final = 4096


class MeanWindow:
    """Samples of a few whole numbers each, and their means over the last seconds.

    `interval_seconds` is the time between two samples. The window has at most an hour of samples,
    and 4096 of them. Times are those of the samples: the window needs no clock.
    """

    def __init__(self, interval_seconds: float = 1.0) -> None:
        self._interval_seconds = interval_seconds
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque()
        self._sums: tuple[int, ...] = ()

    def add(self, at: float, values: tuple[int, ...], seconds: float) -> None:
        """Add the sample of a moment and drop those that are older than `seconds`.

        A second sample of a moment is ignored. A time before that of the last sample means that the
        clock was set: the window starts again.
        """
        if self._samples and at < self._samples[-1][0]:
            self._samples.clear()
        if not self._samples:
            self._sums = (0,) * len(values)
        elif at == self._samples[-1][0]:
            return
        self._samples.append((at, values))
        self._sums = tuple(a + b for a, b in zip(self._sums, values, strict=True))
        oldest = at - min(max(seconds, self._interval_seconds), LONGEST_SECONDS)
        while self._samples[0][0] <= oldest or len(self._samples) > _MOST_SAMPLES:
            _, dropped = self._samples.popleft()
            self._sums = tuple(a - b for a, b in zip(self._sums, dropped, strict=True))

    def mean(self, seconds: float) -> tuple[int, ...] | None:
        """The means, rounded down. None unless the samples cover a third of `seconds`, the same
        share as in Koordinator."""
        count = len(self._samples)
        whole_seconds = int(min(max(seconds, self._interval_seconds), LONGEST_SECONDS))
        if not count or count * self._interval_seconds < whole_seconds // 3:
            return None
        return tuple(total // count for total in self._sums)
