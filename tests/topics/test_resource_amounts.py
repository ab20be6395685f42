"""Kubernetes quantities are parsed exactly, or refused."""

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.topics.resource_amounts import (
    LARGEST_QUANTITY,
    millicores,
    parse_quantity,
    whole_bytes,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"), ("1", "1"), ("500m", "0.5"), ("1.5Gi", "1610612736"), ("2Ki", "2048"),
        ("1k", "1000"), ("1M", "1e6"), ("1e3", "1000"), ("1E3", "1000"), ("1E", "1e18"),
        ("2Ei", "2305843009213693952"), ("-1", "-1"), ("+1", "1"), (".5", "0.5"), ("5.", "5"),
        ("100n", "1e-7"), ("3u", "3e-6"), ("1e-3", "0.001"), (5, "5"), (0.25, "0.25"),
        ("0.1", "0.1"), ("12Ti", "13194139533312"), ("1Pi", "1125899906842624"), ("4T", "4e12"),
        ("3Mi", "3145728"), ("3G", "3e9"), ("3P", "3e15"), ("5n", "5e-9"), (".5k", "500"),
    ],
)  # fmt: skip
def test_a_quantity_has_its_exact_value(text: str | int | float, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "", " 1", "1 ", "1\n", "m", "Gi", "1gi", "1KI", "1K", "1ki", "1GiB", "1mm", "1,5", "0x10",
        "1e", "1e9999", "nan", "inf", "NaN", "Infinity", "１", "1_000", "--1", "1e99Ei",
        "1e3Ki", "1e3m", None, True, [], {},
    ],
)  # fmt: skip
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecordError, match="quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (millicores, "1", 1000), (millicores, "0.1m", 1), (millicores, "1.5", 1500),
        (millicores, "1500u", 2), (millicores, "0", 0), (millicores, "-0.5", -500),
        (millicores, "2k", 2_000_000), (whole_bytes, "1", 1), (whole_bytes, "0.5", 1),
        (whole_bytes, "1Mi", 2**20), (whole_bytes, "1500m", 2),
        # The API server accepts them.
        (whole_bytes, "7Ei", 7 * 2**60), (whole_bytes, "9Ei", 2**63 - 1),
        (millicores, "7Ei", 2**63 - 1), (whole_bytes, "9" * 400, 2**63 - 1),
        (whole_bytes, "-1e99", -(2**63) + 1),
    ],
)  # fmt: skip
def test_millicores_and_bytes_are_rounded_up(
    parse: Callable[[str], int], text: str, expected: int
) -> None:
    assert parse(text) == expected


@given(st.text(alphabet="0123456789.+-eEmunkKMGTPi ", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_bounded_quantity_or_is_refused(text: str) -> None:
    with suppress(InvalidRecordError):
        assert abs(parse_quantity(text)) <= LARGEST_QUANTITY
        assert abs(millicores(text)) <= LARGEST_QUANTITY


@given(st.integers(0, 2**62))
def test_whole_numbers_are_exact(value: int) -> None:
    assert whole_bytes(str(value)) == value
