"""Amplification ratios of a node, and their annotation."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.amplification import (
    AMPLIFICATION,
    amplification_ratios,
    ratios_text,
)
from pipeline.processors.policy.load_configmap import load_section

KEY = AMPLIFICATION.key
HUNDREDTHS = st.integers(100, 500)


def text_of(
    normalization: str | None = None, *, enable: bool = True, **stated: float
) -> str | None:
    of = AMPLIFICATION.convert({"enable": enable, "resourceAmplificationRatio": stated})
    ratio = None if normalization is None else Decimal(normalization)
    return ratios_text(amplification_ratios(of, ratio))


@pytest.mark.parametrize(
    ("normalization", "stated", "text"),
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
def test_both_ratios_of_the_cpu_count_if_their_product_exceeds_1(
    normalization: str | None, stated: dict[str, Any], text: str | None
) -> None:
    assert text_of(normalization, **stated) == text


def test_switched_off_the_normalization_is_left() -> None:
    assert text_of("1.20", enable=False, cpu=3, memory=2) == '{"cpu":1.20}'
    assert text_of(None, enable=False, cpu=3, memory=2) is None


@pytest.mark.parametrize(
    ("normalization", "stated"),
    [
        ("1.50", {"cpu": 0.5}), (None, {"cpu": 0.999}), ("5.00", {"memory": 0.99}),
        ("5.00", {"cpu": 201}), (None, {"memory": 1e300}), (None, {"memory": -1}),
    ],
)  # fmt: skip
def test_a_ratio_below_1_is_refused(normalization: str | None, stated: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError, match="allowed is 1 to 1000"):
        text_of(normalization, **stated)


@given(st.dictionaries(st.text(min_size=1), HUNDREDTHS), st.none() | HUNDREDTHS)
def test_written_ratios_are_read_back(stated: dict[str, int], normal: int | None) -> None:
    of = AMPLIFICATION.convert(
        {"enable": True, "resourceAmplificationRatio": {n: v / 100 for n, v in stated.items()}}
    )
    result = amplification_ratios(of, None if normal is None else Decimal(normal) / 100)
    text = ratios_text(result)
    written = json.loads(text, parse_float=Decimal) if text else {}
    assert written == result


def test_an_entry_replaces_the_ratios_that_it_names() -> None:
    entry = {"nodeSelector": {}, "resourceAmplificationRatio": {"cpu": 3}}
    config = {
        "enable": True,
        "resourceAmplificationRatio": {"cpu": 2, "memory": 2},
        "nodeConfigs": [entry],
    }
    loaded = load_section(AMPLIFICATION, {KEY: json.dumps(config)})
    assert loaded.policy is not None
    result = amplification_ratios(loaded.policy.for_labels({}), None)
    assert ratios_text(result) == '{"cpu":3.00,"memory":2.00}'
