"""The nodes that filters refuse and why, as arrays over the candidate nodes.

kube-scheduler counts nodes by the text of their reason: `10000 node(s) cpu usage exceed threshold`.
So a reason is one of a small fixed set of texts, worded as upstream words them. A text with the
name or the usage of a node would list every node in the condition of the pod, which each retry
writes again. The numbers are in `detail`, which is computed for one node at a time, on demand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray

PASSES: Final = -1


class Refusal(NamedTuple):
    """Why nodes may not take the pod. `reason` is the same text for all of these nodes, and has no
    percent sign: kube-scheduler uses the text of an Event as a format string, and loses the Event.
    """

    reason: str


def _no_detail(_position: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The result of a filter, or of several.

    `codes` (nodes,) has the index of each node's refusal in `kinds`, `PASSES` for a node that is
    not refused. `detail(position)` is the text with the numbers that led to the refusal of one
    node, of the moment of the decision, at any later time and in any thread.
    """

    codes: IntArray
    kinds: tuple[Refusal, ...] = ()
    detail: Callable[[int], str] = _no_detail

    @staticmethod
    @lru_cache(maxsize=16)
    def none(nodes: int) -> "Refusals":
        """No node is refused."""
        codes: IntArray = np.full(nodes, PASSES, np.int64)
        codes.flags.writeable = False
        return Refusals(codes)

    @property
    def is_refused(self) -> BoolArray:
        """Whether each node is refused, (nodes,)."""
        refused: BoolArray = self.codes != PASSES
        return refused

    def kind(self, position: int) -> Refusal | None:
        """The refusal of one node; None if it passes."""
        code = int(self.codes[position])
        return None if code == PASSES else self.kinds[code]

    def counts(self) -> dict[str, int]:
        """How many nodes are refused, by reason."""
        numbers = np.bincount(self.codes[self.is_refused], minlength=len(self.kinds)).tolist()
        return {
            kind.reason: number for kind, number in zip(self.kinds, numbers, strict=True) if number
        }

    def take(self, positions: IntArray) -> "Refusals":
        """The refusals of the nodes at these positions, in this order."""
        detail = self.detail
        return Refusals(
            self.codes[positions], self.kinds, lambda index: detail(int(positions[index]))
        )

    def joined(self, other: "Refusals") -> "Refusals":
        """These refusals and those of another filter. Of two refusals of a node the first
        counts."""
        if not (self.kinds and other.kinds):
            return other if other.kinds else self
        is_others = other.is_refused & ~self.is_refused
        if not is_others.any():
            return self
        codes = np.where(is_others, other.codes + len(self.kinds), self.codes)
        details = self.detail, other.detail
        return Refusals(
            codes,
            (*self.kinds, *other.kinds),
            lambda position: details[int(is_others[position])](position),
        )
