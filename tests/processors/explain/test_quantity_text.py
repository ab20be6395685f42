"""CPU, bytes and percents for people."""

import math

import pytest

from pipeline.processors.explain.quantity_text import format_bytes, format_cpu, format_percent


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        (0.0, "0m"), (0.0004, "0m"), (-0.0004, "0m"), (-0.25, "-250m"), (99.9994, "99999m"),
        (99.9996, "100"), (-150.0, "-150"), (1e6, "1000000"), (None, "-"), (math.nan, "-"),
    ],
)  # fmt: skip
def test_cpu_has_millicores_below_a_hundred_cores(cores: float | None, text: str) -> None:
    assert format_cpu(cores) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, "0Mi"), (-1.0, "0Mi"), (-5e6, "-5Mi"), (999.4 * 2**20, "999Mi"),
        (999.6 * 2**20, "1.0Gi"), (1023.99 * 2**20, "1.0Gi"), (99.96 * 2**30, "100Gi"),
        (-99.96 * 2**30, "-100Gi"), (1e15, "909Ti"), (1e18, "888Pi"), (None, "-"),
        (math.nan, "-"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits_in_the_unit_that_fits(amount: float | None, text: str) -> None:
    assert format_bytes(amount) == text


def test_a_percent_that_rounds_to_nothing_has_no_sign() -> None:
    assert [format_percent(each) for each in (0.0, -0.4, -1.0, None)] == ["0%", "0%", "-1%", "-"]
