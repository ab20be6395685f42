"""Judge the calibrated predictor on random processes, with which no constant was chosen:

    python -m benchmarks.calibrated_processes --process weekly --seeds 2 --nodes 3 --oracle

In each run pods of a process run for four weeks (see `random_processes`). The first nodes are one
pool, with the prior that ships and a horizon of 24 hours, and pods that move are strangers. Scored
are predictions every two hours from the second week on. Prints measured over declared risk at 1, 2,
5 and 10% of each seed, and mean savings at 2%.

With `--oracle` the oracle is judged, too: it knows the process and its present state, not the
future. It predicts the quantile of futures of each node at the declared risk, without feedback, and
gives nothing away where that is above the requests.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.calibrated_pools import first_nodes
from benchmarks.process_futures import future_peaks
from benchmarks.random_processes import DAY, HOUR, NODES, PROCESSES, STEPS, ProcessRun, run_of
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.calibrated_runs import CalibratedRun
from pipeline.processors.backtest.protocol import outcomes, over_machines, score, scored_steps
from pipeline.processors.backtest.trace import Trace

RISKS: Final = (0.01, 0.02, 0.05, 0.1)
LOWEST: Final = 0.5
HIGHEST: Final = 1.25
"""Measured over declared risk should be in this range."""
AT: Final = scored_steps(STEPS, DAY, 7 * DAY, 2 * HOUR)
_FUTURES: Final = 99


def calibrated_peaks(trace: Trace) -> FloatArray:
    """Peaks that the predictor predicts, millicores, (risks, nodes, steps scored)."""
    run = CalibratedRun(trace, 86_400.0, RISKS, AT, moved_pods_known=False, resources=("cpu",))
    for step in range(STEPS):
        run.apply(step)
    return run.predictions[..., 0]


def oracle_peaks(run: ProcessRun) -> FloatArray:
    """Peaks that the usage of each node exceeds with the probability of each risk, given the past,
    millicores, (risks, nodes, steps scored)."""
    random = np.random.default_rng(240)
    ranks = futures_above(RISKS, _FUTURES)
    peaks = [
        np.sort(future_peaks(run, step, _FUTURES, random))[:, -1 - ranks] for step in AT.tolist()
    ]
    return np.stack(peaks).T


def futures_above(risks: Sequence[float], futures: int) -> IntArray:
    """How many of so many futures are above a peak that one more exceeds with just the probability
    of each risk: it is equally likely to be at each place among them."""
    return np.rint(np.array(risks) * (futures + 1)).astype(np.int64) - 1


def judge(trace: Trace, peaks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Measured over declared risk, and savings, (risks,) each."""
    happened = outcomes(trace, AT, DAY)
    truth = happened.requests[..., 0], happened.oracle[..., 0], 1.0  # millicores
    scores = [over_machines(score(of_risk, *truth)) for of_risk in peaks]
    violations, savings = np.array([(each.violation, each.savings) for each in scores]).T
    return violations / RISKS, savings


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--process", action="append", choices=[*PROCESSES])
    parser.add_argument("--nodes", action="append", type=int)
    parser.add_argument("--oracle", action="store_true")
    given = parser.parse_args(arguments)
    counts, ratios = given.nodes or [NODES], defaultdict[str, list[FloatArray]](list)
    for process in given.process or PROCESSES:
        runs = [run_of(process, seed) for seed in range(given.seeds)]
        known = [oracle_peaks(run) for run in runs] if given.oracle else []
        for count in counts:
            traces = [first_nodes(run.trace, count) for run in runs]
            arms = {"predictor": [calibrated_peaks(trace) for trace in traces]}
            if given.oracle:
                arms["oracle"] = [peaks[:, :count] for peaks in known]
            for arm, peaks in arms.items():
                scores = [judge(*each) for each in zip(traces, peaks, strict=True)]
                name = f"{count} nodes, {arm}"
                ratios[name] += [ratio for ratio, _ in scores]
                print(_row(f"{process}: {PROCESSES[process]} | {name}", scores), flush=True)
    for name, measured in ratios.items():
        print(name, _held(np.array(measured)))


def _row(name: str, scores: Sequence[tuple[FloatArray, FloatArray]]) -> str:
    ratios, savings = (np.array(each) for each in zip(*scores, strict=True))
    cells = [", ".join(f"{ratio:.2f}" for ratio in of_risk) for of_risk in ratios.T]
    return f"| {' | '.join([name, *cells, f'{savings[:, 1].mean():.1%}'])} |"


def _held(measured: FloatArray) -> str:
    """How many runs are in the range, and above it, at each risk; `measured` (runs, risks)."""
    within = ((measured >= LOWEST) & (measured <= HIGHEST)).sum(axis=0).tolist()
    above = (measured > HIGHEST).sum(axis=0).tolist()
    return f"within {LOWEST} to {HIGHEST}: {within} of {len(measured)} runs, above: {above}"


if __name__ == "__main__":
    main()
