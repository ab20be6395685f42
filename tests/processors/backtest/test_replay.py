"""Predictions of a backtest are those of a worker, and know nothing of the future."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.replay import Counts, Run, Variant, replay
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import KOORDINATOR, NODE, VPA, ModelConfig
from pipeline.processors.model.node_peaks import PredictorPeaks
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.topics.nodes import Strategy
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    random_tables,
    series_row,
    stay_row,
    table_of,
    with_gaps,
)
from tests.processors.windows import with_margin

STRATEGY: dict[str, Any] = {"safety_margin_percent": 20.0, "nsigma_multiplier": 2.0}
STEPS, STEP_SECONDS = 64, 1800
"""More than a day: some predictors have no peak before."""
NAMES = sorted(PREDICTORS.points)


def variant(
    predictor: str, counts: Counts = "pods", config: ModelConfig | None = None, **strategy: Any
) -> Variant:
    usual = {"cold_start_seconds": 5400.0, "cold_start_samples": 2}
    config = config or ModelConfig(expiration_seconds=7200.0)
    strategy = usual | strategy | {"predictor": predictor}
    return Variant(
        name=predictor, config=replace(config, strategy=Strategy(**strategy)), counts=counts
    )


def tables(seed: int = 0, *, gaps: bool = False) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(seed)
    series, placement = random_tables(random, STEPS, nodes=3, series=8, step_seconds=STEP_SECONDS)
    return (with_gaps(random, series) if gaps else series), placement


def trace_of(tables: tuple[pa.Table, pa.Table]) -> Trace:
    return read_traces("made", *tables)[0]


def node_windows(trace: Trace, step: int, strategy: Strategy) -> list[NodeWindow]:
    """The windows of one step, stay by stay."""
    start_ms = (trace.start_seconds + step * trace.step_seconds) * 1000
    windows = []
    for number, node in enumerate(trace.nodes):
        own = [
            stay
            for stay in range(len(trace.pods))
            if trace.node_index[stay] == number and trace.start[stay] <= step < trace.end[stay]
        ]
        usage = [trace.stay_usage(stay)[step - trace.start[stay]] / TO_KUBERNETES for stay in own]
        # A pod without memory uses none, on a node where others do.
        pod_usage = np.where(trace.limits[own] > 0.0, np.array(usage).reshape(-1, 2), 0.0)
        uids = [trace.pods[stay] for stay in own]
        ages = [(step + 1 - trace.start[stay]) * trace.step_seconds for stay in own]
        windows.append(
            NodeWindow(
                node=node,
                machine_id="",
                epoch=0,
                start_ms=start_ms,
                end_ms=start_ms + trace.step_seconds * 1000,
                coverage=1.0,
                # By UID, as the model adds up pods: nothing is left for the system.
                node_usage=sum(pod_usage[np.argsort(uids)], np.zeros(2)),
                allocatable=np.full(2, 2.0**60),
                strategy=strategy,
                pod_uids=uids,
                pod_classes=np.full(len(own), CLASS_CODES["prod"], np.int8),
                pod_usage=pod_usage,
                requests=trace.requests[own],
                pod_ages=np.array(ages, np.float64),
                pod_active=np.ones(len(own), np.bool_),
            )
        )
    return windows


def live_predictions(trace: Trace, variant: Variant, at: IntArray) -> dict[Counts, FloatArray]:
    """The predictions of a bank as a worker runs it, with every setting, window by window."""
    predictor = variant.config.strategy.predictor
    others = () if predictor == "percentile" else ("percentile",)
    config = replace(variant.config, predictors=(predictor, *others))
    if predictor == "borg-default":  # it may not decide
        config = replace(config, strategy=replace_predictor(config.strategy, "percentile"))
    bank = Bank(config)
    node_peaks = []
    for step in range(trace.steps):
        for window in node_windows(trace, step, variant.config.strategy):
            bank.apply([window])
        if step in at:
            node_peaks.append([bank.peaks([node])[0].predictors[predictor] for node in trace.nodes])
    published: dict[Counts, Callable[[PredictorPeaks], FloatArray]] = {
        "node": lambda peaks: peaks.peaks[NODE] * TO_KUBERNETES,
        "pods": lambda peaks: peaks.reclaimable.pods_peak,
        "prod": lambda peaks: peaks.reclaimable.requests - peaks.reclaimable.amount,
    }
    return {
        counts: np.array([[read(peaks) for peaks in nodes] for nodes in node_peaks]).swapaxes(0, 1)
        for counts, read in published.items()
    }


def replace_predictor(strategy: Strategy, predictor: str) -> Strategy:
    fields = {name: getattr(strategy, name) for name in Strategy.__struct_fields__}
    return Strategy(**fields | {"predictor": predictor})


def with_another_future(tables: tuple[pa.Table, pa.Table], cut: int) -> tuple[pa.Table, pa.Table]:
    """The same up to the step `cut`, then usage at the limit, other ends, and no pod that was to
    come."""
    random = np.random.default_rng(99)
    series, placement = (table.to_pylist() for table in tables)
    for row in series:
        for name in ("cpu_m", "mem_mi"):
            if row[name] is not None:
                past = max(cut + 1 - row["start"], 0)
                row[name][past:] = [1000] * len(row[name][past:])
    last = {row["series"]: row["start"] + len(row["cpu_m"]) for row in series}
    stays = [row for row in placement if row["start"] <= cut]
    for row in stays:
        if row["end"] > cut + 1:
            row["end"] = int(random.integers(cut + 1, last[row["series"]] + 1))
    types = [dict(zip(table.schema.names, table.schema.types, strict=True)) for table in tables]
    metadata = {
        key.decode(): value.decode() for key, value in (tables[0].schema.metadata or {}).items()
    }
    return table_of(series, types[0], metadata), table_of(stays, types[1], metadata)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_those_of_a_worker(name: str, gaps: bool) -> None:
    trace, at = trace_of(tables(gaps=gaps)), np.array([0, 2, 30, 50, 63])
    live = live_predictions(trace, variant(name, **STRATEGY), at)
    runs = [Run(variant(name, counts, **STRATEGY), at) for counts in live]
    for predictions, expected in zip(replay(trace, runs), live.values(), strict=True):
        np.testing.assert_array_equal(predictions, expected)
    assert gaps or not np.isnan(live["node"][:, -1]).any()


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_future_changes_nothing_before(name: str, gaps: bool) -> None:
    """The causality check: a prediction depends on the samples up to its step alone."""
    cut = 55
    runs = [Run(variant(name, counts), np.arange(STEPS)) for counts in ("node", "pods")]
    before = replay(trace_of(tables(gaps=gaps)), runs)
    after = replay(trace_of(with_another_future(tables(gaps=gaps), cut)), runs)
    for own, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(own[:, : cut + 1], other[:, : cut + 1])
    # The other future is one: it shows in the steps that follow.
    assert not np.array_equal(before, after, equal_nan=True)


def test_variants_in_one_pass_predict_as_alone() -> None:
    trace, at = trace_of(tables(1)), np.array([3, 20, 63])
    vpa = ModelConfig(profile=VPA, horizon_seconds=3600.0)
    other = ModelConfig(profile=KOORDINATOR, drift="shorten")
    variants = [
        variant("percentile"),
        variant("percentile", "prod", safety_margin_percent=50.0),
        variant("percentile", config=vpa),
        variant("percentile", config=other),
        variant("hourly-nsigma", "node"),
        variant("hourly-nsigma", "node", config=vpa),
        variant("nsigma-v2", "koordinator", nsigma_multiplier=1.0),
        variant("max", "node"),
    ]
    together = replay(trace, [Run(variant, at) for variant in variants])
    for one, predictions in zip(variants, together, strict=True):
        (alone,) = replay(trace, [Run(one, at)])
        np.testing.assert_array_equal(predictions, alone)
    # Two pairs may agree: no level changes here, and one hour may decide for both horizons.
    assert len({predictions.tobytes() for predictions in together}) >= 6


def test_instances_of_a_predictor_with_the_same_columns() -> None:
    """They learn in banks of their own: the second history would learn every sample twice."""
    trace, at = trace_of(tables(2)), np.array([50, 63])
    short = variant("hourly-nsigma", "node")
    long = replace(
        short, config=replace(short.config, options={"hourly-nsigma": {"history_seconds": 9000}})
    )
    together = replay(trace, [Run(short, at), Run(long, at)])
    for one, predictions in zip((short, long), together, strict=True):
        np.testing.assert_array_equal(predictions, replay(trace, [Run(one, at)])[0])


def test_progress_counts_steps() -> None:
    done: list[int] = []
    replay(trace_of(tables()), [Run(variant("percentile"), np.array([5]))], done.append)
    assert done == list(range(1, STEPS + 1))


def test_limited_peaks_of_pods_are_at_most_their_limits() -> None:
    """A bucket ends above the usage at the limit, and the margin is on top."""
    series = [
        series_row("busy", [500] * 40, cpu_request_m=400, cpu_limit_m=500),
        series_row("calm", [100] * 40, cpu_request_m=300),
        series_row("young", [100] * 40, cpu_request_m=300),
    ]
    stays = [stay_row("busy", "busy", 0, 40), stay_row("calm", "calm", 0, 40)]
    stays.append(stay_row("young", "young", 38, 40, node="node-1"))
    trace = trace_of((table_of(series, SERIES), table_of(stays, PLACEMENT)))
    pods, limited = (
        replay(trace, [Run(variant("percentile", counts), np.array([39]))])[0][:, 0, 0]
        for counts in ("pods", "limited")
    )
    assert pods[0] == with_margin(0.5) + with_margin(0.1)
    assert limited[0] == pytest.approx(500.0 + with_margin(0.1), abs=1.0)
    assert limited[1] == pods[1] == 300.0


def test_koordinator_has_no_cold_start_in_the_class_view() -> None:
    """Both pods peak seldom and at other times, so that the class view is the larger one."""
    spikes = [[900 if step % 16 == first else 10 for step in range(40)] for first in (0, 8)]
    series = [
        *(series_row(f"old-{i}", usage, cpu_request_m=1000) for i, usage in enumerate(spikes)),
        series_row("young", [10] * 40, cpu_request_m=500),
    ]
    stays = [stay_row("old-0", "old-0", 0, 40), stay_row("old-1", "old-1", 0, 40)]
    stays.append(stay_row("young", "young", 38, 40))
    trace = trace_of((table_of(series, SERIES), table_of(stays, PLACEMENT)))
    config = ModelConfig(options={"percentile": {"cpu": 0.9}})
    own, koordinators = (
        replay(trace, [Run(variant("percentile", counts, config), np.array([39]))])[0][0, 0, 0]
        for counts in ("prod", "koordinator")
    )
    assert koordinators > 900.0
    assert own == pytest.approx(koordinators + 500.0, abs=30.0)
