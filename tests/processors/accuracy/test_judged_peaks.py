"""A followed peak as a record, and records as scores: those of the backtest's protocol."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals, PeakGroup
from pipeline.processors.accuracy.judged_peaks import judge
from pipeline.processors.backtest.protocol import TOLERANCE, over_machines, score
from pipeline.processors.backtest.trace import MEBIBYTE
from pipeline.processors.model.pending_peaks import EndedPeak
from pipeline.topics.accuracy import AccuracyRecord, Judgement, PeakAmounts, PredictorJudgement
from pipeline.topics.codec import decode_json, encode_json

NAN = np.nan
HOUR_MS = 3_600_000


def record(
    peak: tuple[float, float],
    highest: tuple[float, float],
    requests: tuple[float, float] = (1000.0, 1000 * MEBIBYTE),
    *,
    known: tuple[float, float] = (1.0, 1.0),
    node: str = "node-a",
    hour: int = 0,
) -> AccuracyRecord:
    ended = EndedPeak(
        hour * HOUR_MS, {"percentile": np.array(peak)}, *map(np.array, (requests, highest, known))
    )
    return judge(
        ended, node=node, pool="large", decides="percentile", horizon_seconds=86_400.0,
        end_ms=(hour + 24) * HOUR_MS, position={"generation": 0, "offset": hour, "epoch": 1},
    )  # fmt: skip


def cpu(*arguments: object, **options: object) -> Judgement:
    judged: AccuracyRecord = record(*arguments, **options)  # type: ignore[arg-type]
    return judged.predictors["percentile"].cpu


def test_peak_that_held_has_no_severity() -> None:
    assert cpu((600.0, 0.0), (500.0, 0.0)) == Judgement(
        peak=600.0, violated=False, severity=0.0, savings=0.4
    )


def test_peak_that_was_too_low() -> None:
    assert cpu((400.0, 0.0), (500.0, 0.0)) == Judgement(
        peak=400.0, violated=True, severity=0.2, savings=0.6
    )


@pytest.mark.parametrize(("above", "violated"), [(1.0, False), (1.5, True)])
def test_a_millicore_is_tolerated(above: float, violated: bool) -> None:
    assert cpu((400.0, 0.0), (400.0 + above, 0.0)).violated is violated


def test_usage_beyond_the_requests_is_no_violation_of_a_peak_that_gave_nothing_away() -> None:
    assert cpu((1000.0, 0.0), (5000.0, 0.0)).violated is False
    assert cpu((1200.0, 0.0), (5000.0, 0.0)).savings == 0.0


def test_peak_is_not_judged_without_enough_usage_without_requests_or_without_a_prediction() -> None:
    peak = Judgement(peak=400.0)
    assert cpu((400.0, 0.0), (500.0, 0.0), known=(0.89, 1.0)) == peak
    assert cpu((400.0, 0.0), (500.0, 0.0), (0.0, 0.0)) == peak
    assert cpu((NAN, 0.0), (500.0, 0.0)) == Judgement()


def test_usage_that_was_never_known_is_unknown_and_not_zero() -> None:
    judged = record((400.0, 400.0), (0.0, 0.0), known=(0.0, 1.0))
    assert (judged.highest.cpu, judged.highest.memory) == (None, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"predictors": {"percentile": PredictorJudgement(cpu=Judgement(violated=True))}},
        {"requests": PeakAmounts()},
        {"requests": PeakAmounts(cpu=-1.0, memory=0.0)},
        {"highest": PeakAmounts()},
    ],
)
def test_totals_take_a_judgement_that_lacks_something_for_an_unjudged_peak(
    changes: dict[str, Any],
) -> None:
    totals = AccuracyTotals()
    totals.add(msgspec.structs.replace(record((400.0, 100.0), (500.0, 50.0)), **changes))
    group = PeakGroup("large", "percentile", "cpu")
    assert (dict(totals.scores())[group].points, totals.unjudged(group)) == (0, 1)
    assert np.isnan(totals.judged_until(group))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e300])
def test_record_with_an_impossible_horizon_is_invalid(seconds: float) -> None:
    text = encode_json(record((400.0, 0.0), (500.0, 0.0))).replace(
        b'"horizon_seconds":86400.0', f'"horizon_seconds":{seconds}'.encode()
    )
    with pytest.raises(InvalidRecordError, match="horizon_seconds"):
        decode_json(AccuracyRecord, text)


AMOUNTS = st.floats(0.0, 2000.0)
POINTS = st.lists(
    st.tuples(st.sampled_from("ab"), AMOUNTS | st.just(NAN), AMOUNTS, st.sampled_from([0.0, 1e3])),
    min_size=1,
    max_size=12,
)


@given(POINTS)
def test_totals_are_the_scores_of_the_protocol(
    points: list[tuple[str, float, float, float]],
) -> None:
    """Each published twice, as after a recovery."""
    totals = AccuracyTotals()
    rows: dict[str, list[tuple[float, float, float]]] = {"a": [], "b": []}
    records = []
    for hour, (node, peak, highest, requests) in enumerate(points, 1):
        records.append(record((peak, NAN), (highest, 0.0), (requests, 0.0), node=node, hour=hour))
        # A peak that is unknown is not judged, while a backtest counts it as one without savings.
        if not np.isnan(peak):
            rows[node].append((peak, min(highest, requests), requests))
    for each in [*records, *records]:
        totals.add(msgspec.structs.replace(each, epoch=2))
    longest = max(map(len, rows.values()))
    padded = np.array([own + [(0.0, 0.0, 0.0)] * (longest - len(own)) for own in rows.values()])
    peaks, oracle, requested = np.moveaxis(padded.reshape(2, longest, 3), -1, 0)
    expected = over_machines(score(peaks, requested, oracle, float(TOLERANCE[0])))
    found = dict(totals.scores())[PeakGroup("large", "percentile", "cpu")]
    assert (found.machines, found.points) == (expected.machines, expected.points)
    for name in ("violation", "violation_p90", "severity", "savings", "oracle_savings"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)
