"""The soak finds a role whose memory grows, and runs every role that stays up."""

from pathlib import Path

import pytest

from benchmarks import soak
from pipeline.topics.access import ROLES


def growing(mib_per_hour: float) -> list[tuple[float, dict[str, float]]]:
    """An hour in which the worker grows and the exporter does not."""
    minutes = range(61)
    return [
        (minute / 60, {"worker": 100.0 + mib_per_hour * minute / 60, "exporter": 50.0})
        for minute in minutes
    ]


@pytest.mark.parametrize(("mib_per_hour", "is_fine"), [(0.5, True), (1.5, False), (-9.0, True)])
def test_a_role_that_grows_by_more_than_a_mebibyte_an_hour_is_a_defect(
    mib_per_hour: float, is_fine: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.report(growing(mib_per_hour), warm_up=900.0) is is_fine
    assert f"{mib_per_hour:.2f}" in capsys.readouterr().out


def test_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    samples = [(hours, {"worker": 100.0 + min(hours, 0.25) * 400}) for hours in (0.0, 0.1, 0.25)]
    samples += [(0.25 + step / 60, {"worker": 200.0}) for step in range(1, 46)]
    assert soak.report(samples, warm_up=900.0)


def test_every_role_that_runs_for_long_is_in_the_soak(tmp_path: Path) -> None:
    tools = {"worker-with-files", "reader", "operator"}
    assert set(soak.role_flags(tmp_path, tmp_path, "")) == {*ROLES} - tools
