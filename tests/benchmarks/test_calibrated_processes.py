"""The random processes by which the calibrated predictor is judged, and their futures."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from benchmarks.calibrated_processes import futures_above
from benchmarks.process_futures import future_peaks, future_usage, remaining_stays
from benchmarks.random_processes import DAY, MEAN_STAY, PROCESSES, STEPS, run_of


@pytest.mark.parametrize("process", PROCESSES)
def test_each_pod_runs_at_all_times_on_one_node_within_its_limit(process: str) -> None:
    trace = run_of(process, 0).trace
    pods = len(trace.series)
    running = np.zeros((pods, trace.steps), np.int64)
    for stay, pod in enumerate(trace.series_index.tolist()):
        running[pod, trace.start[stay] : trace.end[stay]] += 1
    assert (running == 1).all()
    assert 0.2 < (np.bincount(trace.series_index) > 1).mean() < 0.6  # pods that move
    assert (np.diff(trace.node_index) >= 0).all()
    assert (trace.requests <= trace.limits).all()
    for stay in range(len(trace.pods)):
        cpu = trace.stay_usage(stay)[:, 0]
        assert 0.0 <= cpu.min() <= cpu.max() <= trace.limits[stay, 0]


def test_a_run_depends_on_its_seed_alone() -> None:
    first, again, other = (run_of("weekly", seed).trace for seed in (1, 1, 2))
    assert np.array_equal(first.usage, again.usage, equal_nan=True)
    assert np.array_equal(first.node_index, again.node_index)
    assert not np.array_equal(first.usage, other.usage, equal_nan=True)


def test_events_of_the_fleet_come_to_many_pods_at_once() -> None:
    """What one pod uses beyond its usual tells something of the others only in `fleet-bursts`."""

    def highest_share(process: str) -> float:
        usage = run_of(process, 0).trace.usage[:, 0].reshape(160, -1)
        high = usage > 1.5 * np.quantile(usage, 0.9, axis=1)[:, None]
        return float(high.mean(axis=0).max())

    assert highest_share("fleet-bursts") > 0.3
    assert highest_share("level-shifts") < 0.25


def test_futures_of_constant_pods_have_the_peaks_of_their_closed_form() -> None:
    """The sum of normal variables is normal, and the steps of a day are independent."""
    run = run_of("calm", 0)
    stays = np.bincount(run.trace.series_index) == 1
    run = replace(run, scales=run.scales * stays, limits=np.full(len(stays), np.inf))
    peaks = future_peaks(run, 1000, 400, np.random.default_rng(0))
    for node, of_node in enumerate(peaks):
        pods = run.trace.series_index[(run.trace.node_index == node) & (run.trace.start <= 1000)]
        scales = run.scales[np.unique(pods)]
        total = NormalDist(scales.sum(), 0.03 * np.sqrt((scales**2).sum()))
        for risk in (0.02, 0.1, 0.5):
            peak = total.inv_cdf((1.0 - risk) ** (1 / DAY))
            assert abs((of_node > peak).mean() - risk) < 5 * np.sqrt(risk * (1 - risk) / 400)


@pytest.mark.parametrize("process", [name for name in PROCESSES if not name.startswith("fleet")])
def test_half_of_the_pods_exceed_the_median_of_their_futures(process: str) -> None:
    run, step = run_of(process, 0), 1500
    peaks = future_usage(run, step, 49, np.random.default_rng(0)).max(axis=0)
    happened = run.latent.usage()[:, step + 1 : step + 1 + DAY].max(axis=1)
    assert 0.35 < (happened > np.median(peaks, axis=0)).mean() < 0.65


@pytest.mark.parametrize("process", PROCESSES)
def test_futures_do_not_know_what_was_drawn_for_later_steps(process: str) -> None:
    run, step = run_of(process, 0), 1600
    latent, known = run.latent, np.arange(STEPS) <= step
    events = [
        replace(event, end=STEPS) for event in latent.events if event.start <= step < event.end
    ]
    drawn = {
        name: np.where(known, getattr(latent, name), np.nan)
        for name in ("noise", "swell", "factor", "added")
    }
    past = replace(run, latent=replace(latent, events=tuple(events), **drawn))
    usage, again = (future_usage(one, step, 9, np.random.default_rng(0)) for one in (run, past))
    assert np.isfinite(usage).all()
    assert np.array_equal(usage, again)


@pytest.mark.parametrize("passed", [0, 100])
def test_pods_stay_for_a_time_without_memory(passed: int) -> None:
    left = remaining_stays(np.full(50, passed), 400, np.random.default_rng(0))
    assert abs((left >= DAY).mean() - np.exp(-(DAY + 1) / MEAN_STAY)) < 0.02


def test_another_future_exceeds_a_peak_with_just_the_declared_risk() -> None:
    random, above = np.random.default_rng(0), futures_above([0.1], 19)[0]
    drawn = np.sort(random.random((20_000, 19)), axis=1)
    assert (random.random(20_000) > drawn[:, -1 - above]).mean() == pytest.approx(0.1, abs=0.01)
