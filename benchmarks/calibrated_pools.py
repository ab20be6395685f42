"""Compare single nodes with pools of nodes for the predictor `calibrated` of workers:

    python -m benchmarks.calibrated_pools TRACES [--trace google_jobs/std]... [--nodes 40]

The trace goes through the bank of a worker in event time. In pools, the outcomes of all nodes are
encoded and added up every ten minutes, as the planner does, and windows get the record as the join
adds it: no broker runs, all else is the code of the roles.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.protocol import (
    TOLERANCE,
    FleetScores,
    outcomes,
    over_machines,
    score,
)
from pipeline.processors.backtest.suites import PUBLIC, Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_windows import windows
from pipeline.processors.calibrated.pool_fold import StatedOutcomes, pool_outcomes
from pipeline.processors.join.joined_outcomes import joined_outcomes
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import RESOURCES, ModelConfig
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.training_batch import TrainingBatch
from pipeline.sources.trace_folders import read_dataset
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import Strategy
from pipeline.topics.pool_outcomes import PoolOutcomesRecord

PUBLISH_MS = 600_000
CALIBRATED = "calibrated"


def with_outcomes(batch: TrainingBatch, known: PoolOutcomesRecord | None) -> TrainingBatch:
    """The windows as the join writes them."""
    heads = [
        head._replace(pool_outcomes=joined_outcomes(known, head.start_ms, head.end_ms))
        for head in batch.heads
    ]
    return replace(batch, heads=heads)


def published(peaks: PeakBatch) -> PoolOutcomesRecord | None:
    """The record of a planner that has read these predictions."""
    stated = [
        StatedOutcomes(node.end_ms, node.outcomes) for node in peaks if node.outcomes is not None
    ]
    record = pool_outcomes("pool", stated)
    return None if record is None else decode_json(PoolOutcomesRecord, encode_json(record))


def first_nodes(trace: Trace, count: int) -> Trace:
    """The trace of its first nodes."""
    stays = slice(0, int(trace.node_starts[min(count, len(trace.nodes))]))
    of_stays = ("node_index", "start", "end", "requests", "limits", "series_index", "first_sample")
    return replace(
        trace,
        nodes=trace.nodes[:count],
        allocatable=trace.allocatable[:count],
        pods=trace.pods[stays],
        **{name: getattr(trace, name)[stays] for name in of_stays},
    )


def replayed(trace: Trace, suite: Suite, risk: float, *, pooled: bool) -> FloatArray:
    """A worker's predictions at the steps of a suite, (nodes, steps, 2)."""
    at = suite.at(trace)
    config = ModelConfig(
        predictors=(CALIBRATED,),
        strategy=Strategy(predictor=CALIBRATED),
        options={CALIBRATED: {"risk": risk}},
        horizon_seconds=suite.horizon_hours * 3600,
        drift="off",
    )
    bank, known = Bank(config), None
    columns = {step: column for column, step in enumerate(at.tolist())}
    predictions = np.full((len(trace.nodes), len(at), 2), np.nan)
    for step, (_, batch) in enumerate(windows(trace)):
        bank.apply(with_outcomes(batch, known))
        column, is_due = columns.get(step), pooled and batch.heads[0].end_ms % PUBLISH_MS == 0
        if column is None and not is_due:
            continue
        peaks = bank.peaks(trace.nodes)
        if is_due:
            known = published(peaks)
        if column is not None:
            prod = peaks.by_predictor[CALIBRATED].reclaimable
            predictions[:, column] = prod.requests - prod.amount
    return predictions


def scored(trace: Trace, suite: Suite, predictions: FloatArray) -> FleetScores:
    happened = outcomes(trace, suite.at(trace), suite.horizon_steps(trace))
    r = RESOURCES.index(suite.resource)
    judged = predictions[..., r], happened.requests[..., r], happened.oracle[..., r]
    return over_machines(score(*judged, float(TOLERANCE[r])), trace.copies)


def main(arguments: Sequence[str] | None = None) -> None:
    suites = [suite for suite in PUBLIC if suite.horizon_hours == 24]
    names = list(dict.fromkeys(f"{suite.dataset}/{suite.scenario}" for suite in suites))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trace", action="append", choices=names)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--risk", type=float, default=0.02)
    given = parser.parse_args(arguments)
    for name in given.trace or names:
        dataset, scenario = name.split("/")
        whole = next(t for t in read_dataset(given.folder, dataset) if t.scenario == scenario)
        trace = first_nodes(whole, given.nodes)
        own = [s for s in suites if (s.dataset, s.scenario) == (dataset, scenario)]
        for pooled in (False, True):
            begin = time.process_time()
            predictions = replayed(trace, own[0], given.risk, pooled=pooled)
            seconds = time.process_time() - begin
            for suite in own:
                scores = scored(trace, suite, predictions)
                print(
                    f"{suite.name}, {scores.machines} nodes, {'pool' if pooled else 'single'}: "
                    f"violation {100 * scores.violation:.2f}% "
                    f"({scores.violation / given.risk:.2f} of the declared), "
                    f"p90 node {100 * scores.violation_p90:.1f}%, "
                    f"severity {100 * scores.severity:.1f}%, "
                    f"savings {100 * scores.savings:.1f}%; {seconds:.0f} s of processor time",
                    flush=True,
                )


if __name__ == "__main__":
    main()
