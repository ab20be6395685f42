"""NodeMetadata of scheduler-plugins (KEP-942): by a number or a time in a label or annotation."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import NodesView, PodDemand, Scorer, ScorerArgs
from pipeline.times import parse_time

Kind = Literal["Number", "Timestamp"]
Order = Literal["Highest", "Lowest", "Newest", "Oldest"]

_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
_LARGEST: Final = 2.0**63
_REMEMBERED_TEXTS: Final = 1 << 16


class NodeMetadataArgs(ScorerArgs, frozen=True, kw_only=True):
    """A number or a time (RFC 3339) in a label or annotation of the node."""

    metadata_key: Annotated[str, Meta(min_length=1)]
    metadata_source: Literal["Label", "Annotation"] = "Label"
    metadata_type: Kind = "Number"
    scoring_strategy: Order = "Highest"


def raw_metadata(texts: Sequence[str | None], kind: Kind, order: Order, now: float) -> FloatArray:
    """The value of each text, (texts,), the more the better: the number, truncated, or the age in
    seconds, negated for `Lowest` and `Newest`; NaN where there is no valid value."""
    if kind == "Number":
        values = np.array([*map(_number, texts)])
    else:
        values = np.trunc(now - np.array([*map(_time, texts)]))
    return -values if order in ("Lowest", "Newest") else values


def metadata_scores(raw: FloatArray) -> IntArray:
    """The score, (nodes,): 1 to 100 over the nodes with a value, 1 if they are equal; 0 for nodes
    without."""
    known = np.isfinite(raw)
    if not known.any():
        return np.zeros(len(raw), np.int64)
    lowest, highest = raw[known].min(), raw[known].max()
    spread = highest - lowest
    share = (np.where(known, raw, lowest) - lowest) * (MAX_SCORE - 1) / (spread or 1.0)
    return np.where(known, 1 + share.astype(np.int64), 0)


def node_values(nodes: NodesView, args: NodeMetadataArgs) -> FloatArray:
    """The value of each node, (nodes,), NaN where it has none."""
    codes, texts = nodes.metadata(args.metadata_source, args.metadata_key)
    return raw_metadata(texts, args.metadata_type, args.scoring_strategy, nodes.now)[codes]


def score(nodes: NodesView, demand: PodDemand, args: NodeMetadataArgs) -> IntArray:
    return metadata_scores(node_values(nodes, args))


# Texts of all nodes may differ, and parsing one takes microseconds.
@lru_cache(maxsize=_REMEMBERED_TEXTS)
def _number(text: str | None) -> float:
    if text is None or not _NUMBER.fullmatch(text):
        return math.nan
    value = float(text.replace("_", ""))
    return float(math.trunc(value)) if abs(value) < _LARGEST else math.nan


@lru_cache(maxsize=_REMEMBERED_TEXTS)
def _time(text: str | None) -> float:
    try:
        return math.nan if text is None else parse_time(text)
    except (ValueError, InvalidRecordError):
        return math.nan


SCORER: Final = Scorer(
    name="NodeMetadata",
    source="scheduler-plugins",
    text="by a number or a time (RFC 3339) in a label or an annotation of the node",
    args=NodeMetadataArgs,
    score=score,
)
