"""SchedulingHint of Koordinator: nodes that an annotation of the pod names, best first."""

from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import NodesView, PodDemand, Scorer, ScorerArgs

HINT: Final = "SchedulingHint"
HINTS: Final = (
    "internal.scheduling.koordinator.sh/scheduling-hint",
    "scheduling.koordinator.sh/scheduling-hint",
)
"""Annotations with a hint; the first existing annotation counts."""


class SchedulingHintArgs(ScorerArgs, frozen=True, kw_only=True):
    max_hint_nodes: Annotated[int, Meta(ge=1, le=5000)] = 100


class Hint(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes that a pod is limited to, and the nodes that it prefers."""

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()


def read_hint(annotations: Mapping[str, str]) -> Hint:
    """The hint of a pod; an empty hint without an annotation, and for an invalid one."""
    text = next((annotations[name] for name in HINTS if name in annotations), "{}")
    try:
        return msgspec.json.decode(text, type=Hint)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Hint()


def preferred_nodes(
    preferred: Sequence[str], offered: Container[str], max_hint_nodes: int
) -> list[str]:
    """Those of the first `max_hint_nodes` hinted nodes that were offered.

    >>> preferred_nodes(["n0", "n1", "n2"], {"n1", "n2"}, 2)
    ['n1']
    """
    return [name for name in preferred[:max_hint_nodes] if name in offered]


def score(nodes: NodesView, demand: PodDemand, args: SchedulingHintArgs) -> IntArray:
    preferred = read_hint(demand.pod.annotations).preferred_node_names
    if not preferred:
        return np.zeros(len(nodes), np.int64)
    names = preferred_nodes(preferred, set(nodes.names), args.max_hint_nodes)
    scores = {name: max(MAX_SCORE - rank, 1) for rank, name in enumerate(names)}
    return np.array([scores.get(name, 0) for name in nodes.names], np.int64)


SCORER: Final = Scorer(
    name=HINT,
    source="Koordinator",
    text=(
        "filter (`nodeNames`) and score (`preferredNodeNames`) by the pod's annotation "
        "`scheduling.koordinator.sh/scheduling-hint`"
    ),
    args=SchedulingHintArgs,
    score=score,
)
