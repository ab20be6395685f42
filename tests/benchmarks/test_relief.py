"""The comparison of ways to relieve hot nodes: what must hold in every arm, and of detection."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.relief import ARMS, AVERAGE, TRACES, arm_of, detection_minutes
from benchmarks.relief_arms import LIMITS, _Detector
from benchmarks.simulated_cluster import (
    HIGH,
    HOUR,
    LEAVE_WINDOWS,
    RESOURCES,
    Cluster,
    Measured,
    Scenario,
    load_of,
)
from benchmarks.usage_series import Recording, read_recording
from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.processors.hot_nodes.node_windows import Stream, hot_window

SMALL = Scenario(nodes=5, pods=20, warm_up_hours=0, hours=1, load=0.45)
SPAN_WINDOWS = 10
UNLIMITED = "LowNodeUtilization"


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Requests that say nothing about usage make hot and cool nodes."""
    recorded = read_recording(TRACES)
    request = np.array([100.0, 2.0**28])
    return recorded._replace(
        series=[series._replace(request=request) for series in recorded.series]
    )


class Watched:
    """A run of an arm, with what was measured in each window and the evictions after it."""

    def __init__(self, recording: Recording, name: str, windows: int = 60) -> None:
        arm, policy = arm_of(name, 0)
        self.cluster = Cluster(SMALL, load_of(recording, SMALL, 0), policy, 0)
        self.cluster.warm_up()
        self.measured: list[Measured] = []
        self.alerts: list[list[bool]] = []
        for _ in range(windows):
            self.measured.append(self.cluster.pass_window())
            self.alerts.append(alerts(self.cluster))
            arm.act(self.cluster, self.measured[-1])


@pytest.fixture(scope="module", params=ARMS)
def watched(request: pytest.FixtureRequest, recording: Recording) -> Watched:
    return Watched(recording, request.param)


def test_every_pod_is_on_one_node_or_waits(watched: Watched) -> None:
    cluster = watched.cluster
    places = [pod.place for pod in cluster.pods.values()]
    assert sorted([*places, *cluster.pending]) == [*range(SMALL.pods)]
    for pod in cluster.pods.values():
        assert cluster.table.pods.row_of(pod.record.uid) is not None
    for name in cluster.names:
        on_node = [pod for pod in cluster.pods.values() if pod.node == name]
        cpu = sum(pod.record.requests.cpu_millicores or 0 for pod in on_node)
        assert cpu <= cluster.load.capacity[0]


def test_an_evicted_pod_runs_nowhere_for_a_while(watched: Watched) -> None:
    cluster = watched.cluster
    evicted_at = {each.pod.uid: each.at for each in cluster.evictions}
    assert len(evicted_at) == len(cluster.evictions)
    for measured in watched.measured:
        for pod in measured.pods:
            at = evicted_at.get(pod.record.uid, measured.end)
            assert measured.end <= at + 30 * LEAVE_WINDOWS + 10 * 2


def test_measured_usage_is_that_of_the_pods(watched: Watched) -> None:
    for measured in watched.measured:
        used = np.stack(
            [np.bincount(measured.node, np.nan_to_num(measured.usage[:, r]), SMALL.nodes)
             for r in range(2)], axis=1,
        )  # fmt: skip
        assert (used + measured.system <= measured.node_usage * 1.000001).all()
        assert (measured.node_usage[:, 0] <= watched.cluster.load.capacity[0] * 1.000001).all()


def test_no_node_loses_more_pods_at_once_than_allowed(recording: Recording) -> None:
    cluster = Cluster(SMALL, load_of(recording, SMALL, 0), AVERAGE, 0)
    cluster.warm_up()
    cluster.pass_window()
    nodes = Counter(pod.node for pod in cluster.pods.values())
    fullest, count = nodes.most_common(1)[0]
    assert count > 2
    uids = [uid for uid, pod in cluster.pods.items() if pod.node == fullest]
    for uid in uids:
        if cluster.may_evict(uid, LIMITS, cluster.now):
            cluster.evict(uid, cluster.now)
    assert [cluster.is_leaving(uid) for uid in uids] == [True] * 2 + [False] * (count - 2)


def test_arms_of_a_seed_have_the_same_pods_and_lost_windows(recording: Recording) -> None:
    quiet, other = (Watched(recording, name) for name in ("nothing", UNLIMITED))
    assert other.cluster.evictions
    assert not quiet.cluster.evictions
    for first, second in zip(quiet.measured, other.measured, strict=True):
        assert (first.lost == second.lost).all()
    assert sum(measured.lost.sum() for measured in quiet.measured) > 0


def test_a_run_can_be_repeated(recording: Recording) -> None:
    first, second = (Watched(recording, "ours").cluster for _ in range(2))
    assert first.evictions
    assert first.evictions == second.evictions
    assert first.pods == second.pods


# -- detection


def alerts(cluster: Cluster) -> list[bool]:
    states = [cluster.table.snapshot(name).state for name in cluster.names]
    return [state is not None and bool(state.alerts) for state in states]


def test_alerts_open_within_debounce_and_one_window_of_the_crossing(recording: Recording) -> None:
    """The crossing is that of the average of the windows that arrived. Lost windows count neither
    for nor against the debounce."""
    watched = Watched(recording, "nothing", windows=HOUR)
    usage = np.array([measured.node_usage for measured in watched.measured])
    percent = 100.0 * usage / watched.cluster.load.capacity
    lost = np.array([measured.lost for measured in watched.measured])
    high = np.array([HIGH[name] for name in RESOURCES])
    opened = 0
    for node in range(SMALL.nodes):
        above, was_open = np.zeros(2, np.int64), False
        for end in range(1, len(percent) + 1):
            first = max(end - SPAN_WINDOWS, 0)
            known = first + np.flatnonzero(~lost[first:end, node])
            if not lost[end - 1, node] and end - known[0] >= SPAN_WINDOWS / 2:
                above = np.where(percent[known, node].mean(axis=0) > high, above + 1, 0)
            is_open = watched.alerts[end - 1][node]
            if (above > AVERAGE.open_windows).any():
                assert is_open
            if is_open and not was_open:
                assert (above >= AVERAGE.open_windows).any()
                opened += 1
            was_open = is_open
    assert opened


def test_noise_around_a_threshold_opens_at_most_one_alert() -> None:
    chance = np.random.default_rng(1)
    policy = HotNodePolicy(high_percent={"cpu": HIGH["cpu"]})
    stream = Stream()
    for end in range(1, 6 * HOUR):
        cpu = HIGH["cpu"] * (1.0 + 0.02 * float(chance.standard_normal()))
        if chance.uniform() >= 0.05:
            stream.apply(hot_window(end, cpu, policy=policy))
    opened = [transition for _, transition in stream.transitions() if transition == "opened"]
    assert len(opened) <= 1


def test_detection_is_timed_from_the_first_hot_window() -> None:
    hot = np.zeros((100, 2), np.bool_)
    found = np.zeros((100, 2), np.bool_)
    hot[30:60, 0] = True
    found[[10, 33, 40], 0] = True
    hot[50:52, 1] = True
    found[80, 1] = True  # long after the node was cool again
    assert [*detection_minutes(hot, found)] == [2.0]


def test_the_detector_of_koordinator_needs_one_more_sighting() -> None:
    detector = _Detector()
    seen = [detector.mark_abnormal(10.0 * cycle) for cycle in range(20)]
    assert seen == [False] * 5 + [True] * 7 + [False] * 5 + [True] * 3
