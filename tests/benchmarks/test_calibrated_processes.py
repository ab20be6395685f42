"""The random processes by which the calibrated predictor is judged."""

import numpy as np
import pytest

from benchmarks.calibrated_processes import PROCESSES, trace_of


@pytest.mark.parametrize("process", PROCESSES)
def test_each_pod_runs_at_all_times_on_one_node_within_its_limit(process: str) -> None:
    trace = trace_of(process, 0)
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
    first, again, other = (trace_of("weekly", seed) for seed in (1, 1, 2))
    assert np.array_equal(first.usage, again.usage, equal_nan=True)
    assert np.array_equal(first.node_index, again.node_index)
    assert not np.array_equal(first.usage, other.usage, equal_nan=True)


def test_events_of_the_fleet_come_to_many_pods_at_once() -> None:
    """What one pod uses beyond its usual tells something of the others only in `fleet-bursts`."""

    def highest_share(process: str) -> float:
        usage = trace_of(process, 0).usage[:, 0].reshape(160, -1)
        high = usage > 1.5 * np.quantile(usage, 0.9, axis=1)[:, None]
        return float(high.mean(axis=0).max())

    assert highest_share("fleet-bursts") > 0.3
    assert highest_share("level-shifts") < 0.25
