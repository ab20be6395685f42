"""Priors of the calibrated predictor that leave the origin of a suite out: what its margins start
from was learned on the data sets of the other origins alone."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import UsageError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.calibrated_runs import CalibratedRun
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.calibrated import fleet_prior
from pipeline.processors.calibrated.pooled_margins import BINS

_DAY_SECONDS: Final = 86_400
_SHORT_HORIZON_SECONDS: Final = 3 * 3600
_ANY_RISK: Final = 0.02
"""Outcomes do not depend on the declared risk."""


class OriginPriors(NamedTuple):
    """The prior (BINS,) for suites of each origin, and a hash of all of them."""

    by_origin: Mapping[str, FloatArray]
    hash: str


def margins_of(trace: Trace, progress: Callable[[int], None] = lambda _: None) -> FloatArray:
    """The outcomes of the pools of a trace by bin, (BINS,), each resource with a
    weight of 1. The horizon is a day, or 3 h if the trace is shorter than two days.

    `progress` is called with the number of steps done. Raises `PredictorError` if pools do not have
    this horizon.
    """
    is_short = trace.steps * trace.step_seconds < 2 * _DAY_SECONDS
    run = CalibratedRun(
        trace,
        _SHORT_HORIZON_SECONDS if is_short else _DAY_SECONDS,
        [_ANY_RISK],
        np.zeros(0, np.int64),
        moved_pods_known=False,
        prior=np.zeros(BINS),
    )
    for step in range(trace.steps):
        run.apply(step)
        progress(step + 1)
    total = np.zeros(BINS)
    for pool in run.pools.values():
        total += pool.margins / max(pool.margins.sum(), 1e-9)
    return total


def check_origins(origins: Iterable[str]) -> None:
    """Raise `UsageError` if there are no two different ones."""
    if len(distinct := sorted(set(origins))) < 2:
        raise UsageError(
            f"all data sets have the origin {distinct[0]!r:.100}",
            hint="--prior others needs data sets of two origins, the parts of their names before "
            "the first underscore; the prior of the package knows public traces only",
        )


def priors_of_others(
    margins: Mapping[str, Sequence[FloatArray]], origins: Mapping[str, str]
) -> OriginPriors:
    """For each origin the prior of the data sets of other origins, each of which counts once.

    `margins` are those of the traces of each data set, `origins` has the origin of each.
    """
    by_origin = {}
    digest = hashlib.sha256()
    for origin in sorted(set(origins.values())):
        others = [np.sum(own, axis=0) for name, own in margins.items() if origins[name] != origin]
        quantiles = fleet_prior.quantiles_of(others)
        by_origin[origin] = (
            np.zeros(BINS) if quantiles is None else fleet_prior.histogram_of(quantiles)
        )
        digest.update(repr((origin, quantiles)).encode())
    return OriginPriors(by_origin, digest.hexdigest()[:12])
