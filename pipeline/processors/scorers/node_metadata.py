"""NodeMetadata of scheduler-plugins (KEP-942): by a number or a time in a label, or annotation."""

import math
import re
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.times import parse_time

Kind = Literal["Number", "Timestamp"]
Order = Literal["Highest", "Lowest", "Newest", "Oldest"]

_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
_LARGEST: Final = 2.0**63


def raw_metadata(texts: Sequence[str | None], kind: Kind, order: Order, now: float) -> FloatArray:
    """The number of each node, (nodes,), so that more is better: the value, cut, or its age in
    seconds; NaN where there is none that can be read."""
    read = _number if kind == "Number" else lambda text: _age(text, now)
    values = np.array([math.nan if text is None else read(text) for text in texts])
    return -values if order in ("Lowest", "Newest") else values


def by_metadata(raw: FloatArray) -> IntArray:
    """The score: 1 to 100 over the nodes that have a value, all alike 1; 0 for those without."""
    known = np.isfinite(raw)
    if not known.any():
        return np.zeros(len(raw), np.int64)
    lowest, highest = raw[known].min(), raw[known].max()
    spread = highest - lowest
    share = (np.where(known, raw, lowest) - lowest) * (MAX_SCORE - 1) / (spread or 1.0)
    return np.where(known, 1 + share.astype(np.int64), 0)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        return math.nan
    value = float(text.replace("_", ""))
    return float(math.trunc(value)) if abs(value) < _LARGEST else math.nan


def _age(text: str, now: float) -> float:
    try:
        return float(math.trunc(now - parse_time(text)))
    except (ValueError, InvalidRecordError):
        return math.nan
