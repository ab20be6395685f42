"""The predictor `hourly-nsigma`."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckpointLayoutError
from pipeline.processors.model.model_config import ENTITIES, NODE
from pipeline.processors.model.training_batch import NodeWindow
from tests.processors.predictors.answers import LAWS, answer, learned
from tests.processors.windows import GIB, Pod, window

MIDNIGHT_MS = 1_700_006_400_000
HOUR_MS = 3_600_000
HALF_HOUR_MS = HOUR_MS // 2


def half_hour(end_ms: int, cpu: float, memory: float = GIB, pods: Sequence[Pod] = ()) -> NodeWindow:
    made = window(0, pods, usage=(cpu, memory))
    return replace(made, start_ms=end_ms - HALF_HOUR_MS, end_ms=end_ms)


def days(count: float, usage: Callable[[float], float], first: float = 0.0) -> list[NodeWindow]:
    """A window each half hour, `usage` by the hour since midnight of the first day."""
    return [
        half_hour(MIDNIGHT_MS + half_hours * HALF_HOUR_MS, usage(half_hours / 2 - 0.25))
        for half_hours in range(round(first * 48) + 1, round((first + count) * 48) + 1)
    ]


class SlowHours:
    """Samples by hour of the day, with a weight each that falls whenever their hour begins."""

    def __init__(self) -> None:
        self.samples: list[list[tuple[float, tuple[float, float]]]] = [[] for _ in range(24)]
        self._missed = [0] * 24
        self._newest: int | None = None

    def learn(self, end_ms: int, sample: tuple[float, float]) -> None:
        hour = (end_ms - 1) // HOUR_MS
        begun = Counter(h % 24 for h in range((self._newest or hour) + 1, hour + 1))
        for of_day, times in begun.items():
            self._missed[of_day] += times
            self.samples[of_day] = [
                (weight * (6 / 7) ** times, value)
                for weight, value in self.samples[of_day]
                if self._missed[of_day] <= 7
            ]
        self._missed[hour % 24] = 0
        self.samples[hour % 24].append((1.0, sample))
        self._newest = hour


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.floats(0, 64), st.floats(0, 2.0**60)),
        min_size=1,
        max_size=150,
    )
)
@LAWS
def test_each_hour_has_the_mean_and_deviation_of_fading_days(
    steps: list[tuple[int, float, float]],
) -> None:
    """Against numpy with a weight for each sample, to what float32 can tell."""
    end_ms = MIDNIGHT_MS
    slow = SlowHours()
    windows = []
    for half_hours, cpu, memory in steps:
        end_ms += half_hours * HALF_HOUR_MS
        windows.append(half_hour(end_ms, cpu, memory))
        slow.learn(end_ms, (cpu, memory))
    options = {"hourly-nsigma": {"history_seconds": 0}}
    result = answer(
        windows, "hourly-nsigma", options=options, horizon_seconds=1.0, nsigma_multiplier=2.0
    )
    own, hour = result.decided, end_ms // HOUR_MS % 24
    samples = slow.samples[hour]
    if not samples:
        assert np.isnan(own.raw[NODE]).all()
        return
    assert own.terms["hour"][NODE].tolist() == [hour] * 2
    weights = np.array([weight for weight, _ in samples])
    for r, largest in enumerate((64.0, 2.0**60)):
        values = np.array([value[r] for _, value in samples])
        mean = np.average(values, weights=weights)
        stdev = math.sqrt(np.average((values - mean) ** 2, weights=weights))
        assert own.terms["mean"][NODE, r] == pytest.approx(mean, rel=1e-4, abs=1e-6 * largest)
        assert own.terms["stdev"][NODE, r] == pytest.approx(stdev, rel=1e-3, abs=1e-3 * largest)
        assert own.raw[NODE, r] == own.terms["mean"][NODE, r] + 2.0 * own.terms["stdev"][NODE, r]


def office_hours(hour: float) -> float:
    """8 cores from 9 to 17 o'clock, 1 at night, with some noise that repeats nowhere."""
    noise = 0.3 * math.sin(hour * 12.9898) * math.sin(hour * 78.233)
    return (8.0 if 9 <= hour % 24 < 17 else 1.0) + noise


def test_hourly_peaks_beat_nsigma_on_a_daily_pattern() -> None:
    """asked each hour of a week what the next three hours will need, it promises less than
    N-sigma of the same N on average, and is exceeded no more often."""
    windows = days(3, office_hours)
    bank = learned(windows, "hourly-nsigma", "nsigma-v1", horizon_seconds=10_800.0)
    misses = dict.fromkeys(bank.predictors, 0)
    promised = dict.fromkeys(bank.predictors, 0.0)
    coming = days(7.2, office_hours, first=3)
    for i in range(0, 7 * 48, 2):
        (result,) = bank.peaks(["node-a"])
        happens = max(w.node_usage[0] for w in coming[i : i + 6])
        for name in bank.predictors:
            peak = result.predictors[name].raw[NODE, 0]
            misses[name] += happens > peak
            promised[name] += peak
        bank.apply(coming[i : i + 2])
    assert misses["hourly-nsigma"] <= misses["nsigma-v1"] == 0
    assert promised["hourly-nsigma"] < 0.5 * promised["nsigma-v1"]


