"""The predictor `max`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.model_config import NODE, SYSTEM
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.maximum import Maximum
from pipeline.processors.predictors.registry import PREDICTORS
from tests.processors.predictors.answers import LAWS, answer, learned
from tests.processors.windows import GIB, Pod, streams, window

OTHERS = tuple(name for name in PREDICTORS.points if name != "max")


def max_options(members: list[str], **options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {"max": {"members": members, "options": options}}


@given(streams(), st.lists(st.sampled_from(OTHERS), min_size=1, max_size=4, unique=True))
@LAWS
def test_the_peak_is_the_highest_known_peak_of_a_member(
    windows: list[NodeWindow], members: list[str]
) -> None:
    """never below a member, unknown where all of them are."""
    bank = learned(windows, "max", *members, options=max_options(members), cold_start_samples=2)
    for result in bank.peaks(bank.nodes):
        own = result.predictors["max"]
        for part in ("raw", "pod_raw"):
            peaks = getattr(own, part)
            theirs = [getattr(result.predictors[name], part) for name in members]
            for each in theirs:
                assert (np.isnan(each) | (peaks >= each)).all()
            assert (np.isnan(peaks) == np.all([np.isnan(each) for each in theirs], axis=0)).all()
            # And it is one of them.
            assert (np.isnan(peaks) | np.any([each == peaks for each in theirs], axis=0)).all()
        for name in members:
            member = result.predictors[name]
            assert own.terms[name].tobytes() == member.raw.tobytes()
            for term, values in member.terms.items():
                assert own.terms[f"{name}.{term}"].tobytes() == values.tobytes()


def test_default_members_are_borg_and_resource_central() -> None:
    windows = [window(i, [Pod("a", (3.0, GIB / 2))]) for i in range(20)]
    own = answer(windows, "max").predictors["max"]
    central, borg = own.terms["resource-central"], own.terms["borg-default"]
    assert own.raw[NODE].tolist() == [central[NODE, 0], central[NODE, 1]]
    assert own.pod_raw[0].tolist() == pytest.approx([3.0, GIB / 1.1], rel=0.0012)
    assert np.isnan(borg[SYSTEM]).all()
    assert own.raw[SYSTEM].tobytes() == central[SYSTEM].tobytes()


def test_members_have_their_own_options() -> None:
    options = max_options(["borg-default"], **{"borg-default": {"a": 2.0}})
    result = answer([window(1, [Pod("a", (0.1, GIB))])], "max", "borg-default", options=options)
    assert result.predictors["max"].pod_raw[0, 0] == 0.5
    assert result.predictors["borg-default"].pod_raw[0, 0] == 1.0 / 1.1


def test_columns_of_a_member_are_apart_from_the_same_predictor() -> None:
    """Each hour's mean is learned once by the member and once by the predictor itself."""
    options = {"max": {"members": ["hourly-nsigma"]}}
    windows = [window(i, [Pod("a", (1.0 + i % 3, GIB))]) for i in range(750)]
    bank = learned(windows, "max", "hourly-nsigma", options=options)
    (result,) = bank.peaks(bank.nodes)
    own, alone = result.predictors["max"], result.predictors["hourly-nsigma"]
    assert [own.raw.tobytes(), own.pod_raw.tobytes()] == [
        alone.raw.tobytes(), alone.pod_raw.tobytes(),
    ]  # fmt: skip
    assert not np.isnan(own.raw[NODE]).any()
    assert {*Maximum(**options["max"]).columns} == {
        "max.hourly-nsigma.hourly_7",
        "max.hourly-nsigma.hourly_7_at",
        "max.hourly-nsigma.hourly_7_missed",
    }


@pytest.mark.parametrize(
    ("members", "prod"),
    [
        (["nsigma-v1"], "classes"),
        (["nsigma-v1", "hourly-nsigma"], "classes"),
        (["nsigma-v1", "percentile"], "pair"),
    ],
)
def test_prod_is_that_of_the_most_careful_member(members: list[str], prod: str) -> None:
    assert Maximum(members=members).prod == prod
