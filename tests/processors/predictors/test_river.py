"""The predictor `river`."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PredictorError
from pipeline.processors.model.model_config import NODE
from pipeline.processors.model.predictor import node_columns
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.registry import build
from pipeline.processors.river_models.limits import MOST_STATE_BYTES
from tests.processors.predictors.answers import answer, learned
from tests.processors.windows import GIB, LENGTH_MS, Pod, window

MEAN = {"class": "dummy.StatisticRegressor", "statistic": {"class": "stats.Mean"}}
WINDOW = {"class": "stats.RollingQuantile", "q": 0.5, "window_size": 5_000}
HOUR = 3600.0
_WINDOWS_PER_HOUR = 3_600_000 // LENGTH_MS


def series(count: int, seed: int = 0) -> list[float]:
    return np.exp(np.random.default_rng(seed).normal(size=count)).tolist()


def windows(usage: list[float]) -> list[NodeWindow]:
    return [window(i, usage=(cores, cores * GIB)) for i, cores in enumerate(usage)]


def predicted(usage: list[float], **options: Any) -> Any:
    result = answer(windows(usage), "river", options={"river": options}, horizon_seconds=HOUR)
    return result.predictors["river"]


def test_an_outcome_is_learned_one_horizon_late() -> None:
    """Against a list: the mean of log(highest of the hour after / highest of the day before)."""
    usage = series(5 * _WINDOWS_PER_HOUR)
    ends_ms = [window(i).end_ms for i in range(len(usage))]
    quarter = [end // 900_000 for end in ends_ms]
    due = [i for i in range(len(usage)) if i == 0 or quarter[i] > quarter[i - 1]]
    outcomes = [
        np.log(max(usage[i + 1 : i + 1 + _WINDOWS_PER_HOUR]) / max(usage[: i + 1]))
        for i in due
        if ends_ms[i] + 3_600_000 <= ends_ms[due[-1]]
    ]
    own = predicted(usage, estimator=MEAN, outcomes=1)
    assert own.terms["learned"][NODE].tolist() == [len(outcomes)] * 2
    # Slots of five minutes round up by less than 0.12%.
    assert own.terms["factor"][NODE, 0] == pytest.approx(np.exp(np.mean(outcomes)), rel=0.004)
    assert own.raw[NODE, 0] == own.terms["highest"][NODE, 0] * own.terms["factor"][NODE, 0]


def test_a_peak_is_unknown_before_the_outcomes_are() -> None:
    usage = [1.0] * (2 * _WINDOWS_PER_HOUR)
    assert np.isnan(predicted(usage[: _WINDOWS_PER_HOUR - 1]).raw[NODE]).all()
    assert np.isnan(predicted(usage, outcomes=100).raw[NODE]).all()
    np.testing.assert_allclose(
        predicted(usage, estimator=MEAN, outcomes=1).raw[NODE], [1.0, GIB], rtol=0.005
    )


def test_a_quantile_exceeds_outcomes_by_its_share() -> None:
    """Peaks of the next half hour lie above the prediction about as often as declared."""
    half_hour = _WINDOWS_PER_HOUR // 2
    usage = series(170 * half_hour, seed=4)
    loss = {"class": "optim.losses.Quantile", "alpha": 0.7}
    linear = {"class": "linear_model.LinearRegression", "loss": loss, "intercept_lr": 0.05}
    bank = learned([], "river", horizon_seconds=HOUR / 2, options={"river": {"estimator": linear}})
    missed = []
    for i, one in enumerate(windows(usage)):
        bank.apply([one])
        if i % half_hour == 0 and 70 * half_hour <= i < 169 * half_hour:
            peak = bank.peaks(bank.nodes)[0].predictors["river"].raw[NODE, 0]
            missed.append(max(usage[i + 1 : i + 1 + half_hour]) > peak)
    assert len(missed) == 99
    assert 0.15 < np.mean(missed) < 0.45


def test_pods_are_predicted_by_their_last_day() -> None:
    result = answer(
        [window(i, [Pod("a", (usage, GIB))]) for i, usage in enumerate([1.0, 3.0, 2.0])], "river"
    )
    assert result.predictors["river"].pod_raw[0, 0] == pytest.approx(3.0, rel=0.002)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"estimator": {"class": "os.system"}}, "class 'os.system' is not one of river's"),
        ({"estimator": {"class": "linear_model.PARegressor"}}, "getattr is not part of an estim"),
        (
            {"estimator": {**MEAN, "statistic": WINDOW}, "state_bytes": 1024},
            "more than 1024; choose another one, or a larger",
        ),
        ({"state_bytes": 100_000}, "state_bytes is 100000"),
        ({"estimator": {"class": "ensemble.EWARegressor", "models": []}}, "predictor river"),
    ],
)
def test_estimators_that_cannot_be_used_are_errors(options: Any, problem: str) -> None:
    with pytest.raises(PredictorError, match=problem):
        build(["river"], {"river": options})


def test_an_estimator_whose_state_outgrows_its_bytes_starts_again() -> None:
    options = {"estimator": {**MEAN, "statistic": WINDOW}, "state_bytes": 2048, "outcomes": 1}
    bank = learned([], "river", horizon_seconds=HOUR / 2, options={"river": options})
    counts = []
    for i, one in enumerate(windows([1.0] * 1200)):
        bank.apply([one])
        if i % 10 == 0:
            own = bank.peaks(bank.nodes)[0].predictors["river"]
            counts.append(own.terms["learned"][NODE, 0])
    assert max(counts) > 64
    assert (np.diff(counts) < -60).sum() == 1
    assert own.terms["learned"][NODE, 0] > 0


def test_a_damaged_state_is_forgotten() -> None:
    usage = [1.0] * (3 * _WINDOWS_PER_HOUR)
    bank = learned(windows(usage), "river", horizon_seconds=HOUR)
    slots = bank.store.slots
    (state,) = [slots[name] for name in slots.columns if name.endswith("_state")]
    state[:] = 7
    bank.apply(windows([*usage, *usage[:40]])[len(usage) :])
    own = bank.peaks(bank.nodes)[0].predictors["river"]
    assert 0 < own.terms["learned"][NODE, 0] < 10


def test_state_of_another_declaration_is_another_column() -> None:
    one, other = (
        node_columns(build(["river"], {"river": {"estimator": estimator}})["river"])
        for estimator in (MEAN, "linear")
    )
    assert not one.keys() & other.keys()


def test_the_state_of_a_node_has_a_bound() -> None:
    made = build(["river"], {"river": {"state_bytes": MOST_STATE_BYTES}})["river"]
    size = sum(column.row_bytes for column in node_columns(made).values())
    assert 16 * MOST_STATE_BYTES < size < 1_100_000


def test_river_is_imported_only_by_those_who_run_it() -> None:
    program = (
        "import sys; from pipeline.processors.predictors.registry import PREDICTORS, build;"
        "build(['percentile', 'max'], {}); assert 'river' in PREDICTORS.points;"
        "assert PREDICTORS.get('river').declaration;"
        "assert not {'river', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
