"""The calibrated predictor in a backtest."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import PredictorError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.judge import settings_hash
from pipeline.processors.backtest.protocol import outcomes
from pipeline.processors.backtest.replay import Run, calibrated, replay
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_windows import windows
from pipeline.processors.model.model_config import RESOURCES
from pipeline.topics.workloads import NO_WORKLOAD
from tests.processors.backtest.test_replay import STEPS, tables, trace_of, with_another_future

_HORIZON_STEPS = 12  # of half an hour


def predictions(
    trace: Trace, *risks: float, known: bool = False, hours: float = 6.0
) -> list[FloatArray]:
    runs = []
    for risk in risks:
        variant = calibrated(risk, moved_pods_known=known)
        config = replace(variant.config, horizon_seconds=3600 * hours)
        runs.append(Run(replace(variant, config=config), np.arange(STEPS)))
    return replay(trace, runs)


@pytest.mark.parametrize("known", [False, True])
def test_future_changes_nothing_before(known: bool) -> None:
    cut = 55
    (before,) = predictions(trace_of(tables()), 0.1, known=known)
    (after,) = predictions(trace_of(with_another_future(tables(), cut)), 0.1, known=known)
    np.testing.assert_array_equal(before[:, : cut + 1], after[:, : cut + 1])
    assert not np.array_equal(before, after, equal_nan=True)


def test_predictions_lie_between_0_and_the_requests_in_the_order_of_runs() -> None:
    trace = trace_of(tables())
    high, low = predictions(trace, 0.2, 0.01)
    steps = np.arange(STEPS - _HORIZON_STEPS)
    requests = outcomes(trace, steps, _HORIZON_STEPS).requests
    for predicted in (high, low):
        known = ~np.isnan(predicted[:, steps])
        assert (predicted[:, steps][known] <= requests[known] * (1 + 1e-9)).all()
        assert (predicted[:, steps][known] >= 0.0).all()
    both = ~np.isnan(high)
    assert (low[both] >= high[both]).all()
    assert (low[both] > high[both]).any()


def test_a_resource_is_learned_alone_as_beside_the_other() -> None:
    trace = trace_of(tables())
    variant = calibrated(0.1)
    config = replace(variant.config, horizon_seconds=6 * 3600.0)
    run = Run(replace(variant, config=config), np.arange(STEPS))
    (both,) = replay(trace, [run])
    for r, resource in enumerate(RESOURCES):
        (alone,) = replay(trace, [run._replace(resources=(resource,))])
        np.testing.assert_array_equal(alone[..., r], both[..., r])
        assert np.isnan(alone[..., 1 - r]).all()
        assert not np.isnan(both[..., r]).all()


def test_a_moved_pod_that_is_known_changes_predictions() -> None:
    trace = trace_of(tables())
    (strangers,) = predictions(trace, 0.1)
    (known,) = predictions(trace, 0.1, known=True)
    assert not np.array_equal(strangers, known, equal_nan=True)


def test_variants_have_names_and_hashes_of_their_own() -> None:
    variants = [calibrated(0.01), calibrated(0.02), calibrated(0.02, moved_pods_known=True)]
    assert [variant.name for variant in variants] == [
        "calibrated 1%", "calibrated 2%", "calibrated 2%, moved pods known",
    ]  # fmt: skip
    assert len({settings_hash(variant) for variant in variants}) == 3


def test_a_horizon_of_more_than_a_day_is_refused() -> None:
    with pytest.raises(PredictorError, match="longer than a day"):
        predictions(trace_of(tables()), 0.1, hours=30.0)


def test_a_step_that_divides_no_day_is_refused() -> None:
    trace = replace(trace_of(tables()), step_seconds=420)
    with pytest.raises(PredictorError, match="a step of 420 s does not divide a day") as error:
        predictions(trace, 0.1)
    assert "resample the trace" in str(error.value.hint)


def test_windows_of_a_trace_have_the_workloads_of_its_stays() -> None:
    trace = trace_of(tables())
    names = np.array(["", "Deployment/shop/web", "CronJob/shop/night"])
    workloads = names[np.arange(len(trace.pods)) % 3]
    seen = set()
    for stays, batch in windows(replace(trace, workloads=tuple(workloads.tolist()))):
        listed = [workload for head in batch.heads for workload in head.pods.workloads]
        assert [workload and workload.name for workload in listed] == workloads[stays].tolist()
        seen.update(listed)
    assert len(seen) == 3
    assert NO_WORKLOAD in seen
