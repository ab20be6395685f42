"""Every installed predictor keeps every law, and every law finds a predictor that breaks it."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.registry import available
from pipeline.processors.predictors.suite import LAWS, Subject, check_predictor


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", available())
def test_installed_predictors_keep_the_laws(name: str, law: str) -> None:
    LAWS[law](Subject(available()[name].load()))


class Broken(NSigmaV1):
    """N-sigma with something wrong with its answer, its columns or what it does to others'."""

    name = "broken"
    prod: Literal["pair", "classes"] = "pair"
    columns: Mapping[str, Column] = {"broken": Column((2,))}

    def peak(self, view: View) -> Peaks:
        return self.spoil(super().peak(view), view)

    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return answer


class OneEntityShort(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities[:, 1:], answer.pods)


class InSinglePrecision(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, answer.pods.astype(np.float32))


class Negative(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities - 1.0, answer.pods)


class Infinite(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, np.where(np.isnan(answer.pods), np.inf, answer.pods))


class WithATermPerPod(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, answer.pods, {"own": answer.pods})


class ZeroForUnknown(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, np.nan_to_num(answer.pods))


class SilentAboutTheSystem(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(np.where(np.arange(8)[:, None] == 1, np.nan, answer.entities), answer.pods)


class SilentByDesign(SilentAboutTheSystem):
    never = ("system",)


class SilentAboutPods(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, np.full(answer.pods.shape, np.nan))


class ByTheBusiestNode(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        busiest = np.fmax.reduce(answer.entities[:, :1], axis=0)
        return Peaks(np.where(np.isnan(answer.entities), np.nan, busiest), answer.pods)


class CountingAllRows(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        rows.store["broken"][at] += len(at)


class WithAMemoryOfItsOwn(Broken):
    def __init__(self) -> None:
        self._highest = 0.0

    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        self._highest += 1.0

    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities + self._highest, answer.pods)


class CountingItsCalls(Broken):
    calls = 0

    def spoil(self, answer: Peaks, view: View) -> Peaks:
        CountingItsCalls.calls += 1
        return Peaks(answer.entities, answer.pods, {"calls": answer.entities * 0 + self.calls})


class WritingToTheSamples(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        values[:] = np.nan


class WritingToTheMoments(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        rows.mean[at] = 1.0


class WritingToTheView(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        view.requests[:] = 0.0
        return answer


class WritingToTheRecentPast(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        rows.store["recent_slot"][at] += 1


class WritingToAnothersColumn(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        if "witness" in rows.store:
            rows.store["witness"][at] = 0.0


class NotingWhatItSaw(Broken):
    def __init__(self) -> None:
        self._seen: list[Any] = []

    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        self._seen.append(values.copy())


BREAKERS = {
    "answers are peaks": (
        OneEntityShort, InSinglePrecision, Negative, Infinite, WithATermPerPod,
    ),
    "unknown is not zero": (ZeroForUnknown,),
    "known once learned": (SilentAboutTheSystem, SilentAboutPods),
    "a node stands alone": (ByTheBusiestNode, CountingAllRows),
    "batches do not matter": (CountingAllRows,),
    "state is in the columns": (WithAMemoryOfItsOwn,),
    "order of pods does not matter": (CountingItsCalls,),
    "others are left alone": (
        WritingToTheSamples, WritingToTheMoments, WritingToTheView, WritingToTheRecentPast,
        WritingToAnothersColumn,
    ),
    "nothing is kept outside columns": (NotingWhatItSaw, WithAMemoryOfItsOwn),
}  # fmt: skip


def test_every_law_has_a_breaker() -> None:
    assert BREAKERS.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "broken"), [(law, broken) for law, many in BREAKERS.items() for broken in many]
)
def test_a_law_detects_its_breakers(law: str, broken: type[Broken]) -> None:
    with pytest.raises(AssertionError):
        LAWS[law](Subject(broken))


def test_a_correct_predictor_passes_every_law() -> None:
    check_predictor(Broken)


def test_the_error_names_predictor_and_law() -> None:
    expected = "broken breaks the law 'unknown is not zero': it answers .* without known usage"
    with pytest.raises(AssertionError, match=expected):
        check_predictor(ZeroForUnknown)


def test_peaks_unknown_by_design_break_no_law() -> None:
    LAWS["known once learned"](Subject(SilentByDesign))


class Raising(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        raise ZeroDivisionError("of all")


class ObservingBadly(Broken):
    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        rows.store["broken"][at] = values[:, :1, None]


class WithoutItsColumn(Broken):
    columns: Mapping[str, Column] = {}

    def observe(self, rows: Rows, at: IntArray, values: FloatArray, end_ms: IntArray) -> None:
        rows.store["undeclared"][at] = values


class AnsweringNothing(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return None  # type: ignore[return-value]


class AnsweringLists(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities.tolist(), answer.pods)


class WithoutTerms(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, answer.pods, None)  # type: ignore[arg-type]


class BareOfOneNode(Broken):
    def spoil(self, answer: Peaks, view: View) -> Peaks:
        return Peaks(answer.entities, answer.pods, bare=answer.entities[:1, :3])


class Nameless(Broken):
    name = ""


class Boundless(Broken):
    prod: Any = "both"


class WithListsForColumns(Broken):
    columns: Any = "broken"


class WithAColumnOfOurs(Broken):
    columns: Mapping[str, Column] = {"recent": Column((2,))}


class NeverOfNothingKnown(Broken):
    never = ("gpu",)


class NotToBeMade(Broken):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class WithoutPeak:
    name = "without-peak"
    prod = "pair"
    columns: Mapping[str, Column] = {}

    def observe(self) -> None: ...


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Raising, r"peak raises ZeroDivisionError\('of all'\)"),
        (ObservingBadly, "observe raises ValueError"),
        (WithoutItsColumn, r"observe raises KeyError\('undeclared'\) \(a column that it does not"),
        (AnsweringNothing, "peak answers NoneType, not Peaks"),
        (AnsweringLists, "peaks of entities are list, not an array"),
        (WithoutTerms, "terms are not arrays by name"),
        (BareOfOneNode, r"bare peaks of entities are float64 \(1, 3, 2\), not float64"),
        (Nameless, "its name is ''"),
        (Boundless, "prod is 'both', not 'pair' or 'classes'"),
        (WithListsForColumns, "columns are not `Column`s by name"),
        (WithAColumnOfOurs, "no bank can run it: predictor broken: column 'recent' is another"),
        (NeverOfNothingKnown, r"never is \('gpu',\), not some of node, system"),
        (NotToBeMade, r"it cannot be made: RuntimeError\('no licence'\)"),
        (WithoutPeak, "it has no method peak"),
        (object, "its name is None"),
    ],
)
@pytest.mark.parametrize("law", LAWS)
def test_an_invalid_predictor_breaks_the_laws_with_a_message(
    broken: Any, says: str, law: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        LAWS[law](Subject(broken))
