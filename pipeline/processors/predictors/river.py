"""A regressor of the library river for each entity and resource of a node.

It predicts log(highest usage within the horizon / highest usage of the last day) from features of
the node and its pods (`river_models/peak_examples.py`), and learns each outcome when its horizon is
over. An untrained linear model predicts 0: what the entity used yesterday at most.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.predictor import Peaks, View, WindowUsage
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import Option, between
from pipeline.processors.river_models.declared_estimators import make_estimator
from pipeline.processors.river_models.estimator_state import (
    StateError,
    encode,
    learn_one,
    predict_one,
)
from pipeline.processors.river_models.limits import MOST_STATE_BYTES
from pipeline.processors.river_models.peak_examples import (
    FEATURES,
    MOST_LOG,
    PREDICT_MS,
    PendingExamples,
    example_columns,
    features_of,
)

_SERIES: Final = (len(ENTITIES), len(RESOURCES))
_TRIALS: Final = 64
"""Examples that an estimator learns when a predictor is made, to see whether it can be used."""
_LINEAR: Final = [
    {"class": "preprocessing.StandardScaler"},
    {
        "class": "linear_model.LinearRegression",
        "optimizer": {"class": "optim.SGD", "lr": 0.001},
        "loss": {"class": "optim.losses.Quantile", "alpha": 0.98},
        "intercept_lr": 0.01,
    },
]


class River:
    """Predicts the highest usage of the last day, times a factor that an estimator of river learns.
    The peak of a pod is its highest usage of the last day."""

    name = "river"
    prod: Literal["pair", "classes"] = "classes"
    columns: Mapping[str, Column] = {}
    declaration: Final = Declaration(
        summary="highest usage of the last day * factor that an estimator of river learns",
        options=(
            Option(
                "estimator", "linear", "regressor of river",
                "`linear`, or a [declaration](../how-to/predict-with-river.md)",
                lambda name, value: _LINEAR if value == "linear" else value,
            ),
            between("state_bytes", 4096, 1024, MOST_STATE_BYTES, "largest state of an estimator"),
            between("outcomes", 3, 1, 10_000, "outcomes before the first peak"),
        ),
        terms=(
            Term("highest", note="of the last day"),
            Term("factor", ""),
            Term("learned", "", note="outcomes since the estimator started"),
        ),
        formulas=(Formula("highest * factor"),),
        unknown="too few outcomes learned, or no recent samples",
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._outcomes = int(given["outcomes"])
        self._state_bytes = int(given["state_bytes"])
        estimator = make_estimator(given["estimator"])
        self._type: type[Any] = type(estimator)
        self._untrained = _untrained(estimator, self._state_bytes)
        shape = msgspec.json.encode([given["estimator"], version("river")], order="sorted")
        # State of another declaration or release of river is not restored.
        self._prefix = f"river_{hashlib.sha256(shape).hexdigest()[:8]}_"
        self.node_columns: Mapping[str, Column] = {
            **example_columns(self._prefix),
            self._name("state"): Column((*_SERIES, self._state_bytes), "<u1"),
            self._name("state_size"): Column(_SERIES, "<i4"),
            self._name("learned"): Column(_SERIES, "<i4"),
            self._name("factor"): Column(_SERIES, "<f8", np.nan),
            self._name("predicted_ms"): Column((), "<i8", NEVER),
        }

    def _name(self, column: str) -> str:
        return self._prefix + column

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        """Do nothing: `learn` sees the node as a whole."""

    def learn(self, view: View, windows: WindowUsage) -> None:
        """Learn the outcomes that are known with these windows, and predict again where due."""
        horizon_ms = np.round(view.horizon_seconds * 1000).astype(np.int64)
        store = view.node_store
        pending = PendingExamples(store, self._prefix, view.node_rows, horizon_ms)
        pending.follow(windows.entities, view.end_ms, windows.window_ms)
        predicted_ms = store[self._name("predicted_ms")]
        due = view.end_ms // PREDICT_MS > predicted_ms[view.node_rows] // PREDICT_MS
        if not due.any():
            return
        for example in pending.ended(np.where(due, view.end_ms, NEVER)):
            at = int(view.node_rows[example.node]), example.entity, example.resource
            self._learn_one(store, at, _named(example.features), example.log_ratio)
        features, scale = features_of(view)
        for node in np.flatnonzero(due).tolist():
            row = int(view.node_rows[node])
            predicted_ms[row] = view.end_ms[node]
            for entity, r in np.argwhere(~np.isnan(scale[node])).tolist():
                self._predict_one(store, (row, entity, r), _named(features[node, entity, r]))
        entered = np.where(due[:, None, None], scale, np.nan)
        pending.enter(features, entered, view.end_ms)

    def _learn_one(
        self, store: Columns, at: tuple[int, int, int], features: dict[str, float], target: float
    ) -> None:
        """Let the estimator at this place learn one outcome. One that fails, or whose state grows
        too large, starts again: what it has learned cannot be trusted, or not be kept."""
        learned, size = store[self._name("learned")], store[self._name("state_size")]
        try:
            state = learn_one(
                self._state(store, at), self._type, features, target, self._state_bytes
            )
        except StateError:
            learned[at] = size[at] = 0
            return
        learned[at] += 1
        size[at] = len(state)
        store[self._name("state")][at][: len(state)] = np.frombuffer(state, np.uint8)

    def _predict_one(
        self, store: Columns, at: tuple[int, int, int], features: dict[str, float]
    ) -> None:
        log_ratio = np.nan
        if store[self._name("learned")][at] >= self._outcomes:
            with suppress(StateError):  # unknown until it has learned again
                log_ratio = predict_one(self._state(store, at), self._type, features)
        store[self._name("factor")][at] = np.exp(np.clip(log_ratio, -MOST_LOG, MOST_LOG))

    def _state(self, store: Columns, at: tuple[int, int, int]) -> bytes:
        """The state of the estimator at this place, untrained where nothing is stored."""
        size = int(store[self._name("state_size")][at])
        state = store[self._name("state")][at][: max(size, 0)].tobytes()
        return state or self._untrained

    def peak(self, view: View) -> Peaks:
        """Return the highest usage of the last day, times the factor that was predicted last."""
        rows = view.all_rows
        recent = view.models.store["recent"], view.models.store["recent_slot"]
        slots = day_slots.SLOTS
        highest = np.stack([day_slots.maximum(*recent, rows, r, slots) for r in range(2)], axis=1)
        entities, pods = view.split(highest)
        factor = view.node_store[self._name("factor")][view.node_rows]
        learned = view.node_store[self._name("learned")][view.node_rows].astype(np.float64)
        terms = {"highest": entities, "factor": factor, "learned": learned}
        return Peaks(entities * factor, pods, terms)


def _named(features: FloatArray) -> dict[str, float]:
    return dict(zip(FEATURES, features.tolist(), strict=True))


def _untrained(estimator: Any, state_bytes: int) -> bytes:
    """The state of an untrained estimator. Raises ValueError if it cannot learn, predict, or be
    saved and restored."""
    like = type(estimator)
    try:
        untrained = state = encode(estimator, state_bytes)
        for i in range(_TRIALS):
            features = _named(np.sin(np.arange(len(FEATURES)) * (i + 1.0)))
            state = learn_one(state, like, features, features["latest"], state_bytes)
            predict_one(state, like, features)
    except StateError as error:
        raise ValueError(
            f"estimator: after at most {_TRIALS} outcomes: {error}; choose another one, or a "
            f"larger `state_bytes`, at most {MOST_STATE_BYTES}"
        ) from error
    return untrained


PREDICTOR: Final = River
