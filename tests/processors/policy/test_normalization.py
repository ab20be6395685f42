"""The normalization ratio of a node's CPUs, and its annotation."""

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.load_configmap import load_section
from pipeline.processors.policy.normalization import (
    CPU_INFO,
    ENABLED,
    NORMALIZATION,
    RATIO,
    CpuInfo,
    Normalization,
    ratio_text,
    read_cpu_info,
    read_ratio,
)

MODEL = {
    "baseRatio": 1.5,
    "hyperThreadEnabledRatio": 1,
    "turboEnabledRatio": 1.65,
    "hyperThreadTurboEnabledRatio": 1.1,
}
KEY = NORMALIZATION.key


def stated(**config: Any) -> Normalization:
    return NORMALIZATION.convert({"enable": True, **config})


def cpu(model: str = "X", threads: bool = False, turbo: bool = False) -> CpuInfo:
    return CpuInfo(cpu_model=model, hyper_thread_enabled=threads, turbo_enabled=turbo)


@pytest.mark.parametrize(
    ("threads", "turbo", "text"),
    [(False, False, "1.50"), (False, True, "1.65"), (True, False, "1.00"), (True, True, "1.10")],
)
def test_the_ratio_is_by_model_threads_and_turbo(threads: bool, turbo: bool, text: str) -> None:
    of = stated(ratioModel={"X": MODEL}, defaultRatio=2)
    assert ratio_text(of, {}, cpu("X", threads, turbo)) == text
    assert ratio_text(of, {}, cpu("Y", threads, turbo)) == "2.00"


@pytest.mark.parametrize(
    ("enable", "labels", "is_on"),
    [
        (True, {}, True), (None, {}, False), (True, {ENABLED: "false"}, False),
        (False, {ENABLED: "true"}, True), (False, {ENABLED: "1"}, True),
        (True, {ENABLED: "F"}, False),
    ],
)  # fmt: skip
def test_a_label_comes_over_the_section(
    enable: bool | None, labels: dict[str, str], is_on: bool
) -> None:
    of = NORMALIZATION.convert({"enable": enable, "defaultRatio": 2})
    assert ratio_text(of, labels, cpu()) == ("2.00" if is_on else "1.00")
    if not is_on:
        assert ratio_text(of, labels, None) == "1.00", "nothing need be known of its CPU"


@pytest.mark.parametrize(
    ("of", "labels", "info", "says"),
    [
        (stated(defaultRatio=2), {}, None, "the node's CPU is unknown"),
        (stated(), {}, cpu(), "has no ratio for 'X', hyper-threading off, turbo off"),
        (stated(ratioModel={"X": {"baseRatio": 2}}), {}, cpu(turbo=True), "no ratio for 'X'"),
        (stated(defaultRatio=5.001), {}, cpu(), "is 5.001, allowed is 1 to 5"),
        (stated(defaultRatio=0.999), {}, cpu(), "is 0.999, allowed is 1 to 5"),
        (stated(defaultRatio=2), {ENABLED: "yes"}, cpu(), "is 'yes', neither true nor false"),
        (stated(defaultRatio=2), {ENABLED: ""}, cpu(), "neither true nor false"),
    ],
)
def test_a_missing_ratio_is_an_error_with_its_reason(
    of: Normalization, labels: dict[str, str], info: CpuInfo | None, says: str
) -> None:
    with pytest.raises(InvalidPolicyError, match=says):
        ratio_text(of, labels, info)


@given(st.integers(1000, 5000))
def test_a_ratio_is_rounded_by_its_digits(thousandths: int) -> None:
    text = f"{thousandths / 1000:.3f}"
    result = ratio_text(stated(defaultRatio=float(text)), {}, cpu())
    assert result == str(Decimal(text).quantize(Decimal("0.01"), ROUND_HALF_UP))
    assert read_ratio({RATIO: result}) == Decimal(result)


@pytest.mark.parametrize("text", ["", "x", "NaN", "inf", "-1", "0.99", "5.01", "1e0", " 1", "1,2"])
def test_an_invalid_ratio_of_a_node_is_an_error(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match=RATIO):
        read_ratio({RATIO: text})
    assert read_ratio({}) is None


def test_a_cpu_is_read_from_its_annotation() -> None:
    text = (
        '{"cpuModel":"X","hyperThreadEnabled":true,"catL3CbmMask":"7ff","vendorID":"GenuineIntel"}'
    )
    assert read_cpu_info({CPU_INFO: text}) == cpu("X", threads=True)
    assert read_cpu_info({}) is None


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '{"cpuModel":1}', '{"turboEnabled":1}', "{", "[" * 100_000]
)
def test_an_invalid_cpu_annotation_is_an_error(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match=CPU_INFO):
        read_cpu_info({CPU_INFO: text})


def test_an_entry_adds_models_and_replaces_those_of_the_same_name() -> None:
    entry = {
        "nodeSelector": {"matchLabels": {"pool": "gold"}},
        "ratioModel": {"Y": MODEL, "X": {"turboEnabledRatio": 2}},
    }
    config = {"enable": True, "ratioModel": {"X": MODEL, "Z": MODEL}, "nodeConfigs": [entry]}
    loaded = load_section(NORMALIZATION, {KEY: json.dumps(config)})
    assert loaded.policy is not None
    assert not loaded.problems
    result = loaded.policy.for_labels({"pool": "gold"}).ratio_model or {}
    assert set(result) == {"X", "Y", "Z"}
    assert (result["X"].turbo_enabled_ratio, result["X"].base_ratio) == (2, None)
    assert result["Y"] == result["Z"]


def test_without_the_section_it_is_off() -> None:
    loaded = load_section(NORMALIZATION, {})
    assert loaded.policy is not None
    assert ratio_text(loaded.policy.for_labels({}), {}, None) == "1.00"
