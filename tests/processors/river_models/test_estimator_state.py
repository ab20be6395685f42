"""States of estimators: exact, small, and safe to read from bytes that others wrote."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from river import linear_model, stats

from pipeline.processors.river_models.declared_estimators import make_estimator
from pipeline.processors.river_models.estimator_state import (
    StateError,
    decode,
    encode,
    learn_one,
    predict_one,
)
from pipeline.processors.river_models.limits import MOST_STATE_BYTES

SCALER = {"class": "preprocessing.StandardScaler"}
QUANTILE = {"class": "optim.losses.Quantile", "alpha": 0.9}
LINEAR = {"class": "linear_model.LinearRegression", "loss": QUANTILE}
DECLARED: dict[str, Any] = {
    "linear": [SCALER, LINEAR],
    "adam": [SCALER, {**LINEAR, "optimizer": {"class": "optim.Adam"}}],
    "bayesian": {"class": "linear_model.BayesianLinearRegression"},
    "jackknife": {"class": "conf.RegressionJackknife", "regressor": LINEAR, "window_size": 30},
    "bagging": {"class": "ensemble.BaggingRegressor", "model": LINEAR, "n_models": 3},
    "past": {
        "class": "dummy.StatisticRegressor",
        "statistic": {"class": "stats.RollingQuantile", "q": 0.9, "window_size": 20},
    },
    "decayed": {"class": "dummy.StatisticRegressor", "statistic": {"class": "stats.EWMean"}},
}


def examples(count: int) -> list[tuple[dict[str, float], float]]:
    random = np.random.default_rng(5)
    values = random.normal(size=(count, 3)).tolist()
    return [({"a": a, "b": b, "c": 1e6 * c}, a + b * b) for a, b, c in values]


@pytest.mark.parametrize("name", DECLARED)
def test_a_state_continues_as_an_estimator_that_was_never_saved(name: str) -> None:
    live: Any = make_estimator(DECLARED[name])
    like, state = type(live), encode(live)
    for features, target in examples(80):
        live.learn_one(features, target)
        state = learn_one(state, like, features, target, MOST_STATE_BYTES)
        if name != "jackknife":  # there the upper bound counts
            assert predict_one(state, like, features) == float(live.predict_one(features))


def test_an_interval_predicts_its_upper_bound() -> None:
    live: Any = make_estimator(DECLARED["jackknife"])
    for features, target in examples(80):
        live.learn_one(features, target)
    features, _ = examples(1)[0]
    upper = live.predict_one(features, with_interval=True).upper
    assert predict_one(encode(live), type(live), features) == upper > live.predict_one(features)


def test_states_do_not_depend_on_the_process() -> None:
    program = (
        "from tests.processors.river_models.test_estimator_state import print_states;print_states()"
    )
    printed = [run(program, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == len(DECLARED)


def print_states() -> None:
    for name, declaration in DECLARED.items():
        sys.stdout.write(f"{name} {hashlib.sha256(trained(declaration)).hexdigest()}\n")


class Calling:
    """Its pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def newobj(cls: str, module: str, *numbers: int) -> bytes:
    """A pickle that makes an object of a class with these arguments, without its constructor."""
    arguments = b"".join(pickle.dumps(number, 2)[2:-1] for number in numbers)
    return b"\x80\x05" + b"c" + f"{module}\n{cls}\n".encode() + b"(" + arguments + b"t\x81."


def test_a_state_calls_nothing_else(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    hostile = [
        pickle.dumps(Calling(os.system, f"touch {touched}")),
        pickle.dumps(Calling(eval, f"open({str(touched)!r}, 'w')")),
        pickle.dumps(Calling(getattr, stats.Mean(), "update")),
        pickle.dumps(Calling(stats.RollingQuantile, 0.5, 10**12)),
        newobj("RsRollingQuantile", "river._river_rust.stats", 10**12, 10**12),
        newobj("AdaptiveWindowing", "river._river_rust.drift", 1, 10**12, 10**12, 10**12, 1),
        b"\x80\x05criver.utils.random\nnp.load\n.",
        b"\x80\x05criver.datasets.bikes\nBikes\n.",
        b"\x80\x05criver.base.base\nos.system\n.",
        b"\x80\x05cpickle\nloads\n.",
        b"\x80\x05Nr\xff\xff\xff\x7f.",  # memory for two billion objects
    ]
    for data in hostile:
        with pytest.raises(StateError, match="not a state"):
            decode(data, linear_model.LinearRegression)
    assert not touched.exists()


def test_a_state_of_another_type_or_size_is_refused() -> None:
    with pytest.raises(StateError, match="a state of Mean, not of LinearRegression"):
        decode(encode(stats.Mean()), linear_model.LinearRegression)
    with pytest.raises(StateError, match="more than"):
        decode(bytes(MOST_STATE_BYTES + 1), linear_model.LinearRegression)
    with pytest.raises(StateError, match=r"takes .* bytes, more than 100"):
        encode(linear_model.LinearRegression(), 100)


def test_damaged_states_are_refused_or_harmless() -> None:
    """Whatever bytes change: nothing but StateError is raised, and the process neither ends nor
    takes much memory."""
    program = (
        "from resource import *; setrlimit(RLIMIT_AS, (3 << 30, 3 << 30));"
        "from tests.processors.river_models.test_estimator_state import damage; damage()"
    )
    output = run(program, OPENBLAS_NUM_THREADS="1")
    counts = dict(line.split() for line in output.splitlines())
    assert counts.keys() == DECLARED.keys()
    assert all(100 < int(refused) < DAMAGED for refused in counts.values())


DAMAGED = 300


def damage() -> None:
    """Print how many of `DAMAGED` damaged states of each estimator are refused."""
    random = np.random.default_rng(3)
    for name, declaration in DECLARED.items():
        like, state = type(make_estimator(declaration)), trained(declaration)
        refused = 0
        for _ in range(DAMAGED):
            damaged = bytearray(state)
            for place in random.integers(0, len(state), random.integers(1, 4)).tolist():
                damaged[place] = int(random.integers(256))
            try:
                learned = learn_one(bytes(damaged), like, {"a": 1.0}, 1.0, MOST_STATE_BYTES)
                predict_one(learned, like, {"a": 1.0})
            except StateError:
                refused += 1
        sys.stdout.write(f"{name} {refused}\n")


def trained(declaration: Any) -> bytes:
    made = make_estimator(declaration)
    state = encode(made)
    for features, target in examples(60):
        state = learn_one(state, type(made), features, target, MOST_STATE_BYTES)
    return state


def run(program: str, **environment: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": ".:node-exporter", "RUST_BACKTRACE": "0", **environment},
    ).stdout  # fmt: skip
