"""Remember until where in the log the results of a node were withdrawn.

A tombstone has no place for a position, so a paused worker that resumes could bring a deleted node
back, and a tombstone that is read again could remove a newer result. Workers therefore write the
position into a header of the tombstone (`pipeline.topics.result_header`).
"""

from collections.abc import Mapping

from pipeline.table import limits
from pipeline.topics.result_header import Position, Result

_NOWHERE: Position = (-1, -1)


class DroppedResults:
    """The positions of withdrawn results by node, of one topic; the oldest are forgotten."""

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}

    def drop(self, node: str, result: Result | None, tombstone: Position | None) -> bool:
        """Note a tombstone; False if it is older than the present `result`.

        The position of a tombstone is None if its writer stated none.
        """
        last = _NOWHERE if result is None else result.position
        if tombstone is not None and tombstone < last:
            return False
        position = max(last, tombstone or _NOWHERE, self.positions.pop(node, _NOWHERE))
        if position > _NOWHERE:
            self.positions[node] = position
            if len(self.positions) > limits.MAX_DEPARTED:
                del self.positions[next(iter(self.positions))]
        return True

    def covers(self, node: str, position: Position) -> bool:
        """Whether a result at this position was withdrawn."""
        return position <= self.positions.get(node, _NOWHERE)

    def forget(self, node: str) -> None:
        """Forget a node that has a newer result."""
        self.positions.pop(node, None)

    def restore(self, positions: Mapping[str, Position]) -> None:
        """Add the positions of a snapshot."""
        self.positions.update(positions)
