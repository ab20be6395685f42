"""Durations that options take."""

import click
import pytest

from pipeline.cli.duration_option import Duration, SettingSeconds
from tests.docs.flag_tables import commands


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", "90"), ("1.5", "1.5"), ("3m", "180"), ("1d12h", "129600"), ("500ms", "0.5"),
     ("0", "0"), ("365d", "31536000"), ("3x", "3x"), ("null", "null"), ("", "")],
)  # fmt: skip
def test_seconds_of_settings_are_numbers_or_durations(text: str, seconds: str) -> None:
    assert SettingSeconds().convert(text, None, None) == seconds


def test_every_flag_that_takes_seconds_takes_durations() -> None:
    options = [
        option
        for _, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and any("-seconds" in flag for flag in option.opts)
    ]
    assert len(options) > 50
    assert [option.opts for option in options if not isinstance(option.type, SettingSeconds)] == []
