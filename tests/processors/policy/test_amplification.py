"""Ratios of a node, and what they make of its allocatable and of requests."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.amplification import (
    AMPLIFICATION,
    RATIOS,
    Admitted,
    admitted,
    ratios,
    ratios_text,
    read_ratios,
    requested,
)
from pipeline.processors.policy.load_configmap import load
from pipeline.topics.resource_amounts import Resources

KEY = AMPLIFICATION.key
HUNDREDTHS = st.integers(100, 500)


def text_of(normalization: str | None = None, *, enable: bool = True, **said: float) -> str | None:
    of = AMPLIFICATION.convert({"enable": enable, "resourceAmplificationRatio": said})
    return ratios_text(ratios(of, None if normalization is None else Decimal(normalization)))


@pytest.mark.parametrize(
    ("normalization", "said", "text"),
    [
        (None, {}, None),
        ("1.00", {}, None),
        (None, {"cpu": 1}, None),
        ("1.20", {}, '{"cpu":1.20}'),
        ("1.20", {"cpu": 1.5, "memory": 2.5}, '{"cpu":1.80,"memory":2.50}'),
        ("1.50", {"cpu": 0.8}, '{"cpu":1.20}'),
        (None, {"memory": 1, "storage": 1.005}, '{"memory":1.00,"storage":1.01}'),
        (None, {"cpu": 1.004}, None),
    ],
)
def test_of_the_cpu_both_ratios_count_and_it_is_said_if_it_is_more_than_one(
    normalization: str | None, said: dict[str, float], text: str | None
) -> None:
    assert text_of(normalization, **said) == text


def test_switched_off_the_normalization_is_left() -> None:
    assert text_of("1.20", enable=False, cpu=3, memory=2) == '{"cpu":1.20}'
    assert text_of(None, enable=False, cpu=3, memory=2) is None


@pytest.mark.parametrize(
    ("normalization", "said"),
    [
        ("1.50", {"cpu": 0.5}),
        (None, {"cpu": 0.999}),
        ("5.00", {"memory": 0.99}),
        ("5.00", {"cpu": 201}),
        (None, {"memory": 1e300}),
        (None, {"memory": -1}),
    ],
)
def test_a_node_is_never_told_to_have_less_than_it_has(
    normalization: str | None, said: dict[str, float]
) -> None:
    with pytest.raises(InvalidPolicyError, match="allowed is 1 to 1000"):
        text_of(normalization, **said)


@given(st.dictionaries(st.text(min_size=1), HUNDREDTHS), st.none() | HUNDREDTHS)
def test_what_is_said_is_read_again(said: dict[str, int], normal: int | None) -> None:
    of = AMPLIFICATION.convert(
        {"enable": True, "resourceAmplificationRatio": {n: v / 100 for n, v in said.items()}}
    )
    found = ratios(of, None if normal is None else Decimal(normal) / 100)
    text = ratios_text(found)
    assert read_ratios({} if text is None else {RATIOS: text}) == (found or None)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"cpu":"1.5"}', '{"cpu":-1}', '{"cpu":1e9}', '{"cpu":1e400}',
     '{"cpu":NaN}', "[" * 100_000],
)  # fmt: skip
def test_an_annotation_that_cannot_be_read_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match=RATIOS):
        read_ratios({RATIOS: text})


def resources(cpu: int | None, memory: int | None = None) -> Resources:
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


OF = {"cpu": Decimal("1.5"), "memory": Decimal("2"), "storage": Decimal("9")}


def test_what_the_kubelet_writes_is_raw_and_what_others_leave_is_amplified_already() -> None:
    first = admitted(resources(1000, 400), None, None, OF)
    assert first == Admitted(resources(1500, 800), resources(1000, 400))
    untouched = admitted(first.allocatable, first.allocatable, first.raw, OF)
    assert untouched == first
    more = admitted(resources(2000, 400), first.allocatable, first.raw, OF)
    assert more == Admitted(resources(3000, 800), resources(2000, 400))
    wider = admitted(first.allocatable, first.allocatable, first.raw, {"cpu": Decimal(3)})
    assert wider == Admitted(resources(3000, 400), resources(1000, 400))


def test_without_ratios_nothing_is_recorded_and_nothing_changed() -> None:
    assert admitted(resources(7), resources(9), resources(9), None) == Admitted(resources(7), None)


@pytest.mark.parametrize("ratio", ["1", "0.5", "0"])
def test_a_ratio_of_one_or_less_changes_nothing(ratio: str) -> None:
    of = {"cpu": Decimal(ratio)}
    found = admitted(resources(1000, 400), None, None, of)
    assert found == Admitted(resources(1000, 400), resources(1000, 400))
    assert requested(1000, Decimal(ratio)) == 1000


@given(st.integers(0, 2**53), st.integers(101, 100_000))
def test_products_are_cut_and_rounded_exactly(amount: int, hundredths: int) -> None:
    ratio, exact = Decimal(hundredths) / 100, Fraction(hundredths, 100)
    found = admitted(resources(amount, amount), None, None, {"cpu": ratio, "memory": ratio})
    assert found.allocatable == resources(*[math.floor(amount * exact)] * 2)
    assert requested(amount, ratio) == math.ceil(amount * exact)
    assert found.allocatable.cpu_millicores is not None
    assert found.allocatable.cpu_millicores < 2**63


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"memory": 0.9}, "of 'memory' is 0.9, allowed is 1 or more"),
        ({"cpu": 0}, "of 'cpu' is 0, allowed is more than 0"),
        ({"cpu": 1001}, "and at most 1000"),
        ({"cpu": "2"}, "resourceAmplificationRatio"),
        ([], "resourceAmplificationRatio"),
    ],
)
def test_a_section_that_cannot_be_used_keeps_the_last(said: Any, says: str) -> None:
    last = load(AMPLIFICATION, {KEY: '{"enable":true}'}).policy
    config = {"resourceAmplificationRatio": said}
    loaded = load(AMPLIFICATION, {KEY: json.dumps(config)}, last)
    assert (loaded.policy, loaded.failed) == (last, True)
    assert says in str(loaded.problems[0])


def test_an_entry_replaces_the_ratios_that_it_names() -> None:
    entry = {"nodeSelector": {}, "resourceAmplificationRatio": {"cpu": 3}}
    config = {
        "enable": True,
        "resourceAmplificationRatio": {"cpu": 2, "memory": 2},
        "nodeConfigs": [entry],
    }
    loaded = load(AMPLIFICATION, {KEY: json.dumps(config)})
    assert loaded.policy is not None
    found = ratios(loaded.policy.of_labels({}), None)
    assert ratios_text(found) == '{"cpu":3.00,"memory":2.00}'
