"""Where a pod would land: what strategies ask for, and what they are answered."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from pipeline.processors.arrays import IntArray

MOST_REJECTED: Final = 3
"""Rejected targets that an answer names; the others are counted."""


class Arrival(NamedTuple):
    """A pod that a plan has put on a node."""

    pod: int
    node: int


class Rejected(NamedTuple):
    """A target that does not take a pod, and why."""

    node: int
    reason: str


class Landing(NamedTuple):
    """Where a pod would land: the node, None if no target takes it, and its score of 0 to 100 there
    (None: not scored). `rejected` are the first targets that refused it, of `rejections`."""

    node: int | None
    score: int | None = None
    rejected: tuple[Rejected, ...] = ()
    rejections: int = 0


class ArrivalChanges:
    """Follows the arrivals of a plan, so that each of them is counted once."""

    def __init__(self) -> None:
        self._known: list[Arrival] = []

    def since_last(self, arrivals: Sequence[Arrival]) -> Iterator[tuple[Arrival, int]]:
        """Yield what came (1) and went (-1) since the last call. A plan appends to its arrivals,
        and takes back the last ones."""
        known = self._known
        while known and (len(known) > len(arrivals) or arrivals[len(known) - 1] is not known[-1]):
            yield known.pop(), -1
        for arrival in arrivals[len(known) :]:
            known.append(arrival)
            yield arrival, 1


class LandingSimulator(Protocol):
    """Finds the node that a scheduler would choose."""

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of `targets`, best first, for a pod that left its node. `arrivals` are the
        pods that the plan has moved so far."""
