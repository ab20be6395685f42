"""Estimators of river from declarations in settings."""

from typing import Any

import pytest
from river import compose, linear_model, optim

from pipeline.processors.river_models.declared_estimators import MODULES, make_estimator

LINEAR = {"class": "linear_model.LinearRegression"}


def test_arguments_are_numbers_and_other_declarations() -> None:
    made = make_estimator(
        {
            "class": "river.linear_model.LinearRegression",
            "loss": {"class": "optim.losses.Quantile", "alpha": 0.9},
            "l2": 0.5,
        }
    )
    assert isinstance(made, linear_model.LinearRegression)
    assert isinstance(made.loss, optim.losses.Quantile)
    assert (made.loss.alpha, made.l2) == (0.9, 0.5)


def test_a_list_is_a_pipeline() -> None:
    made = make_estimator([{"class": "preprocessing.StandardScaler"}, LINEAR])
    assert isinstance(made, compose.Pipeline)
    assert [*made.steps] == ["StandardScaler", "LinearRegression"]


def test_chance_has_a_seed() -> None:
    bagging = {"class": "ensemble.BaggingRegressor", "model": LINEAR}
    assert make_estimator(bagging).seed is not None
    assert make_estimator({**bagging, "seed": 7}).seed == 7


@pytest.mark.parametrize(
    "path",
    [
        "os.system", "builtins.eval", "river.datasets.Bikes", "compose.FuncTransformer",
        "linear_model.base.np", "linear_model.LinearRegression.__init__", "__import__('os').getcwd",
        "linear_model.LinearRegression()", "linear_model", "", None, 7, "anomaly.HalfSpaceTrees",
        "tree.HoeffdingTreeRegressor",
    ],
)  # fmt: skip
def test_names_elsewhere_are_refused_with_the_allowed_modules(path: Any) -> None:
    with pytest.raises(ValueError, match="is not one of river's in the modules conf") as info:
        make_estimator({"class": path})
    assert all(module in str(info.value) for module in MODULES)


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (
            # A panic of river's compiled part.
            {
                "class": "dummy.StatisticRegressor",
                "statistic": {"class": "stats.RollingQuantile", "q": 0.5, "window_size": 0},
            },
            "estimator.statistic: stats.RollingQuantile: called",
        ),
        ("linear_model.LinearRegression", "not `class` with its arguments"),
        ([], "not `class` with its arguments"),
        ({"class": "linear_model.Linear"}, "river.linear_model has no Linear: it has .*LinearReg"),
        ({"class": "linear_model.LogisticRegression"}, "is no regressor, and no transformer"),
        ({"class": "preprocessing.StandardScaler"}, "is not a regressor of river"),
        ([LINEAR, LINEAR], "is not a transformer"),
        ({**LINEAR, "loss": {"class": "optim.SGD"}, "depth": 1}, "has no argument 'depth': it has"),
        ({**LINEAR, "l2": float("nan")}, "estimator.l2 is nan, not a finite number"),
        ({**LINEAR, "l2": 10**9}, "not a finite number .whole ones up to 10000"),
        ({**LINEAR, "l1": 1.0, "l2": 1.0}, "LinearRegression: The joint use"),
        ({**LINEAR, "loss": {"class": "os.system"}}, "estimator.loss: class 'os.system'"),
        ({**LINEAR, "loss": {"lr": 1}}, "estimator.loss is .* not `class`"),
        ({**LINEAR, "loss": b"x"}, "estimator.loss is b'x', not a finite"),
    ],
)
def test_invalid_declarations_say_what_is_allowed(declaration: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_estimator(declaration)


def test_nesting_and_size_are_bounded() -> None:
    deep: dict[str, Any] = LINEAR
    for _ in range(8):
        deep = {"class": "ensemble.BaggingRegressor", "model": deep}
    with pytest.raises(ValueError, match="nested deeper than 6"):
        make_estimator(deep)
    with pytest.raises(ValueError, match="more than 32 parts"):
        make_estimator({"class": "ensemble.EWARegressor", "models": [LINEAR] * 40})
