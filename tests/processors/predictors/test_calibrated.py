"""The predictor `calibrated`: steps of five minutes, Prod, and what is not known yet."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.errors import CheckpointError, PredictorError
from pipeline.kafka.producer import LARGEST_VALUE_BYTES
from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.limits import DEPARTED_BYTES, HISTORY_BYTES
from pipeline.processors.calibrated.node_pools import NodePools, horizon_of
from pipeline.processors.calibrated.pod_history import history_bytes
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.model import day_slots
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.learner import MAX_PODS
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.state_codec import decode, encode
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.workloads import NO_WORKLOAD, Workload
from tests.processors.predictors.answers import answer, learned
from tests.processors.windows import GIB, Pod, window

MIDNIGHT_MS = 1_700_006_400_000
MINUTE_MS = 60_000
PROD = ENTITIES.index("prod")
HORIZON_SECONDS = 21_600.0
MARGIN = 1.1
NAMES = ("a", "b", "c")
WORKLOADS = (Workload("shop", "Deployment", "web"), NO_WORKLOAD, None)


def minute(number: int, pods: Sequence[Pod], length: int = 1) -> NodeWindow:
    """The window that ends so many minutes after midnight."""
    end_ms = MIDNIGHT_MS + number * MINUTE_MS
    node = np.nansum([pod.usage for pod in pods], axis=0)
    made = window(0, pods, usage=(float(node[0]), float(node[1])))
    return replace(made, start_ms=end_ms - length * MINUTE_MS, end_ms=end_ms)


def usage_of(seed: int, minutes: int) -> FloatArray:
    """Cores of three pods in each minute."""
    cores: FloatArray = np.random.default_rng(seed).lognormal(-1.5, 0.5, (minutes, len(NAMES)))
    return cores


def pods_of(cores: FloatArray, **facts: Any) -> list[Pod]:
    return [
        Pod(name, (float(cores[i]), GIB / 4), **facts) for i, name in enumerate(NAMES[: len(cores)])
    ]


def minutes_of(cores: FloatArray, first: int = 1) -> list[NodeWindow]:
    return [minute(first + i, pods_of(row)) for i, row in enumerate(cores)]


def learned_risk(windows: Sequence[NodeWindow], risk: float = 0.1, **config: Any) -> Bank:
    config = {"horizon_seconds": HORIZON_SECONDS} | config
    return learned(windows, "calibrated", options={"calibrated": {"risk": risk}}, **config)


def prod(bank: Bank) -> dict[str, float]:
    """The terms of the cpu of Prod that are known, and its peak with the margin."""
    peaks = bank.peaks(["node-a"])[0].predictors["calibrated"]
    terms = {name: float(values[PROD, 0]) for name, values in peaks.terms.items()}
    known = {name: value for name, value in terms.items() if not np.isnan(value)}
    return known | {"peak": float(peaks.peaks[PROD, 0])}


def test_prod_has_the_peak_of_a_pool_of_five_minute_steps() -> None:
    cores = usage_of(1, 60 * 16)
    got = prod(learned_risk(minutes_of(cores)))
    steps = Horizon(round(HORIZON_SECONDS) // 300, 300)
    pool = CalibratedPool(steps, (0.1,), single_node=True)
    # The ids of pods seed the random futures.
    pools = NodePools(HORIZON_SECONDS, 0.1)
    ids, node = pools._ids_of(NAMES), np.zeros(3, np.int64)
    highest = np.zeros(3)
    for i, used in enumerate(1000.0 * cores.reshape(-1, 5, 3).max(axis=1)):
        highest = np.maximum(highest, used.astype(np.float32))
        requests = np.full(3, 1000.0)
        step = MIDNIGHT_MS // 300_000 + i
        limits = 4.0 * np.maximum(requests, np.maximum(highest, used))
        pool.observe(step, PodUsage(ids, node, used, requests, limits))
        if step % 3 == 0 or i == 0:
            expected = pool.predict()
    assert 0.0 < expected.peaks[0, 0] < 3000.0
    assert got["peak"] == pytest.approx(expected.peaks[0, 0] / 1000.0, rel=1e-9)
    assert got["outcomes"] == pytest.approx(pool.outcome_weights(node[:1])[0])
    assert got["requests"] == 3.0
    assert "percentile" not in got


def test_a_step_whose_last_window_is_missing_is_closed_by_the_next_one() -> None:
    rows = list(usage_of(2, 12 * 16))
    early = [minute(5 * i + 3, pods_of(row), length=3) for i, row in enumerate(rows)]
    idle = [minute(5 * i + 5, pods_of(0.0 * row), length=2) for i, row in enumerate(rows)]
    last = minute(5 * len(rows) + 1, pods_of(rows[0]))
    in_time = [one for pair in zip(early, idle, strict=True) for one in pair]
    late = learned_risk([*early, last])
    assert prod(late)["share"] < 1.0
    assert prod(late)["share"] == prod(learned_risk([*in_time, last]))["share"]


def test_before_the_first_step_prod_counts_its_requests() -> None:
    got = prod(learned_risk(minutes_of(usage_of(3, 2))))
    assert got["peak"] == pytest.approx(3.0)
    assert (got["requests"], got["outcomes"], got["arrived"]) == (0.0, 0.0, 3.0)


def test_a_pod_that_came_since_the_last_step_counts_its_request() -> None:
    cores = usage_of(4, 60 * 7)
    before = prod(learned_risk(minutes_of(cores)))
    newcomer = Pod("d", (0.1, GIB), requests=(2000.0, GIB))
    after = prod(
        learned_risk([*minutes_of(cores), minute(len(cores) + 1, [*pods_of(cores[0]), newcomer])])
    )
    assert after["arrived"] == 2.0
    assert after["peak"] == pytest.approx(before["peak"] + 2.0)
    assert after["percentile"] > 0.0


def test_a_pod_without_a_request_counts_its_highest_usage() -> None:
    cores = usage_of(5, 60 * 7)
    windows = [minute(i + 1, pods_of(row, requests=(0.0, 0.0))) for i, row in enumerate(cores)]
    got = prod(learned_risk(windows))
    assert got["requests"] == pytest.approx(cores.max(axis=0).sum(), rel=1e-6)
    assert got["peak"] >= 0.5 * cores.sum(axis=1).max()


@pytest.mark.parametrize("request_amount", [0.0, np.nan])
def test_a_pod_without_a_request_counts_what_its_workload_used(request_amount: float) -> None:
    pools = NodePools(HORIZON_SECONDS, 0.1)
    web = (Workload("shop", "Deployment", "web"),)
    prod, none = np.ones(1, np.bool_), np.full((1, 2), request_amount)
    asked = []
    for step, (uid, cores) in enumerate([("a", 2.0), ("a", 0.5), ("b", 0.1), ("c", 3.0)]):
        pools.open_step = 3 * step
        peaks = pools.close((uid,), web, prod, ~prod, none, np.array([[cores, GIB]]))
        assert peaks is not None
        asked.append(peaks.requests[0])
    assert asked == pytest.approx([2.0, 2.0, 2.0, 3.0])


def test_unknown_usage_of_unknown_requests_is_unknown() -> None:
    nothing = Pod("a", (np.nan, np.nan), requests=(np.nan, np.nan))
    bank = learned_risk([minute(i + 1, [nothing]) for i in range(20)])
    assert np.isnan(prod(bank)["peak"])


def test_the_requests_of_young_pods_are_not_added_again() -> None:
    young = [minute(i + 1, pods_of(row, age=60.0)) for i, row in enumerate(usage_of(6, 60 * 7))]
    peaks = learned_risk(young).peaks(["node-a"])[0].predictors["calibrated"]
    assert peaks.reclaimable.surplus.tolist() == [0.0, 0.0]
    assert peaks.reclaimable.amount[0] > 0.0


def test_other_entities_are_those_of_percentile() -> None:
    windows = minutes_of(usage_of(7, 60))
    both = answer(
        windows, "calibrated", "percentile", horizon_seconds=HORIZON_SECONDS
    ).predictors  # fmt: skip
    others = [i for i in range(len(ENTITIES)) if i != PROD]
    for name in ("raw", "pod_raw"):
        mine, theirs = (getattr(both[key], name) for key in ("calibrated", "percentile"))
        if name == "raw":
            mine, theirs = mine[others], theirs[others]
        np.testing.assert_array_equal(mine, theirs)


def test_another_risk_keeps_what_was_learned() -> None:
    first = learned_risk(minutes_of(usage_of(8, 60 * 16)), risk=0.1)
    second = learned_risk([], risk=0.01)
    second.restore("node-a", first.encode_state("node-a"))
    quarter = minutes_of(usage_of(9, 15), first=60 * 16 + 1)
    first.apply(quarter)
    second.apply(quarter)
    before, after = prod(first), prod(second)
    # It dropped the predictions whose horizon ended since.
    assert after["outcomes"] == pytest.approx(before["outcomes"], rel=0.05)
    assert after["outcomes"] > 1.0
    assert after["peak"] > before["peak"]


def test_another_horizon_starts_anew() -> None:
    first = learned_risk(minutes_of(usage_of(8, 60 * 16)))
    second = learned_risk([], horizon_seconds=2 * HORIZON_SECONDS)
    second.restore("node-a", first.encode_state("node-a"))
    second.apply(minutes_of(usage_of(9, 15), first=60 * 16 + 1))
    assert prod(second)["outcomes"] == 0.0


def test_damaged_state_is_refused() -> None:
    bank = learned_risk(minutes_of(usage_of(8, 60)))
    state = decode(bank.encode_state("node-a"))
    (packed,) = msgspec.msgpack.decode(state.node_columns["calibrated_pools"])
    for damaged in (b"", packed[:-9], b"\x80", packed.replace(b"open_step", b"open_stop")):
        column = msgspec.msgpack.encode([damaged])
        columns = state.node_columns | {"calibrated_pools": column}
        broken = encode(msgspec.structs.replace(state, node_columns=columns))
        with pytest.raises(CheckpointError, match=r"'calibrated_pools'.* is damaged"):
            bank.restore("node-a", broken)
    assert prod(bank)


@pytest.mark.parametrize("horizon_seconds", [HORIZON_SECONDS, 86_400.0])
def test_the_state_of_the_most_pods_fits_into_a_record(horizon_seconds: float) -> None:
    random = np.random.default_rng(10)
    uids = [f"0a1b2c3d-{i:04x}-4444-8888-{i:012x}" for i in range(MAX_PODS)]
    asked = random.permutation(MAX_PODS) + 1.0
    options = {"calibrated": {"risk": 0.1}}
    bank = learned([], "calibrated", "percentile", options=options, horizon_seconds=horizon_seconds)
    for i in range(48):
        cores = random.lognormal(-1.5, 0.5, (MAX_PODS, 2))
        # All pods of the first steps end.
        names = [f"early-{uid}" for uid in uids] if i < 3 else uids
        pods = [
            Pod(uid, (float(c), float(m) * GIB), requests=(float(asked[j]), GIB))
            for j, (uid, (c, m)) in enumerate(zip(names, cores, strict=True))
        ]
        bank.apply([minute(5 * i + 5, pods, length=5)])
    # A whole day, and whole histories, as noisy as these hours.
    node = bank.node_models["node-a"]
    day = random.lognormal(-1.5, 0.5, (2, MAX_PODS * day_slots.SLOTS)) * [[1.0], [GIB]]
    codes = day_slots.encode(day, np.arange(2)[:, None]).reshape(2, MAX_PODS, -1)
    bank.store.models.store["recent"][node.pod_rows] = np.moveaxis(codes, 0, 1)
    pools = bank.store.slots["calibrated_pools"][node.slot]
    for pool in pools._pools:
        for rows in (pool._state.pods, pool._state.departed):
            for ring in ("maxima", "at_node_peak"):
                values = rows[ring]
                values[...] = random.lognormal(5.0, 0.5, values.shape)
    # The pods with the largest requests have a history.
    bytes_of_pod = 2 * history_bytes(horizon_of(horizon_seconds))
    kept, departed = HISTORY_BYTES // bytes_of_pod, DEPARTED_BYTES // bytes_of_pod
    assert kept >= 96
    largest = pools._ids_of(tuple(uids))[asked > MAX_PODS - kept]
    assert pools._pools[0].knows(largest).all()
    assert [pool.size[0] for pool in pools._pools] == [kept, kept]
    assert [len(pool._state.departed) for pool in pools._pools] == [departed, departed]
    assert 0.9 < len(pools.pack()) / (HISTORY_BYTES + DEPARTED_BYTES) < 1.1
    # The others count their requests.
    assert prod(bank)["arrived"] == pytest.approx(asked[asked <= MAX_PODS - kept].sum() / 1000.0)
    assert len(bank.encode_state("node-a")) < LARGEST_VALUE_BYTES


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [(3600.0, "shorter than 21600 s"), (172_800.0, "longer than a day"), (21_700.0, "a multiple")],
)
def test_a_horizon_that_it_does_not_have_is_refused(seconds: float, problem: str) -> None:
    with pytest.raises(PredictorError, match=f"model.horizon_seconds: .*{problem}"):
        learned_risk([], horizon_seconds=seconds)


def test_a_member_of_a_maximum_has_pools_of_its_own() -> None:
    windows = minutes_of(usage_of(11, 60 * 8))
    options: dict[str, dict[str, Any]] = {
        "max": {"members": ["calibrated"], "options": {"calibrated": {"risk": 0.3}}},
        "calibrated": {"risk": 0.3},
    }
    config: dict[str, Any] = {"options": options, "horizon_seconds": HORIZON_SECONDS}
    first = learned(windows[:250], "max", "calibrated", **config)
    bank = learned([], "max", "calibrated", **config)
    bank.restore("node-a", first.encode_state("node-a"))
    bank.apply(windows[250:])
    peaks = bank.peaks(["node-a"])[0].predictors
    assert peaks["max"].terms["calibrated.outcomes"][PROD, 0] > 0.0
    np.testing.assert_array_equal(peaks["max"].raw, peaks["calibrated"].raw)
    with pytest.raises(PredictorError, match=r"model.horizon_seconds: .*calibrated"):
        learned([], "max", options={"max": options["max"]}, horizon_seconds=3600.0)


def rollout(known: bool, request: float = 2000.0) -> float:
    """By how much the peak of Prod grows when all pods, which requested 2000, are replaced by
    others that have this request, of the same workloads if `known`."""
    cores, hours = usage_of(12, 60 * 24), 60 * 22
    windows = [minute(i + 1, pods_of(row, requests=(2000.0, GIB))) for i, row in enumerate(cores)]
    workloads = [Workload("shop", "StatefulSet", uid) for uid in NAMES] if known else ()
    for i in range(hours, hours + 20):
        pods = pods_of(cores[i], requests=(request, GIB))
        windows[i] = minute(i + 1, [replace(pod, uid=f"new-{pod.uid}") for pod in pods])
    windows = [replace(window, pod_workloads=workloads) for window in windows]
    bank = learned_risk(windows[:hours])
    before = prod(bank)["peak"]
    bank.apply(windows[hours : hours + 20])
    return prod(bank)["peak"] / before


def test_a_rollout_of_known_workloads_keeps_the_peak() -> None:
    assert 0.97 < rollout(known=True) < 1.03 < rollout(known=False)


def test_a_rollout_that_asks_for_twice_as_much_does_not_double_the_peak() -> None:
    assert 1.0 < rollout(known=True, request=4000.0) < 1.4


def churning(seed: int, minutes: range, node: str) -> list[NodeWindow]:
    """Windows of five minutes whose pods come and go, some of them unknown or absent."""
    random = np.random.default_rng(seed)
    windows, numbers = [], [*range(4)]
    for end in minutes:
        numbers = [n if random.random() > 0.02 else max(numbers) + 1 for n in numbers]
        numbers = [*dict.fromkeys(numbers)]
        pods = [
            Pod(
                f"pod-{n}",
                (float(random.lognormal(-1.5, 0.5)), float(random.choice([GIB, np.nan]))),
            )
            for n in numbers
        ]
        workloads = [WORKLOADS[int(pod.uid.split("-")[1]) % len(WORKLOADS)] for pod in pods]
        if random.random() > 0.05:
            windows.append(replace(minute(end, pods, length=5), node=node, pod_workloads=workloads))
    return windows


@pytest.mark.parametrize("seed", range(2))
def test_kills_and_restores_at_any_moment_change_nothing(seed: int) -> None:
    minutes = range(5, 60 * 18, 5)
    nodes = [churning(seed + i, minutes, f"node-{i}") for i in range(2)]
    windows = sorted((one for node in nodes for one in node), key=lambda one: one.end_ms)
    undisturbed = learned_risk(windows)
    random = np.random.default_rng(seed)
    cuts = sorted(random.integers(1, len(windows), 5).tolist())
    bank = learned_risk(windows[: cuts[0]])
    for first, last in pairwise([*cuts, len(windows)]):
        restored = learned_risk([])
        for node in bank.nodes:
            restored.restore(node, bank.encode_state(node))
        bank = restored
        # A node's windows that its checkpoint has come again in a replay.
        bank.apply(windows[max(first - 3, 0) : last])
    for node in undisturbed.nodes:
        assert bank.encode_state(node) == undisturbed.encode_state(node)
        outcomes = bank.peaks([node])[0].predictors["calibrated"].terms["outcomes"]
        assert outcomes[PROD, 0] > 0.0
