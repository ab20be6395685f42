"""Durations that options take."""

import click
import pytest

from pipeline.cli.duration_option import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("6h", 21_600),
        ("7d", 604_800),
        ("1d12h", 129_600),
        ("365d", 31_536_000),
    ],
)
def test_units_up_to_days_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "45", "7d5", "12h1d", "d", "0d", "-1d", "1.5d", "366d", "9" * 400 + "d", "²d"]
)
def test_no_other_text_is_a_duration(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match="not a duration such as 90s, 15m, 6h or 7d, from 1s to 365d"
    ):
        Duration().convert(text, None, None)
