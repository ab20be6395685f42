"""What outcomes other fleets had: the start of the margins of a pool that has none yet.

`fleet_prior.json` has, for each cell of `pooled_margins`, the quantiles of z = log(outcome / shape)
at `PROBABILITIES`; null where no fleet had an outcome. `benchmarks/calibrated_prior.py` made it
from public traces. After a few days of a pool's own outcomes it hardly matters.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated import outcome_quantiles
from pipeline.processors.calibrated.pooled_margins import BINS, CELLS, WIDTH, with_neighbours

PROBABILITIES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
_TAIL_SCALE: Final = 0.1


@cache
def histograms() -> FloatArray:
    """The prior that ships with the package, (CELLS, BINS); see `histograms_of`."""
    text = resources.files(__package__).joinpath("fleet_prior.json").read_text()
    return histograms_of(json.loads(text))


def histograms_of(quantiles: Sequence[Sequence[float] | None]) -> FloatArray:
    """Distributions of z for each cell, with sum 1; zeros where `quantiles` has none.

    Half of the weight has a longer tail than was seen, because another fleet may be worse: it is
    the distribution of z + an exponential variable with a mean of `_TAIL_SCALE`.
    """
    result = np.zeros((CELLS, BINS))
    steps = WIDTH * np.arange(BINS)
    tail = np.exp(-steps / _TAIL_SCALE)
    for cell, values in zip(result, quantiles, strict=True):
        if values is not None:
            seen = outcome_quantiles.distribution_of(values, PROBABILITIES)
            longer = np.convolve(seen, tail / tail.sum())[:BINS]
            longer[-1] += max(1.0 - longer.sum(), 0.0)
            cell[:] = 0.5 * (seen + longer)
    return result


def quantiles_of(margins: Sequence[FloatArray]) -> list[list[float] | None]:
    """The quantiles at `PROBABILITIES` for each cell, of the margins (CELLS, BINS) of several
    fleets with equal weight; cells borrow from their neighbours."""
    total = np.zeros((CELLS, BINS))
    for one in margins:
        weight = one.sum(axis=1, keepdims=True)
        total += np.divide(one, weight, out=np.zeros_like(one), where=weight > 0.0)
    total = with_neighbours(total)
    return [
        outcome_quantiles.quantiles_of(cell, PROBABILITIES) if cell.any() else None
        for cell in total
    ]
