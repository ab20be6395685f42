"""What third parties took, what is no statement of it, and what they read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.processors.overcommit.third_party import (
    ALLOCATIONS,
    encode_origin,
    third_party_allocation,
)
from pipeline.topics.resource_amounts import BATCH, MID

CPU, MEMORY = BATCH


def allocated(*allocations: Any) -> tuple[int, int]:
    return third_party_allocation({ALLOCATIONS: json.dumps({"allocations": allocations})})


def allocation(priority: str = "koord-batch", **resources: Any) -> dict[str, Any]:
    names = {"cpu": CPU, "memory": MEMORY, "mid": MID[0]}
    amounts = {names[name]: value for name, value in resources.items()}
    return {"name": "hadoop-yarn", "priority": priority, "resources": amounts}


def test_without_an_annotation_nothing_is_taken() -> None:
    empty = ({}, *({ALLOCATIONS: text} for text in ("{}", '{"allocations":null}')))
    assert [third_party_allocation(annotations) for annotations in empty] == [(0, 0)] * 3
    assert allocated({"priority": "koord-batch"}) == (0, 0)


def test_allocations_of_batch_are_summed() -> None:
    one = allocation(cpu="1k", memory="1Gi", mid="7")
    assert allocated(one, one, allocation(cpu=500)) == (2500, 2 * 2**30)
    assert allocated(allocation("koord-mid", cpu=1), allocation("", cpu=1)) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"allocations":{}}',
        '{"allocations":[1]}',
        "{" * 100_000,
        json.dumps({"allocations": [allocation(cpu="much")]}),
        json.dumps({"allocations": [allocation(cpu="-1")]}),
        json.dumps({"allocations": [allocation(memory=[])]}),
        json.dumps({"allocations": [allocation(memory="1e99Ei")]}),
    ],
)
def test_invalid_annotation_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match=ALLOCATIONS):
        third_party_allocation({ALLOCATIONS: text})


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cpu, memory = third_party_allocation({ALLOCATIONS: text})
    except InvalidPolicyError:
        return
    assert cpu >= 0
    assert memory >= 0


def test_sum_fits_into_64_bits() -> None:
    huge = allocation(cpu=2**61, memory=2**61)
    assert allocated(*[huge] * 9) == (2**53, 2**53)


@given(st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)))
def test_origin_is_read_as_it_was_written(amounts: tuple[int, int]) -> None:
    annotation = json.loads(encode_origin(amounts))
    assert set(annotation) == {"resources"}
    assert read_amounts(annotation["resources"], BATCH) == [*amounts]
