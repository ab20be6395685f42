"""What outcomes other fleets had: the start of the margins of a pool that has none yet.

`fleet_prior.json` has the quantiles of z = log(outcome / shape) at `PROBABILITIES`;
`benchmarks/calibrated_prior.py` made it from public traces. After a few days of a pool's own
outcomes it hardly matters.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated import outcome_quantiles
from pipeline.processors.calibrated.pooled_margins import BINS, WIDTH

PROBABILITIES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
_TAIL_SCALE: Final = 0.1


@cache
def histogram() -> FloatArray:
    """The prior that ships with the package, (BINS,); see `histogram_of`."""
    text = resources.files(__package__).joinpath("fleet_prior.json").read_text()
    return histogram_of(json.loads(text))


def histogram_of(quantiles: Sequence[float]) -> FloatArray:
    """A distribution of z (BINS,), with sum 1.

    Half of the weight has a longer tail than was seen, because another fleet may be worse: it is
    the distribution of z + an exponential variable with a mean of `_TAIL_SCALE`.
    """
    steps = WIDTH * np.arange(BINS)
    tail = np.exp(-steps / _TAIL_SCALE)
    seen = outcome_quantiles.distribution_of(quantiles, PROBABILITIES)
    longer = np.convolve(seen, tail / tail.sum())[:BINS]
    longer[-1] += max(1.0 - longer.sum(), 0.0)
    result: FloatArray = 0.5 * (seen + longer)
    return result


def quantiles_of(margins: Iterable[FloatArray]) -> list[float] | None:
    """The quantiles at `PROBABILITIES` of the margins (BINS,) of several fleets with equal weight;
    None if no fleet had an outcome."""
    known = [one / one.sum() for one in margins if one.any()]
    return outcome_quantiles.quantiles_of(sum(known), PROBABILITIES) if known else None