def test_hourly_peaks_over_a_whole_day_are_lower_than_nsigma() -> None:
    """a mean over day and night has a deviation that no hour has."""
    result = answer(days(4, office_hours), "hourly-nsigma", "nsigma-v1")
    hourly, plain = (result.predictors[name].raw[NODE, 0] for name in result.predictors)
    assert 8.3 < hourly < 0.75 * plain


def test_peaks_are_unknown_before_a_day_has_passed() -> None:
    bank = learned(days(1, office_hours)[:-1], "hourly-nsigma", horizon_seconds=3600.0)
    assert np.isnan(bank.peaks(["node-a"])[0].decided.raw).all()
    bank.apply(days(1, office_hours)[-1:])
    # The first window ended half an hour after midnight.
    assert np.isnan(bank.peaks(["node-a"])[0].decided.raw).all()
    bank.apply(days(0.03, office_hours, first=1))
    known = bank.peaks(["node-a"])[0].decided.raw
    assert known[NODE, 0] == pytest.approx(1.0, abs=0.9)
    assert np.isnan(known[ENTITIES.index("unknown")]).all()


def test_a_horizon_with_an_unseen_hour_is_unknown() -> None:
    without_noon = [
        w for w in days(2, office_hours) if not 12 <= (w.end_ms - 1) // HOUR_MS % 24 < 13
    ]
    whole = answer(without_noon, "hourly-nsigma")
    assert np.isnan(whole.decided.raw[NODE]).all()
    assert np.isnan(whole.decided.terms["hour"][NODE]).all()
    night = answer(without_noon, "hourly-nsigma", horizon_seconds=12 * 3600.0)
    assert night.decided.raw[NODE, 0] > 8.0
    noon = answer(without_noon, "hourly-nsigma", horizon_seconds=12 * 3600.0 + 0.01)
    assert np.isnan(noon.decided.raw[NODE, 0])


def test_each_class_has_its_own_horizon() -> None:
    windows = []
    for w in days(2, office_hours):
        cpu = float(w.node_usage[0])
        pods = [Pod("a", (cpu, GIB)), Pod("b", (cpu, GIB), "batch")]
        windows.append(half_hour(w.end_ms, 2 * cpu, pods=pods))
    own = answer(windows, "hourly-nsigma", class_horizon_seconds={"batch": 3600.0}).decided
    day, night = own.pod_raw[:, 0].tolist()
    assert night < 2.0 < 8.0 < day
    prod, batch = ENTITIES.index("prod"), ENTITIES.index("batch")
    assert own.raw[[prod, batch], 0].tolist() == [day, night]
    assert own.terms["hour"][batch, 0] == 0.0


def test_hours_fade_by_the_week_and_are_then_forgotten() -> None:
    busy_then_idle = days(4, lambda hour: 8.0) + days(14, lambda hour: 1.0, first=4)
    own = answer(busy_then_idle, "hourly-nsigma", nsigma_multiplier=0.0).decided
    weights = (6 / 7) ** np.arange(18.0)[::-1]
    assert own.raw[NODE, 0] == pytest.approx(
        np.average([8.0] * 4 + [1.0] * 14, weights=weights), rel=1e-3
    )
    before = days(2, lambda hour: 8.0)
    for back, removed in ((8.5, False), (9.5, True)):
        # On the ninth day the afternoon's hours begin for the seventh time since they were seen.
        away = before + days(1, lambda hour: 1.0, first=back)
        own = answer(away, "hourly-nsigma", nsigma_multiplier=0.0).decided
        assert (own.raw[NODE, 0] == 1.0) == removed


@pytest.mark.parametrize(("later_days", "removed"), [(7, False), (8, True), (30, True)])
def test_a_missed_hour_is_forgotten_while_others_are_seen(later_days: int, removed: bool) -> None:
    """Each day an hour, and then for days only another."""
    midnights = [half_hour(MIDNIGHT_MS + (24 * day + 1) * HOUR_MS, 8.0) for day in range(3)]
    mornings = [
        half_hour(MIDNIGHT_MS + (24 * (2 + day) + 7) * HOUR_MS, 1.0) for day in range(1, later_days)
    ]
    # A window within the hour, of which nothing was measured.
    blind = half_hour(
        MIDNIGHT_MS + 24 * (2 + later_days) * HOUR_MS + HALF_HOUR_MS, math.nan, math.nan
    )
    own = answer([*midnights, *mornings, blind], "hourly-nsigma", horizon_seconds=1.0)
    assert np.isnan(own.decided.raw[NODE]).all() == removed


def test_state_of_other_days_is_not_restored() -> None:
    bank = learned(days(1, office_hours), "hourly-nsigma")
    other = learned([], "hourly-nsigma", options={"hourly-nsigma": {"days": 3}})
    with pytest.raises(CheckpointLayoutError):
        other.restore("node-a", bank.encode_state("node-a"))


def test_another_machine_starts_without_history() -> None:
    windows = days(3, lambda hour: 8.0)
    other = [replace(w, machine_id="machine-2") for w in days(0.5, lambda hour: 1.0, first=3)]
    assert np.isnan(answer(windows + other, "hourly-nsigma").decided.raw[NODE]).all()
