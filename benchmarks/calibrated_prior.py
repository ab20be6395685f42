"""Learn the prior of the calibrated predictor from traces, and print it as JSON:

    python -m benchmarks.calibrated_prior TRACES [--without DATASET]... > fleet_prior.json

Each data set counts once: the mean over its scenarios, resources and horizons of 24 h and, where it
is shorter than two days, 3 h.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.calibrated_runs import CalibratedRun
from pipeline.processors.calibrated import fleet_prior
from pipeline.processors.calibrated.pooled_margins import BINS, CELLS
from pipeline.sources.trace_folders import datasets, read_dataset

_DAY_SECONDS = 86_400


def margins_of(folder: Path, dataset: str) -> FloatArray:
    """The mean over the suites of a data set of the outcomes of its pools, (cells, bins)."""
    total = np.zeros((CELLS, BINS))
    for trace in read_dataset(folder, dataset):
        short = trace.steps * trace.step_seconds < 2 * _DAY_SECONDS
        horizon = 3 * 3600 if short else _DAY_SECONDS
        nothing = np.zeros((CELLS, BINS))
        at = np.zeros(0, np.int64)
        run = CalibratedRun(trace, horizon, [0.02], at, moved_pods_known=False, prior=nothing)
        for step in range(trace.steps):
            run.apply(step)
        for pool in run.pools.values():
            total += pool.margins / max(pool.margins.sum(), 1e-9)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    names = [name for name in datasets(arguments.folder) if name not in arguments.without]
    margins = [margins_of(arguments.folder, name) for name in names]
    rows = ",\n".join(json.dumps(row) for row in fleet_prior.quantiles_of(margins))
    print(f"[\n{rows}\n]")


if __name__ == "__main__":
    main()
