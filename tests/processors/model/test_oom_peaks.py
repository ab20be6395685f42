"""An OOM kill counts as the peak of memory that the Vertical Pod Autoscaler makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import MAX_USAGE, VPA, ModelConfig
from pipeline.processors.model.oom_peaks import WorkloadOomKills, in_total, needed_bytes
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.recommendation import Recommendation, WorkloadSums
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD
from tests.processors.model.test_workload_models import (
    DAY,
    DB,
    HOUR,
    WEB,
    listed,
    quantile,
    row_of,
    samples,
    slow_weights,
    weights,
)
from tests.processors.reference import SlowHistogram
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod

MIB = float(1 << 20)
DAY_MS = 86_400_000
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=80)


def with_kills(
    end: int, uids: Sequence[str], *kills: OomKill, memory: float = GIB, node: str = "a"
) -> NodeWindow:
    """The `end`-th window of a node, with pods of WEB and these kills."""
    result = listed(end, [Pod(uid, (1.0, memory)) for uid in uids], [WEB] * len(uids), node)
    result.oom_kills = kills
    return result


def kill(end: int, pod: str = "p", request: float = 0.0, before_ms: int = 1000) -> OomKill:
    """A kill of `pod` shortly before the `end`-th window ends."""
    killed_ms = START_MS + end * LENGTH_MS - before_ms
    return OomKill(pod=pod, killed_ms=killed_ms, request_bytes=request)


def recommended(bank: Bank) -> Recommendation:
    sums = WorkloadSums()
    for node in bank.nodes:
        sums.add(node, bank.encode_state(node))
    (recommendation,) = sums.recommendations()
    return recommendation


# -- the formula


@pytest.mark.parametrize(
    ("used_mib", "needed_mib"),
    [(0.0, 100.0), (100.0, 200.0), (500.0, 600.0), (501.0, 601.2), (1000.0, 1200.0)],
)
def test_a_kill_needs_a_fifth_or_100_mib_more(used_mib: float, needed_mib: float) -> None:
    assert needed_bytes(used_mib * MIB) == pytest.approx(needed_mib * MIB)


def test_what_is_needed_is_a_usage_that_models_accept() -> None:
    assert needed_bytes(2.0**63) == MAX_USAGE[1]


# Cases of `container_test.go` of the autoscaler's recommender: hour, MiB of usage, MiB of request
# of a kill, age of the kill in hours; then the peaks in the histogram.
Event = tuple[int, float | None, float | None, int]
VECTORS: dict[str, tuple[list[Event], list[float]]] = {
    "a fifth more": ([(0, None, 1000, 0)], [1200]),
    "100 MiB more": ([(0, None, 1, 0)], [101]),
    "smaller kills add nothing": (
        [(0, None, 1000, 0), (1, None, 999, 0), (2, None, 999, 0)], [1200],
    ),
    "a larger kill replaces the peak": (
        [(0, None, 1000, 0), (1, None, 999, 0), (2, None, 2000, 0)], [2400],
    ),
    "usage above the request": ([(0, 3000, 1000, 0)], [3600]),
    "a kill 30 hours old": ([(0, 1000, 1000, 30)], [1000]),
    "a kill in new 24 hours": ([(0, 2000, None, 0), (48, None, 1000, 0)], [2000, 2400]),
    "a kill before new 24 hours": ([(0, 100, None, 0), (24, 2000, 1000, 1)], [100, 2400]),
}  # fmt: skip


@pytest.mark.parametrize(("events", "peaks"), VECTORS.values(), ids=VECTORS.keys())
def test_the_cases_of_the_autoscaler_give_its_peaks(
    events: list[Event], peaks: list[float]
) -> None:
    bank = Bank(ModelConfig(expiration_seconds=1e9))
    for hour, usage, request, age_hours in events:
        kills = []
        if request is not None:
            ago_ms = age_hours * 3_600_000
            kills = [kill(hour * HOUR, request=request * MIB, before_ms=ago_ms)]
        memory = np.nan if usage is None else usage * MIB
        bank.apply([with_kills(hour * HOUR, "p", *kills, memory=memory)])
    buckets = VPA.layouts[1].digitize(np.array(peaks) * MIB).tolist()
    assert np.flatnonzero(weights(bank, 1)).tolist() == sorted(buckets)
    assert samples(bank)[1] == len(peaks)


@dataclass
class SlowPod:
    """The autoscaler's `ContainerState` of memory, as its source describes it: one peak for each
    interval, and peaks of kills apart from those of usage."""

    window_end_ms: int = 0
    memory_peak: float = 0.0
    oom_peak: float = 0.0
    killed_ms: int = -1
    peaks: dict[int, float] = field(default_factory=dict)

    def add(self, time_ms: int, value: float, is_oom: bool = False) -> None:
        self.window_end_ms = self.window_end_ms or time_ms
        if time_ms >= self.window_end_ms:
            while self.window_end_ms <= time_ms:
                self.window_end_ms += DAY_MS
            self.memory_peak = self.oom_peak = 0.0
        elif value <= max(self.memory_peak, self.oom_peak):
            return
        if is_oom:
            self.oom_peak = value
        else:
            self.memory_peak = value
        self.peaks[self.window_end_ms] = value

    def add_kill(self, killed_ms: int, request: float) -> None:
        used = Fraction(max(request, self.memory_peak))
        needed = max(used + 100 * 2**20, used * Fraction(6, 5))
        self.add(killed_ms, float(needed), is_oom=True)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 30, HOUR, 5 * HOUR, DAY // 2, DAY]),
        st.lists(st.tuples(st.sampled_from("pqr"), st.floats(1e7, 8 * GIB)), max_size=3,
                 unique_by=lambda sample: sample[0]),
        st.lists(st.tuples(st.sampled_from("pqrs"), st.integers(-600, 25 * 3600),
                           st.sampled_from([0.0, 300 * MIB, GIB, 6 * GIB])), max_size=2),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


@given(STEPS)
@LAWS
def test_peaks_are_those_of_the_autoscaler(
    steps: list[tuple[int, list[tuple[str, float]], list[tuple[str, int, float]]]],
) -> None:
    bank, slow, end = Bank(ModelConfig(expiration_seconds=1e9)), dict[str, SlowPod](), 0
    bank.apply([listed(0, [Pod("other", (1.0, GIB))], [WEB])])
    slow["other"] = SlowPod()
    slow["other"].add(START_MS, GIB)
    for steps_on, usage, ended in steps:
        end += steps_on
        end_ms = START_MS + end * LENGTH_MS
        kills = [
            OomKill(pod=uid, killed_ms=end_ms - 1000 * seconds, request_bytes=request)
            for uid, seconds, request in ended
        ]
        each = listed(end, [Pod(uid, (1.0, memory)) for uid, memory in usage], [WEB] * len(usage))
        each.oom_kills = kills
        bank.apply([each])
        for uid, memory in usage:
            slow.setdefault(uid, SlowPod()).add(end_ms, memory)
        for made in kills:
            pod, is_recent = slow.get(made.pod), end_ms - DAY_MS <= made.killed_ms <= end_ms
            if pod and is_recent and pod.killed_ms < made.killed_ms:
                pod.killed_ms = made.killed_ms
                pod.add_kill(made.killed_ms, made.request_bytes)
    expected = SlowHistogram(VPA.layouts[1].starts.tolist())
    for pod in slow.values():
        for window_end_ms, peak in pod.peaks.items():
            expected.add(peak, Fraction(2.0 ** ((window_end_ms - START_MS) / DAY_MS)))
    actual, shares = weights(bank, 1), slow_weights(expected)
    for bucket in {*np.flatnonzero(actual).tolist(), *shares}:
        # A weight below epsilon is 0; a subtraction may leave the last bits of one.
        assert actual[bucket] / actual.sum() == pytest.approx(
            shares.get(bucket, 0.0), rel=1e-9, abs=1e-4
        )
    assert samples(bank)[1] == sum(len(pod.peaks) for pod in slow.values())


# -- how long, and how much


def test_recommendation_rises_with_a_kill_and_comes_back_within_days() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(end, "p") for end in range(0, 3 * DAY, HOUR)])
    before = recommended(bank)
    assert before.oom_kills is None
    bank.apply([with_kills(3 * DAY, "p", kill(3 * DAY, request=2 * GIB))])
    after = recommended(bank)
    assert after.oom_kills == WorkloadOomKills(kill(3 * DAY).killed_ms, 1.2 * 2 * GIB, 1)
    # Target of a histogram with buckets of five percent, with 15 percent on top.
    assert before.memory.target < 1.3 * GIB
    assert 1.15 * 2.4 * GIB <= after.memory.target < 1.3 * 2.4 * GIB
    assert after.cpu.target == before.cpu.target
    days = 0
    while recommended(bank).memory.target > before.memory.target:
        days += 1
        bank.apply([with_kills((3 + days) * DAY, "p")])
    # A day's peak halves in weight each day, and the target is the 0.9 quantile.
    assert 3 <= days <= 5


def test_a_loop_of_a_thousand_kills_counts_as_one() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p", memory=300 * MIB)])
    bank.apply([with_kills(1, "p", kill(1, request=GIB), memory=300 * MIB)])
    first = quantile(bank, 1)
    for end in range(2, 1001):
        bank.apply([with_kills(end, "p", kill(end, request=GIB), memory=300 * MIB)])
    assert quantile(bank, 1) == first < 1.3 * GIB
    kills = recommended(bank).oom_kills
    assert kills == WorkloadOomKills(kill(1000).killed_ms, 1.2 * GIB, 1000)
    assert len(bank.node_models["a"].pod_oom_kills) == 1


def test_a_higher_request_is_bumped_once_more() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1, request=GIB))])
    bank.apply([with_kills(2, "p", kill(2, request=2 * GIB))])
    assert recommended(bank).oom_kills == WorkloadOomKills(kill(2).killed_ms, 2.4 * GIB, 2)


def test_usage_above_the_peak_of_a_kill_replaces_it() -> None:
    bank = Bank(ModelConfig())
    bank.apply(
        [with_kills(0, "p"), with_kills(1, "p", kill(1)), with_kills(2, "p", memory=4 * GIB)]
    )
    assert np.count_nonzero(weights(bank, 1)) == 1
    assert quantile(bank, 1) > 4 * GIB
    bank.apply([with_kills(3, "p", kill(3))])
    assert recommended(bank).oom_kills == WorkloadOomKills(kill(3).killed_ms, 4.8 * GIB, 2)


# -- which kills count


@pytest.mark.parametrize(
    "which",
    [
        kill(10, before_ms=-1), kill(10, before_ms=DAY_MS + 1), kill(10, pod="unknown"),
        kill(10, pod="bare"), kill(10, before_ms=-(10**12)),
    ],
    ids=["future", "late", "pod-without-model", "pod-without-workload", "absurd"],
)  # fmt: skip
def test_a_kill_that_does_not_count_changes_nothing(which: OomKill) -> None:
    states = []
    for kills in ((), (which,)):
        bank = Bank(ModelConfig())
        each = listed(10, [Pod("bare", (1.0, GIB)), Pod("p", (1.0, GIB))], [NO_WORKLOAD, WEB])
        each.oom_kills = kills
        bank.apply([each])
        states.append(bank.encode_state("a"))
    assert states[0] == states[1]


def test_a_kill_that_windows_repeat_counts_once() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1))])
    once = recommended(bank).oom_kills, weights(bank, 1).tolist()
    # Also an older one, and where the usage rose meanwhile.
    bank.apply([with_kills(2, "p", kill(1), kill(1, before_ms=2000), kill(1))])
    assert (recommended(bank).oom_kills, weights(bank, 1).tolist()) == once
    bank.apply([with_kills(3, "p", kill(1), memory=1.1 * GIB)])
    assert (recommended(bank).oom_kills, weights(bank, 1).tolist()) == once


def test_a_kill_counts_in_the_first_window_that_teaches() -> None:
    bank = Bank(ModelConfig())
    short = with_kills(1, "p", kill(1))
    short.coverage = 0.1
    bank.apply([with_kills(0, "p"), short])
    assert recommended(bank).oom_kills is None
    bank.apply([with_kills(2, "p", kill(1))])
    assert recommended(bank).oom_kills == WorkloadOomKills(kill(1).killed_ms, 1.2 * GIB, 1)


def test_a_pod_that_ended_counts_and_one_without_a_sample_too() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p", memory=np.nan), with_kills(1, "", kill(1, request=GIB))])
    assert recommended(bank).oom_kills == WorkloadOomKills(kill(1).killed_ms, 1.2 * GIB, 1)
    assert samples(bank)[1] == 1
    assert quantile(bank, 1) > 1.2 * GIB


def test_a_pod_that_changes_its_workload_takes_no_kill_along() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1))])
    other = listed(2, [Pod("p", (1.0, GIB))], [DB])
    other.oom_kills = [kill(1)]
    bank.apply([other])
    assert bank.node_models["a"].workload_oom_kills.keys() == {WEB}
    assert quantile(bank, 1, DB) < 1.2 * GIB


# -- state


def test_kills_on_several_nodes_add_up_in_any_order() -> None:
    first, second = WorkloadOomKills(5, 2.0, 3), WorkloadOomKills(7, 1.0, 4)
    assert in_total(first, second) == in_total(second, first) == WorkloadOomKills(7, 1.0, 7)
    bank = Bank(ModelConfig())
    for node, end in (("a", 3), ("b", 2)):
        bank.apply([with_kills(0, "p", node=node), with_kills(end, "p", kill(end), node=node)])
    assert recommended(bank).oom_kills == WorkloadOomKills(kill(3).killed_ms, 1.2 * GIB, 2)


def test_kills_survive_a_restart_and_the_departure_of_the_node() -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1))])
    state = bank.encode_state("a")
    restored = Bank(ModelConfig())
    restored.restore("a", state)
    assert restored.encode_state("a") == state
    # The same windows once more, as after a restart of the join.
    for each in (bank, restored):
        each.apply([with_kills(2, "p", kill(1)), with_kills(3, "p", kill(3))])
    assert restored.encode_state("a") == bank.encode_state("a")
    assert bank.node_models["a"].workload_oom_kills[WEB].kills == 2
    departed = bank.encode_workloads("a")
    sums = WorkloadSums()
    sums.add("a", departed or b"")
    (recommendation,) = sums.recommendations()
    assert recommendation.oom_kills == recommended(bank).oom_kills


def test_kills_are_forgotten_with_pod_and_workload_and_after_eight_days() -> None:
    bank = Bank(ModelConfig(expiration_seconds=3600.0))
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1))])
    node = bank.node_models["a"]
    bank.apply([with_kills(1 + 2 * HOUR, "q"), with_kills(2 + 2 * HOUR, "q")])
    assert (node.pod_oom_kills, [*node.workload_oom_kills]) == ({}, [WEB])
    # Once an hour the node looks for outdated ones.
    bank.apply([with_kills(8 * DAY + end, "q") for end in range(HOUR + 2)])
    assert (node.workload_oom_kills, [*node.workload_rows]) == ({}, [WEB])
    bank.apply([with_kills(9 * DAY, "q", kill(9 * DAY, "q"))])
    assert [*node.workload_oom_kills] == [WEB]
    bank.apply([listed(18 * DAY + end, [], []) for end in range(HOUR + 2)])
    assert (node.workload_oom_kills, node.workload_rows) == ({}, {})


OPTIONAL = {"pod_oom_kills", "workload_oom_kills"}


def test_a_state_without_kills_is_read_by_both_releases() -> None:
    """A checkpoint of the release before has no such fields; that release ignores them."""
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p"), with_kills(1, "p", kill(1))])
    state = state_codec.decode(bank.encode_state("a"))
    fields = [each for each in msgspec.structs.fields(state) if each.name not in OPTIONAL]
    before = msgspec.defstruct(
        "Before",
        [(each.name, each.type) for each in fields],
        kw_only=True,
    )
    rolled_back = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=before)
    assert all(getattr(rolled_back, each.name) == getattr(state, each.name) for each in fields)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(rolled_back), type=state_codec.ModelState)
    restored = Bank(ModelConfig())
    restored.restore("a", state_codec.encode(read))
    assert row_of(restored) >= 0
    assert recommended(restored).memory == recommended(bank).memory
    assert recommended(restored).oom_kills is None


@pytest.mark.parametrize(
    "fields",
    [
        {"pod_oom_kills": {"other": (1, 2, 3.0, 4.0)}},
        {"workload_oom_kills": ((DB, WorkloadOomKills(1, 2.0, 3)),)},
    ],
)
def test_kills_of_nobody_are_refused(fields: dict[str, object]) -> None:
    bank = Bank(ModelConfig())
    bank.apply([with_kills(0, "p")])
    state = state_codec.decode(bank.encode_state("a"))
    damaged = state_codec.encode(msgspec.structs.replace(state, **fields))
    with pytest.raises(CheckpointError, match="OOM kills of no model"):
        Bank(ModelConfig()).restore("a", damaged)
    with pytest.raises(CheckpointError, match="OOM kills of no model"):
        WorkloadSums().add("a", damaged)
