"""The model of a workload has all its pods, past and present, as the autoscaler adds them up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.model import state_codec, workload_models
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import quantiles
from pipeline.processors.model.model_config import VPA, ModelConfig
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD, Workload
from tests.processors.reference import SlowHistogram
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, window

WEB, DB = Workload("shop", "Deployment", "web"), Workload("shop", "StatefulSet", "db")
HOUR = 3_600_000 // LENGTH_MS
DAY = 24 * HOUR
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)

Workloads = Sequence[Workload | None]


def listed(end: int, pods: Sequence[Pod], workloads: Workloads, node: str = "a") -> NodeWindow:
    """The `end`-th window of a node, with the workload of each of its pods."""
    result = window(end, pods, node=node)
    result.pod_workloads = workloads
    return result


def of_web(end: int, *uids: str, cpu: float = 1.0, memory: float = GIB) -> NodeWindow:
    return listed(end, [Pod(uid, (cpu, memory)) for uid in uids], [WEB] * len(uids))


def row_of(bank: Bank, workload: Workload = WEB, node: str = "a") -> int:
    return bank.node_models[node].workload_rows[workload]


def samples(bank: Bank, workload: Workload = WEB) -> list[int]:
    """The number of cpu samples and of memory peaks, and of pods ever seen."""
    models, row = bank.store.workloads.models, row_of(bank, workload)
    return [*models.samples[row].tolist(), int(models.store["pods"][row])]


def weights(bank: Bank, resource: int, workload: Workload = WEB) -> np.ndarray:
    """The weights of the filled buckets, relative to the reference."""
    row = np.array([row_of(bank, workload)])
    return bank.store.workloads.models.histograms[resource].dense(row)[0]


def quantile(bank: Bank, resource: int, workload: Workload = WEB) -> float:
    layout = VPA.layouts[resource]
    return float(quantiles(weights(bank, resource, workload)[None], layout, [0.9])[0, 0])


# -- the formulas


@dataclass
class SlowPod:
    """The memory peak of a pod's present 24 hours, as the autoscaler's container state has it."""

    end_ms: int = 0
    peak: float = 0.0


class SlowWorkload:
    """The autoscaler's aggregation once more: one sample after the other, exact weights.

    Weights are relative to the first sample. Memory peaks are (end, pod) -> value, so that a higher
    peak of the same 24 hours replaces the lower one without any subtraction.
    """

    def __init__(self) -> None:
        self.cpu = SlowHistogram(VPA.layouts[0].starts.tolist())
        self.peaks: dict[tuple[int, str], float] = {}
        self.pods: dict[str, SlowPod] = {}

    def add(self, uid: str, end_ms: int, usage: tuple[float, float], request: float) -> None:
        cores = request / 1000 if request == request and request <= 1e6 else 0.0
        self.cpu.add(usage[0], Fraction(max(cores, 0.1)) * self._weight(end_ms))
        pod = self.pods.setdefault(uid, SlowPod(end_ms))
        if end_ms >= pod.end_ms:
            while pod.end_ms <= end_ms:
                pod.end_ms += 24 * 3_600_000
            pod.peak = usage[1]
        pod.peak = max(pod.peak, usage[1])
        self.peaks[pod.end_ms, uid] = pod.peak

    @property
    def memory(self) -> SlowHistogram:
        histogram = SlowHistogram(VPA.layouts[1].starts.tolist())
        for (end_ms, _), peak in self.peaks.items():
            histogram.add(peak, self._weight(end_ms))
        return histogram

    @staticmethod
    def _weight(time_ms: int) -> Fraction:
        return Fraction(2.0 ** ((time_ms - START_MS) / (24 * 3_600_000)))


def slow_weights(histogram: SlowHistogram) -> Mapping[int, float]:
    """The share of each filled bucket."""
    total = sum((weight for _, weight in histogram.samples), Fraction(0))
    buckets = {bucket for bucket, _ in histogram.samples}
    return {
        each: float(sum(w for bucket, w in histogram.samples if bucket == each) / total)
        for each in buckets
    }


POD_SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 6 * DAY),
        st.sampled_from("pqr"),
        st.floats(0.0, 64.0),
        st.floats(1e6, 64 * GIB),
        st.sampled_from([0.0, 50.0, 250.0, 4000.0, np.nan, 2.0**63]),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@given(POD_SAMPLES)
@LAWS
def test_histograms_are_those_of_the_autoscaler(
    given_samples: list[tuple[int, str, float, float, float]],
) -> None:
    bank, slow = Bank(ModelConfig(expiration_seconds=1e9)), SlowWorkload()
    by_end = {(end, uid): rest for end, uid, *rest in given_samples}
    for end in sorted({end for end, _ in by_end}):
        pods = [
            Pod(uid, (cpu, memory), requests=(request, GIB))
            for (other, uid), (cpu, memory, request) in sorted(by_end.items())
            if other == end
        ]
        bank.apply([listed(end, pods, [WEB] * len(pods))])
        for pod in pods:
            slow.add(pod.uid, START_MS + end * LENGTH_MS, pod.usage, pod.requests[0])
    for resource, expected in enumerate((slow.cpu, slow.memory)):
        actual = weights(bank, resource)
        shares = slow_weights(expected)
        filled = np.flatnonzero(actual).tolist()
        # A weight below epsilon is 0; a subtraction may leave the last bits of one.
        for bucket in {*filled, *shares}:
            assert actual[bucket] / actual.sum() == pytest.approx(
                shares.get(bucket, 0.0), rel=1e-9, abs=1e-4
            )
    assert samples(bank)[:2] == [len(by_end), len(slow.peaks)]


def test_an_absurd_request_does_not_outweigh_the_other_pods() -> None:
    seven_exa_cores = 7 * 2.0**60 * 1000
    pods = [Pod("p", (0.1, GIB), requests=(seven_exa_cores, GIB)), Pod("q", (8.0, GIB))]
    bank = Bank(ModelConfig())
    bank.apply([listed(1, pods, [WEB, WEB])])
    assert quantile(bank, 0) > 8.0


# -- what survives


def test_rollout_and_scale_to_zero_keep_the_history() -> None:
    """New pods replace all old ones, and later there is none for four days."""
    bank = Bank(ModelConfig())
    rolled = [of_web(end, f"v{end // 300}-0", f"v{end // 300}-1") for end in range(1, 2 * DAY)]
    bank.apply(rolled)
    before = [quantile(bank, r) for r in range(2)]
    count, peaks, pods = samples(bank)
    assert (count, pods) == (2 * (2 * DAY - 1), 2 * (2 * DAY // 300 + 1))
    assert len(bank.node_models["a"].row_by_uid) < pods
    # Other pods of the node keep its windows coming.
    other = [Pod("x", (1.0, GIB))]
    bank.apply([listed(end, other, [DB]) for end in range(2 * DAY, 6 * DAY, HOUR)])
    assert bank.node_models["a"].row_by_uid.keys() == {"x"}
    assert [quantile(bank, r) for r in range(2)] == before
    bank.apply([of_web(6 * DAY, "back-0")])
    assert samples(bank) == [count + 1, peaks + 1, pods + 1]
    assert [quantile(bank, r) for r in range(2)] == before


def test_model_is_dropped_after_eight_half_lives_without_samples() -> None:
    bank = Bank(ModelConfig())
    bank.apply([of_web(0, "p"), listed(1, [], [])])
    bank.apply([listed(8 * DAY, [], [])])
    assert samples(bank) == [1, 1, 1]
    # Once an hour the node looks for outdated ones.
    bank.apply([listed(8 * DAY + end, [], []) for end in range(1, HOUR + 1)])
    assert not bank.node_models["a"].workload_rows
    assert not len(bank.store.workloads.models)


def test_another_machine_of_the_name_keeps_the_workloads_of_the_node() -> None:
    bank = Bank(ModelConfig())
    bank.apply([of_web(0, "p")])
    other = window(10, [], node="a", machine="machine-2")
    bank.apply([other])
    assert samples(bank) == [1, 1, 1]


# -- whose pod


def test_pod_of_an_unknown_workload_stays_with_the_last_known_one() -> None:
    bank = Bank(ModelConfig())
    pods = [Pod("p", (1.0, GIB))]
    bank.apply([listed(1, pods, [WEB]), listed(2, pods, [None]), listed(3, pods, [WEB])])
    assert samples(bank) == [3, 1, 1]


@pytest.mark.parametrize("workload", [None, NO_WORKLOAD], ids=["unknown", "none"])
def test_pod_without_a_workload_has_no_model(workload: Workload | None) -> None:
    bank = Bank(ModelConfig())
    bank.apply([listed(1, [Pod("p", (1.0, GIB))], [workload])])
    assert not bank.node_models["a"].workload_rows


def test_pod_that_loses_its_controller_trains_no_longer() -> None:
    bank, pods = Bank(ModelConfig()), [Pod("p", (1.0, GIB))]
    bank.apply([listed(1, pods, [WEB]), listed(2, pods, [NO_WORKLOAD])])
    assert samples(bank) == [1, 1, 1]


def test_pod_that_changes_its_workload_takes_no_peak_along() -> None:
    bank = Bank(ModelConfig())
    bank.apply([
        listed(1, [Pod("p", (1.0, GIB))], [WEB]), listed(2, [Pod("p", (1.0, 4 * GIB))], [DB]),
    ])  # fmt: skip
    assert (samples(bank), samples(bank, DB)) == ([1, 1, 1], [1, 1, 1])
    assert quantile(bank, 1) < 1.2 * GIB < 4 * GIB < quantile(bank, 1, DB)


def test_unknown_usage_is_no_sample() -> None:
    bank = Bank(ModelConfig())
    bank.apply([of_web(1, "p", cpu=np.nan, memory=7 * 2.0**60), of_web(2, "p", memory=np.nan)])
    assert samples(bank) == [1, 0, 1]


# -- bounds


def test_names_of_one_namespace_do_not_push_out_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload_models, "MAX_ABSENT", 10)
    bank = Bank(ModelConfig(expiration_seconds=0.0))
    bank.apply([of_web(0, "p"), listed(1, [Pod("q", (1.0, GIB))], [DB])])
    for end in range(2, 200):
        job = Workload("hostile", "Job", f"job-{end}")
        bank.apply([listed(end, [Pod(f"j{end}", (1.0, GIB))], [job])])
        assert len(bank.node_models["a"].workload_rows) <= 12
    assert {WEB, DB} <= bank.node_models["a"].workload_rows.keys()
    assert bank.store.workloads.dropped > 180
    assert len(bank.store.workloads.models) == len(bank.node_models["a"].workload_rows)


# -- state


@st.composite
def listings(draw: st.DrawFn) -> list[NodeWindow]:
    """Windows of two nodes whose pods come, go, change their workload and are OOM-killed."""
    windows, ends = [], {"a": 0, "b": 0}
    for _ in range(draw(st.integers(1, 12))):
        node = draw(st.sampled_from("ab"))
        ends[node] += draw(st.sampled_from([1, 1, 1, 20, DAY, 9 * DAY, 110 * DAY]))
        uids = draw(st.lists(st.sampled_from("pqrst"), unique=True, max_size=4))
        pods = [Pod(uid, (draw(st.floats(0.01, 8)), draw(st.floats(1e6, 8 * GIB)))) for uid in uids]
        of = [draw(st.sampled_from([WEB, DB, NO_WORKLOAD, None])) for _ in uids]
        each = listed(ends[node], pods, of, node)
        killed = draw(st.lists(st.sampled_from("pqrst"), max_size=2))
        each.oom_kills = [
            OomKill(pod=uid, killed_ms=each.end_ms - draw(st.integers(0, 10**8))) for uid in killed
        ]
        windows.append(each)
    return windows


@given(listings(), st.integers(0, 12), st.integers(1, 5))
@LAWS
def test_state_survives_a_restart_and_any_batches(
    windows: list[NodeWindow], restart: int, size: int
) -> None:
    bank, other = Bank(ModelConfig()), Bank(ModelConfig())
    for each in windows:
        bank.apply([each])
    for start in range(0, len(windows), size):
        if start <= restart < start + size:
            fresh = Bank(ModelConfig())
            for node in other.nodes:
                fresh.restore(node, other.encode_state(node))
            other = fresh
        other.apply(windows[start : start + size])
    assert bank.nodes == other.nodes
    for node in bank.nodes:
        assert bank.encode_state(node) == other.encode_state(node)


def test_forgotten_node_releases_the_rows_of_its_workloads() -> None:
    bank = Bank(ModelConfig())
    bank.apply([of_web(1, "p")])
    bank.forget("a")
    assert len(bank.store.workloads.models) == 0


def state_with(**fields: Any) -> bytes:
    bank = Bank(ModelConfig())
    bank.apply([listed(1, [Pod("p", (1.0, GIB)), Pod("q", (1.0, GIB))], [WEB, DB])])
    state = state_codec.decode(bank.encode_state("a"))
    if "workload_models" in fields:
        fields["workload_models"] = msgspec.structs.replace(
            state.workload_models, **fields["workload_models"]
        )
    return state_codec.encode(msgspec.structs.replace(state, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workloads": (DB, WEB)}, "not in ascending order"),
        ({"workloads": (WEB, WEB)}, "not in ascending order"),
        ({"workloads": (WEB,)}, "bytes instead of"),
        ({"pod_workloads": b""}, "0 bytes instead of"),
        ({"pod_workloads": b"\x02\0\0\0" * 10}, "a pod of an unknown workload"),
        ({"pod_workloads": b"\xfe\xff\xff\xff" * 10}, "a pod of an unknown workload"),
        ({"workload_models": {"samples": b""}}, "0 bytes instead of"),
        ({"workload_models": {"columns": {}}}, "0 bytes instead of"),
        ({"workload_models": {"buckets": (b"\xff\xff" * 2, b"\0\0" * 2)}}, "bucket outside"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(sorted(value)),
)
def test_invalid_state_of_workloads_is_refused(fields: dict[str, Any], message: str) -> None:
    bank = Bank(ModelConfig())
    with pytest.raises(CheckpointError, match=message):
        bank.restore("a", state_with(**fields))
    assert (bank.nodes, len(bank.workloads)) == ((), 0)
    bank.restore("a", state_with())
    assert len(bank.workloads) == 2
