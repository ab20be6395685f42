"""Thresholds by the time of day: time zones, midnight and daylight saving time."""

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware.node_thresholds import select_limits
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.processors.placement.threshold_hours import (
    DAYS,
    args_in_force,
    read_args,
    thresholds_annotation,
)
from pipeline.processors.scorers import load_aware

USUAL = load_aware.SCORER.read({"usageThresholds": {"cpu": 65}, "prodUsageThresholds": {"cpu": 50}})
NIGHT = {"from": "22:00", "to": "06:00", "days": ["Fri"], "usageThresholds": {"cpu": 85}}
WEEKEND = {"from": "00:00", "to": "00:00", "days": ["Sat", "Sun"], "usageThresholds": {"cpu": 75}}


def cpu(at: str, *windows: dict[str, Any], zone: str = "Europe/Berlin") -> int:
    args = read_args({"timeZone": zone, "windows": [*windows]})
    now = datetime.fromisoformat(at).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    result = args_in_force(args, USUAL, now)
    assert result.prod_usage_thresholds == {"cpu": 50}
    return result.usage_thresholds["cpu"]


@pytest.mark.parametrize(
    ("at", "percent"),
    [
        ("2026-11-20T21:59:59", 65),  # a Friday
        ("2026-11-20T22:00", 85),
        ("2026-11-21T05:59", 85),
        ("2026-11-21T06:00", 75),
        ("2026-11-22T23:59", 75),
        ("2026-11-23T00:00", 65),
        ("2026-11-21T22:00", 75),  # the night of Saturday is not Friday's
    ],
)
def test_the_first_window_that_contains_the_time_counts(at: str, percent: int) -> None:
    assert cpu(at, NIGHT, WEEKEND) == percent


def test_windows_follow_the_clock_of_the_time_zone() -> None:
    at = "2026-07-10T00:30"  # 22:30 of Thursday in UTC
    late = NIGHT | {"days": ["Thu"], "to": "23:00"}
    assert (cpu(at, late), cpu(at, late, zone="UTC")) == (65, 85)
    # An hour that the clock goes through twice is in the window both times.
    twice = {"from": "02:00", "to": "03:00", "usageThresholds": {"cpu": 80}}
    args = read_args({"timeZone": "Europe/Berlin", "windows": [twice]})
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    result = [
        args_in_force(args, USUAL, first + hour * 3600).usage_thresholds["cpu"]
        for hour in (-1, 0, 1, 2)
    ]
    assert result == [65, 80, 80, 65]


@given(st.integers(0, 23), st.integers(0, 23), st.integers(0, 7 * 24 * 60 - 1))
def test_a_window_and_its_opposite_fill_the_week(start: int, end: int, minute: int) -> None:
    one, other = (f"{start:02d}:00", f"{end:02d}:00")
    now = 1_700_000_000.0 + minute * 60
    windows = [
        {"from": one, "to": other, "usageThresholds": {"cpu": 10}},
        {"from": other, "to": one, "usageThresholds": {"cpu": 20}},
    ]
    result = [
        args_in_force(read_args({"windows": order}), USUAL, now).usage_thresholds["cpu"]
        for order in (windows, windows[::-1])
    ]
    assert set(result) <= {10, 20}
    assert (result[0] == result[1]) == (start != end)


PERCENTS = st.none() | st.dictionaries(
    st.sampled_from(["cpu", "memory"]), st.integers(0, 100), min_size=1
)
AGGREGATED = {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}


@given(
    st.lists(st.tuples(st.integers(0, 23), st.integers(0, 23), PERCENTS, PERCENTS, PERCENTS)),
    st.sampled_from([None, AGGREGATED, AGGREGATED | {"usageAggregatedDuration": "10m"}]),
    st.integers(0, 7 * 24 * 60 - 1),
    st.booleans(),
)
def test_the_annotation_selects_the_thresholds_that_are_in_force(
    drawn: list[Any], aggregated: dict[str, Any] | None, minute: int, is_prod: bool
) -> None:
    names = ("usageThresholds", "prodUsageThresholds", "aggregatedUsageThresholds")
    windows = [
        {"from": f"{start:02d}:00", "to": f"{end:02d}:00"}
        | {name: value for name, value in zip(names, percents, strict=True) if value is not None}
        for start, end, *percents in drawn
    ]
    usual = load_aware.SCORER.read(
        {"usageThresholds": {"cpu": 65}}
        | ({} if aggregated is None else {"aggregated": aggregated})
    )
    args = read_args({"windows": windows, "annotateNodes": {}})
    now = 1_700_000_000.0 + minute * 60
    text = thresholds_annotation(args, usual, now)
    in_force = args_in_force(args, usual, now)
    assert select_limits(usual, text, is_prod=is_prod) == select_limits(
        in_force, None, is_prod=is_prod
    )


@pytest.mark.parametrize("duration", ["", "10m"])
def test_the_annotation_has_no_empty_duration(duration: str) -> None:
    """Go cannot read one, and Koordinator's scheduler would ignore the whole annotation."""
    given = {"usageAggregationType": "p95"} | (
        {"usageAggregatedDuration": duration} if duration else {}
    )
    general = load_aware.SCORER.read({"aggregated": given | {"usageThresholds": {"cpu": 60}}})
    window = {"from": "00:00", "to": "00:00", "aggregatedUsageThresholds": {"cpu": 80}}
    text = thresholds_annotation(read_args({"windows": [window]}), general, 0.0)
    assert json.loads(text or "") == {"aggregatedUsage": given | {"usageThresholds": {"cpu": 80}}}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"timeZone": "Mars/Olympus"}, "timeZone: 'Mars/Olympus' is not known here"),
        ({"timeZone": "../etc/passwd"}, "timeZone"),
        ({"windows": [{"from": "24:00", "to": "06:00"}]}, "matching regex"),
        ({"windows": [{"from": "10:00"}]}, "missing required field `to`"),
        ({"windows": [NIGHT | {"days": ["Someday"]}]}, "Invalid enum value 'Someday'"),
        ({"windows": [NIGHT | {"usageThresholds": {"cpu": 101}}]}, "<= 100"),
        ({"hours": []}, "unknown field `hours`"),
        ({"annotateNodes": {"matchLabel": {}}}, "unknown field `matchLabel`"),
        ({"annotateNodes": {"matchLabels": {"a b": "c"}}}, "annotateNodes: 'a b' is not the key"),
        (
            {"annotateNodes": {}, "windows": [NIGHT | {"prodUsageThresholds": {}}]},
            "windows.0.: an annotation cannot replace thresholds by none",
        ),
    ],
)
def test_an_invalid_value_is_named(args: dict[str, Any], says: str) -> None:
    tree = {
        "plugins": {"multiPoint": {"enabled": [{"name": "TimeSharedThresholds"}]}},
        "pluginConfig": [{"name": "TimeSharedThresholds", "args": args}],
    }
    with pytest.raises(InvalidPolicyError, match=says):
        read_config(tree)


def test_days_follow_the_calendar() -> None:
    assert DAYS[datetime(2026, 11, 23).weekday()] == "Mon"  # noqa: DTZ001
