"""Every installed predictor keeps every law, and every law finds a predictor that breaks it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.maximum import Maximum
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.processors.predictors.suite import LAWS, Subject, check_predictor


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", PREDICTORS.points)
def test_installed_predictors_keep_the_laws(name: str, law: str) -> None:
    LAWS[law](Subject(PREDICTORS.get(name)))


@pytest.mark.parametrize("law", LAWS)
def test_members_that_learn_nodes_keep_the_laws(law: str) -> None:
    LAWS[law](Subject(lambda: Maximum(members=["calibrated", "river"])))


class Correct(NSigmaV1):
    """N-sigma with a column of its own. `broken` changes its attributes, answer or learning."""

    name = "broken"
    prod: Literal["pair", "classes"] = "pair"
    columns: Mapping[str, Column] = {"broken": Column((2,))}

    def learn(self, models: EntityModels, rows: IntArray, values: FloatArray) -> None:
        """Learn nothing."""

    def answer(self, peaks: Peaks, view: View) -> Any:
        return peaks

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        self.learn(models, rows, values)

    def peak(self, view: View) -> Peaks:
        peaks: Peaks = self.answer(super().peak(view), view)
        return peaks


def broken(label: str, **changes: Any) -> type[Correct]:
    return type(label, (Correct,), changes)


def answering(label: str, change: Callable[[Peaks], Any], **more: Any) -> type[Correct]:
    return broken(label, answer=lambda self, peaks, view: change(peaks), **more)


def learning(
    label: str, learn: Callable[[EntityModels, IntArray, FloatArray], Any]
) -> type[Correct]:
    return broken(label, learn=lambda self, *learned: learn(*learned))


def writing(label: str, column: str, value: float) -> type[Correct]:
    """It adds a value to a column, if there is such a column."""

    def learn(models: EntityModels, rows: IntArray, values: FloatArray) -> None:
        if column in models.store:
            models.store[column][rows] += value

    return learning(label, learn)


def _without_system(peaks: Peaks) -> Peaks:
    return Peaks(np.where(np.arange(8)[:, None] == 1, np.nan, peaks.entities), peaks.pods)


def _busiest(peaks: Peaks) -> Peaks:
    busiest = np.fmax.reduce(peaks.entities[:, :1], axis=0)
    return Peaks(np.where(np.isnan(peaks.entities), np.nan, busiest), peaks.pods)


ZERO_FOR_UNKNOWN = answering("zero for unknown", lambda p: Peaks(p.entities, np.nan_to_num(p.pods)))
COUNTING_ALL_ROWS = learning(
    "counting all rows",
    lambda models, rows, values: np.add.at(models.store["broken"], rows, len(rows)),
)


class WithMemoryOutsideColumns(Correct):
    def __init__(self) -> None:
        self._highest, self._seen = 0.0, list[Any]()

    def learn(self, models: EntityModels, rows: IntArray, values: FloatArray) -> None:
        self._highest += 1.0

    def answer(self, peaks: Peaks, view: View) -> Peaks:
        return Peaks(peaks.entities + self._highest, peaks.pods)


class NotingInputs(WithMemoryOutsideColumns):
    def learn(self, models: EntityModels, rows: IntArray, values: FloatArray) -> None:
        self._seen.append(values.copy())


class CountingCalls(Correct):
    calls = 0

    def answer(self, peaks: Peaks, view: View) -> Peaks:
        CountingCalls.calls += 1
        return Peaks(peaks.entities, peaks.pods, {"calls": peaks.entities * 0 + self.calls})


BREAKERS: dict[str, tuple[type[Correct], ...]] = {
    "peaks are valid": (
        answering("one entity short", lambda p: Peaks(p.entities[:, 1:], p.pods)),
        answering("single precision", lambda p: Peaks(p.entities, p.pods.astype(np.float32))),
        answering("negative", lambda p: Peaks(p.entities - 1.0, p.pods)),
        answering(
            "infinite", lambda p: Peaks(p.entities, np.where(np.isnan(p.pods), np.inf, p.pods))
        ),
        answering("term per pod", lambda p: Peaks(p.entities, p.pods, {"own": p.pods})),
    ),
    "unknown is not zero": (ZERO_FOR_UNKNOWN,),
    "known once learned": (
        answering("system unknown", _without_system),
        answering("pods unknown", lambda p: Peaks(p.entities, np.full(p.pods.shape, np.nan))),
    ),
    "nodes are independent": (answering("busiest node", _busiest), COUNTING_ALL_ROWS),
    "batches change nothing": (COUNTING_ALL_ROWS,),
    "columns restore all state": (WithMemoryOutsideColumns,),
    "order of pods changes nothing": (CountingCalls,),
    "inputs are not modified": (
        learning("writing samples", lambda models, rows, values: values.fill(np.nan)),
        learning("writing moments", lambda models, rows, values: models.mean.fill(1.0)),
        broken("writing the view", answer=lambda self, p, view: view.requests.fill(0.0) or p),
        writing("writing recent usage", "recent_slot", 1),
        writing("writing another's column", "witness", -7.0),
    ),
    "no state outside columns": (NotingInputs, WithMemoryOutsideColumns),
}


def test_every_law_has_a_breaker() -> None:
    assert BREAKERS.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "breaker"), [(law, breaker) for law, many in BREAKERS.items() for breaker in many]
)
def test_a_law_detects_its_breakers(law: str, breaker: type[Correct]) -> None:
    with pytest.raises(AssertionError):
        LAWS[law](Subject(breaker))


def test_a_correct_predictor_passes_every_law() -> None:
    check_predictor(Correct)


def test_the_error_names_predictor_and_law() -> None:
    expected = "broken breaks the law 'unknown is not zero': it answers .* without known usage"
    with pytest.raises(AssertionError, match=expected):
        check_predictor(ZERO_FOR_UNKNOWN)


def test_peaks_unknown_by_design_break_no_law() -> None:
    by_design = answering("system unknown by design", _without_system, no_peak_for=("system",))
    LAWS["known once learned"](Subject(by_design))


def _raise(error: Exception) -> Any:
    raise error


class WithoutPeak:
    name = "without-peak"
    prod = "pair"
    columns: Mapping[str, Column] = {}

    def observe(self) -> None: ...


@pytest.mark.parametrize(
    ("invalid", "says"),
    [
        (answering("raising", lambda p: _raise(ZeroDivisionError("of all"))),
         r"peak raises ZeroDivisionError\('of all'\)"),
        (learning("wrong shape", lambda models, rows, values: np.copyto(values, np.ones((7, 7)))),
         "observe raises ValueError"),
        (learning("undeclared column", lambda models, rows, values: models.store["undeclared"]),
         r"observe raises KeyError\('undeclared'\) \(a column that it does not"),
        (answering("no answer", lambda p: None), "peak answers NoneType, not Peaks"),
        (answering("lists", lambda p: Peaks(p.entities.tolist(), p.pods)),
         "peaks of entities are list, not an array"),
        (answering("no terms", lambda p: Peaks(p.entities, p.pods, None)),  # type: ignore[arg-type]
         "terms are not arrays by name"),
        (answering("without", lambda p: Peaks(p.entities, p.pods, {}, p.entities[:1, :3])),
         r"peaks without requests are float64 \(1, 3, 2\), not float64"),
        (broken("nameless", name=""), "its name is ''"),
        (broken("boundless", prod="both"), "prod is 'both', not 'pair' or 'classes'"),
        (broken("text for columns", columns="broken"), "columns are not `Column`s by name"),
        (broken("our column", columns={"recent": Column((2,))}),
         "no bank can run it: predictor broken: column 'recent' is another"),
        (broken("other entity", no_peak_for=("gpu",)),
         r"no_peak_for is \('gpu',\), not some of node, system"),
        (broken("not made", __init__=lambda self: _raise(RuntimeError("no licence"))),
         r"it cannot be made: RuntimeError\('no licence'\)"),
        (WithoutPeak, "it has no method peak"),
        (object, "its name is None"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("law", LAWS)
def test_an_invalid_predictor_breaks_the_laws_with_a_message(
    invalid: Any, says: str, law: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        LAWS[law](Subject(invalid))
