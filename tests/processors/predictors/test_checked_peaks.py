"""Invalid results of a foreign predictor count as unknown or are refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.errors import PredictorError
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.stateless import Stateless
from pipeline.topics.nodes import Strategy
from tests.processors.windows import GIB, Pod, window

SHAPE = (1, len(ENTITIES), 2)


class Fixed(Stateless):
    """Answers 1 core and 1 byte for all, but for what it was made with."""

    name = "odd"
    prod: Literal["pair", "classes"] = "pair"
    columns: Mapping[str, Column] = {}

    def __init__(self, **instead: Any) -> None:
        self._instead = instead

    def peak(self, view: View) -> Peaks:
        usual = Peaks(np.ones((*view.entities.shape, 2)), np.ones((len(view.pods), 2)))
        return replace(usual, **self._instead)


class Forgetful(Fixed):
    """Forgets to return its answer."""

    def peak(self, view: View) -> Peaks:
        return None  # type: ignore[return-value]


class Unlearned(Fixed):
    """Fails to learn."""

    def observe(self, *_: Any) -> None:
        raise ZeroDivisionError


def answer(predictor: Fixed) -> NodePeaks:
    bank = Bank(
        ModelConfig(predictors=("odd",), strategy=Strategy(predictor="odd")), {"odd": predictor}
    )
    bank.apply([window(1, [Pod("a", (1.0, GIB))])])
    return bank.peaks(["node-a"])[0]


@pytest.mark.parametrize("bad", [-5.0, -1e-9, np.inf, -np.inf])
def test_a_negative_or_infinite_peak_is_unknown(bad: float) -> None:
    entities = np.ones(SHAPE)
    entities[0, 0, 0] = bad
    result = answer(Fixed(entities=entities, pods=np.array([[1.0, bad]]))).decided
    assert np.isnan(result.raw).tolist() == (entities[0] == bad).tolist()
    assert np.isnan(result.pod_raw).tolist() == [[False, True]]


def test_unknown_and_zero_peaks_are_accepted() -> None:
    entities = np.zeros(SHAPE)
    entities[0, 1] = np.nan
    result = answer(Fixed(entities=entities))
    assert np.array_equal(result.decided.raw, entities[0], equal_nan=True)


@pytest.mark.parametrize(
    ("predictor", "says"),
    [
        (Forgetful(), "odd failed: AttributeError"),
        (Unlearned(), "odd failed: ZeroDivisionError"),
        (Fixed(entities=np.full(SHAPE, None)), "odd failed: TypeError"),
        (Fixed(entities=np.ones((1, 3, 2))), r"odd returns .*\(1, 3, 2\)"),
        (Fixed(pods=np.ones((7, 2))), r"odd returns .*\(7, 2\)"),
        (Fixed(terms={"mine": np.ones(2)}), r"odd returns the term 'mine' .*\(2,\)"),
    ],
)
def test_an_invalid_answer_is_an_error_that_names_the_predictor(
    predictor: Fixed, says: str
) -> None:
    with pytest.raises(PredictorError, match=says):
        answer(predictor)
