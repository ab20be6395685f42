"""The soak finds a role whose memory grows, and runs every role that stays up."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import soak
from pipeline.topics.access import ROLES

Samples = list[tuple[float, dict[str, float]]]


def samples_of(mib_at: Callable[[float], float], minutes: int = 60) -> Samples:
    """A sample every 15 s; the worker has `mib_at` of the minute, the exporter does not change."""
    times = [quarter / 4 for quarter in range(1, 4 * minutes + 1)]
    return [(m / 60, {"worker": mib_at(m), "exporter": 50.0}) for m in times]


@pytest.mark.parametrize(("mib_per_hour", "is_fine"), [(0.5, True), (5.0, False), (-9.0, True)])
def test_a_role_that_grows_by_more_than_its_bound_is_a_defect(
    mib_per_hour: float, is_fine: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = samples_of(lambda minute: 100.0 + mib_per_hour * minute / 60)
    assert soak.report(samples) is is_fine
    output = capsys.readouterr().out
    assert f"{mib_per_hour:.2f}" in output
    assert ("worker grows" in output) is not is_fine


@pytest.mark.parametrize(
    "mib_at",
    [
        lambda minute: 100.0 + min(minute, 20.0) * 10,  # warms up
        lambda minute: 300.0 if round(minute * 4) % 5 == 0 else 200.0,  # a fifth are peaks
        lambda minute: 200.0 + (minute > 45) * 10,  # an arena more
        lambda minute: 200.0 + 4 * (minute % 3) / 3,  # collects garbage now and then
    ],
    ids=["warm-up", "peaks", "a step", "saw teeth"],
)
def test_memory_that_does_not_grow_all_the_time_is_no_defect(
    mib_at: Callable[[float], float],
) -> None:
    assert soak.report(samples_of(mib_at))


def test_a_leak_is_found_behind_noise() -> None:
    noise = random.Random(7)
    samples = samples_of(lambda minute: 200.0 + 5 * minute / 60 + noise.gauss(0, 0.5))
    assert not soak.report(samples)


@pytest.mark.parametrize("minutes", [0, 1, 26, 49])
def test_a_short_run_is_not_judged_and_says_how_long_one_must_be(
    minutes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.report(samples_of(lambda minute: 100.0 + 5 * minute, minutes))
    assert f"{minutes} min are too short to judge memory: 50 are needed" in capsys.readouterr().out


def test_every_role_that_runs_for_long_is_in_the_soak(tmp_path: Path) -> None:
    no_roles = {"worker-with-files", "reader", "operator", "node-agent"}
    # The webhook needs no Kafka.
    expected = {*ROLES} - no_roles | {"webhook"}
    assert set(soak.role_flags(tmp_path, tmp_path, "")) == expected
