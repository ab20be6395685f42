"""What was written to each place last, and how long a value that does not last is left alone."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from pipeline.processors.node_qos.cgroup_values import Place, Value

LONGEST_WAIT_ROUNDS: Final = 60
"""A value that the kernel refuses, or another process changes, each time is written again after
this many rounds. A refused memory limit costs a search for pages that can be reclaimed."""


class _Last(NamedTuple):
    """A text, and whether it stands as we wrote it."""

    text: str
    is_ours: bool


class _Backoff(NamedTuple):
    """Writes of a value that failed in a row, or did not last until the next round."""

    failures: int
    wait_rounds: int


class WriteHistory:
    """The last text of each place, by us or by another process after us, and failures in a row.
    `former` are the texts that places may have by a process before this one."""

    def __init__(
        self,
        value_of: Callable[[Place, str], Value],
        former: Mapping[Place, Sequence[str]],
    ) -> None:
        self._value_of = value_of
        self._former = dict(former)
        self._last: dict[Place, _Last] = {}
        self._backoffs: dict[Place, _Backoff] = {}

    def is_other(self, place: Place, text: str) -> bool:
        """Whether a text is of another value than the last one."""
        last = self._last.get(place)
        texts = self._former.get(place, ()) if last is None else (last.text,)
        if not texts or text in texts:
            return False
        value = self._value_of(place, text)
        return all(self._value_of(place, of_us) != value for of_us in texts)

    def note_written(self, place: Place, text: str) -> None:
        """The kernel took a text."""
        self._last[place] = _Last(text, True)

    def note_right(self, place: Place, text: str) -> None:
        """A place needs no write: an earlier process wrote it, or it was right before."""
        if place not in self._last and place not in self._backoffs:
            self._last[place] = _Last(text, True)

    def note_changed(self, place: Place, text: str) -> bool:
        """Another process wrote after us; returns whether that is the first failure in a row."""
        is_first, last = place not in self._backoffs, self._last.get(place)
        if last is None or last.is_ours:
            self.note_failure(place)
        self._last[place] = _Last(text, False)
        return is_first

    def note_failure(self, place: Place) -> None:
        """Count a failure: after the first nothing is waited for, then 1, 3, 7 rounds."""
        if place in self._last:
            self._last[place] = self._last[place]._replace(is_ours=False)
        failures = self._backoffs.get(place, _Backoff(0, 0)).failures + 1
        self._backoffs[place] = _Backoff(
            failures, min(2 ** (failures - 1), LONGEST_WAIT_ROUNDS) - 1
        )

    def failed(self) -> Set[Place]:
        """The places with failures in a row."""
        return self._backoffs.keys()

    def waits(self, place: Place) -> bool:
        """Whether a place is left for now; a write that lasted ends the failures in a row."""
        last = self._last.get(place)
        if last is not None and last.is_ours:
            self._backoffs.pop(place, None)
            return False
        failures, wait_rounds = self._backoffs.get(place, _Backoff(0, 0))
        if wait_rounds:
            self._backoffs[place] = _Backoff(failures, wait_rounds - 1)
        return wait_rounds > 0

    def forget_text(self, place: Place) -> None:
        """The kernel changes a place by itself."""
        self._last.pop(place, None)
        self._former.pop(place, None)

    def forget_others(self, saved: Set[Place], decided: Set[Place]) -> None:
        """Forget texts of places that are not saved, and failures of those without a decision."""
        for place in self._last.keys() - saved:
            del self._last[place]
        for place in self._former.keys() - saved:
            del self._former[place]
        for place in self._backoffs.keys() - decided:
            del self._backoffs[place]
