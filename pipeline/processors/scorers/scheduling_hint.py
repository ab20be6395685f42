"""SchedulingHint of Koordinator: nodes that whoever made the pod would like, best first."""

from collections.abc import Container, Sequence
from typing import Final

MAX_HINT_NODES: Final = 100


def preferred_nodes(
    preferred: Sequence[str],
    offered: Container[str] | None,
    max_hint_nodes: int = MAX_HINT_NODES,
) -> list[str]:
    """The hinted nodes that were offered (None: all are), of the first `max_hint_nodes`, in the
    order of the hint (scheduling 2.3).

    >>> preferred_nodes(["n0", "n1", "n2"], {"n1", "n2"}, 2)
    ['n1']
    """
    first = preferred[:max_hint_nodes]
    return list(first) if offered is None else [name for name in first if name in offered]
