"""Learn the prior of the calibrated predictor from traces, and print it as JSON:

    python -m benchmarks.calibrated_prior TRACES [--without DATASET]... > fleet_prior.json

Each data set counts once: the mean over its scenarios, resources and horizons of 24 h and, where it
is shorter than two days, 3 h.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from pipeline.processors.backtest.origin_priors import margins_of
from pipeline.processors.calibrated import fleet_prior
from pipeline.sources.trace_folders import datasets, read_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    names = [name for name in datasets(arguments.folder) if name not in arguments.without]
    margins = [
        np.sum([margins_of(trace) for trace in read_dataset(arguments.folder, name)], axis=0)
        for name in names
    ]
    print(json.dumps(fleet_prior.quantiles_of(margins)))


if __name__ == "__main__":
    main()
