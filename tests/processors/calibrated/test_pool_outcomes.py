"""Outcomes of nodes and of their pool: what a node states, how they add up, and what is refused."""

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.errors import RecordError
from pipeline.processors.calibrated import pooled_margins
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.outcome_quantiles import distribution_of, quantiles_of
from pipeline.processors.calibrated.outcome_tally import OutcomeTally
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.pool_fold import StatedOutcomes, margins, pool_outcomes
from pipeline.processors.calibrated.pooled_margins import BINS
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pool_outcomes import (
    PROBABILITIES,
    NodeOutcomes,
    OutcomeQuantiles,
    PoolOutcomesRecord,
    ResourceOutcomes,
)
from tests.processors.calibrated.streams import HORIZON, stationary

AT_MS, DAY_MS = 1_700_000_040_000, 86_400_000
RISK = 0.02


def node(
    z: float = 0.0, *, weight: float = 1.0, judged: float = 1.0, unspent: float = 0.0,
    running: float = 0.0, **kind: Any,
) -> NodeOutcomes:  # fmt: skip
    """The outcomes of a node whose cpu reached exp(z) times its shape."""
    distribution = OutcomeQuantiles(weight=weight, quantiles=(z,) * len(PROBABILITIES))
    cpu = ResourceOutcomes(
        distribution=distribution, judged_days=judged, unspent_days=unspent, running_days=running
    )
    return NodeOutcomes(**({"horizon_seconds": 86_400, "risk": RISK} | kind), cpu=cpu)


def pool_of(*nodes: NodeOutcomes, ages: tuple[float, ...] = ()) -> PoolOutcomesRecord:
    """The pool of nodes that stated their outcomes so many days ago."""
    days = itertools.chain(ages, itertools.repeat(0.0))
    stated = [
        StatedOutcomes(AT_MS - round(age * DAY_MS), own)
        for age, own in zip(days, nodes, strict=False)
    ]
    record = pool_outcomes("gold", stated)
    assert record is not None
    return record


def weight_of(*nodes: NodeOutcomes, ages: tuple[float, ...] = ()) -> float:
    """The weight of the outcomes of a pool."""
    distribution = pool_of(*nodes, ages=ages).cpu.distribution
    assert distribution is not None
    return distribution.weight


# -- quantiles


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_survive_a_round_trip(seed: int) -> None:
    random = np.random.default_rng(seed)
    histogram = np.zeros(BINS)
    np.add.at(histogram, random.integers(0, BINS, random.integers(1, 300)), random.random())
    quantiles = quantiles_of(histogram, PROBABILITIES)
    again = distribution_of(quantiles, PROBABILITIES)
    assert again.sum() == pytest.approx(1.0)
    assert quantiles_of(again, PROBABILITIES)[1:] == quantiles[1:]
    # At risks that are none of its probabilities, a margin lies between the two beside it.
    cumulated, exact = np.cumsum(again), np.cumsum(histogram) / histogram.sum()
    for low, high in itertools.pairwise(PROBABILITIES):
        middle = 0.5 * (low + high)
        bins = [np.searchsorted(exact, p - 1e-9) for p in (low, high)]
        assert bins[0] - 1 <= np.searchsorted(cumulated, middle - 1e-9) <= bins[1]


# -- a node


def test_a_tally_weighs_outcomes_as_margins_do_and_forgets_them() -> None:
    tally = OutcomeTally()
    tally.add(np.array([250]), 0.5)
    tally.fade(round(HORIZON.steps_of_days(pooled_margins.POOL_HALF_LIFE_DAYS)), HORIZON)
    tally.add(np.array([250]), 0.5)
    tally.add(np.array([BINS - 1]), 0.25)
    distribution = tally.record(0.0, 0.0, HORIZON).distribution
    assert distribution is not None
    assert distribution.weight == 1.0
    assert distribution.quantiles[PROBABILITIES.index(0.75)] == 0.0
    assert distribution.quantiles[-1] == pooled_margins.HIGHEST
    tally.fade(round(HORIZON.steps_of_days(60.0)), HORIZON)
    assert tally.record(0.0, 0.0, HORIZON).distribution is None


def test_a_tally_is_bounded_and_restored_exactly() -> None:
    """Two years of an outcome each step, all different: old ones are forgotten."""
    random, tally = np.random.default_rng(1), OutcomeTally()
    for _ in range(3000):
        tally.fade(6, HORIZON)
        tally.add(random.integers(0, BINS, 1), 0.25)
        tally.spend(6.0, float(random.normal(0.0, 0.1)))
    state = tally.state()
    assert len(state["bins"]) <= 8 * 300
    assert len(encode_json(pool_of(*[NodeOutcomes(
        horizon_seconds=86_400, risk=RISK, cpu=tally.record(0.0, 0.0, HORIZON),
        memory=tally.record(0.0, 0.0, HORIZON),
    )] * 5000))) < 2048  # fmt: skip
    other = OutcomeTally()
    other.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(state)))
    assert other.state() == state
    assert other.record(1.0, 0.5, HORIZON) == tally.record(1.0, 0.5, HORIZON)


def test_outcomes_of_an_idle_node_fade() -> None:
    pool = CalibratedPool(HORIZON, (RISK,), single_node=True)
    stream = list(stationary(1, 24 * 4, nodes=1))
    for step, usage in stream:
        pool.observe(step, usage)
        pool.predict()
    before = pool.outcomes()
    nothing, none = np.zeros(0, np.int64), np.zeros(0)
    for step in range(24 * 4, 24 * 34):
        pool.observe(step, PodUsage(nothing, nothing, none, none, none))
        pool.predict()
    after = pool.outcomes()
    assert before.distribution is not None
    assert after.distribution is None or after.distribution.weight < before.distribution.weight / 30
    assert after.judged_days < before.judged_days / 100


@pytest.mark.parametrize(
    "damage",
    [
        {"bins": b"1"}, {"weights": b""}, {"bins": np.array([5, 5]).tobytes()},
        {"bins": np.array([1, BINS]).tobytes()}, {"bins": np.array([-1, 2]).tobytes()},
        {"judged": None},
    ],
)  # fmt: skip
def test_a_damaged_tally_is_refused(damage: dict[str, Any]) -> None:
    tally = OutcomeTally()
    tally.add(np.array([3, 4]), 1.0)
    with pytest.raises((ValueError, TypeError)):
        OutcomeTally().restore(tally.state() | damage)


# -- a pool


def test_outcomes_of_a_pool_do_not_depend_on_their_order() -> None:
    nodes = [node(z / 100, weight=0.1 + z, unspent=z / 7, judged=1 + z / 3) for z in range(5)]
    ages = (0.0, 0.25, 0.5, 3.0, 0.0)
    pairs = list(zip(nodes, ages, strict=True))
    records = {
        encode_json(pool_of(*(own for own, _ in mixed), ages=tuple(age for _, age in mixed)))
        for mixed in itertools.permutations(pairs)
    }
    assert len(records) == 1


def test_a_repeated_record_changes_nothing() -> None:
    record = pool_of(node(0.1), node(-0.1))
    assert decode_json(PoolOutcomesRecord, encode_json(record)) == record
    assert pool_of(node(0.1), node(-0.1)) == record


def test_margins_of_a_pool_are_the_sum_of_its_nodes() -> None:
    record = pool_of(node(0.5, weight=1.0), node(-0.5, weight=3.0))
    histogram = margins(record.cpu)
    assert (record.nodes, record.memory.distribution) == (2, None)
    assert not margins(record.memory).any()
    cumulated = np.cumsum(histogram) / histogram.sum()
    assert np.searchsorted(cumulated, 0.7) == pooled_margins.bins_of(np.exp(np.array([-0.5])))[0]
    assert np.searchsorted(cumulated, 0.9) == pooled_margins.bins_of(np.exp(np.array([0.5])))[0]
    assert not histogram.flags.writeable


def test_many_nodes_weigh_as_much_as_one() -> None:
    """What happens on a day happens to many of them."""
    assert [weight_of(*[node(weight=7.0)] * n) for n in (2, 500)] == [7.0, 7.0]
    # Nodes that just came take no weight from those that know more.
    young = [node(weight=0.01)] * 500
    assert weight_of(node(weight=7.0), node(weight=7.0), *young) > 3.0


def test_outcomes_fade_and_do_not_count_after_a_day() -> None:
    faded = 0.5 ** (0.5 / pooled_margins.POOL_HALF_LIFE_DAYS)
    expected = (1 + faded**2) / (1 + faded)
    assert weight_of(node(), node(), ages=(0.0, 0.5)) == pytest.approx(expected, abs=1e-4)
    debtor = node(1.0, unspent=-1.0)
    assert pool_of(node(), node(), debtor, ages=(0.0, 0.0, 1.1)) == pool_of(node(), node())
    stated = [StatedOutcomes(AT_MS, node()), StatedOutcomes(AT_MS - 2 * DAY_MS, debtor)]
    assert pool_outcomes("gold", stated) is None


@pytest.mark.parametrize(
    ("unspent", "level"),
    [(0.0, 1.0), (-0.005, 0.875), (-0.01, 0.75), (-1e4, 0.75), (0.005, 1.125), (0.015, 1.375),
     (1e4, 1.375)],
)  # fmt: skip
def test_the_level_repays_a_debt_within_bounds(unspent: float, level: float) -> None:
    record = pool_of(node(unspent=unspent), node(unspent=unspent))
    assert record.cpu.level == pytest.approx(level * RISK)


@pytest.mark.parametrize(
    ("running", "level"), [(-0.01, 0.75), (-0.04, 0.25), (-1.0, 0.25), (0.01, 1.25), (1.0, 1.5)]
)
def test_running_predictions_move_the_level_further(running: float, level: float) -> None:
    record = pool_of(node(running=running), node(running=running))
    assert record.cpu.level == pytest.approx(level * RISK)


def test_a_pool_that_takes_more_than_the_declared_risk_and_measures_it_owes_nothing() -> None:
    """Few nodes have the exceedances of a pool, and most of them none."""
    taken = 1.5 * RISK
    nodes = [*[node(unspent=taken)] * 97, *[node(unspent=taken - 1.0)] * 3]
    assert pool_of(*nodes).cpu.level == pytest.approx(RISK)


@pytest.mark.parametrize(("used", "is_taken"), [(0.3, True), (1.2, False)])
def test_risk_that_a_node_could_not_take_is_not_unspent(used: float, is_taken: bool) -> None:
    pool = CalibratedPool(HORIZON, (RISK,), single_node=True)
    for step, usage in stationary(1, 24 * 4, nodes=1):
        pool.observe(step, replace(usage, usage=used * usage.requests))
        predicted = pool.predict()
    assert bool((predicted.peaks[0] < predicted.requests[0]).all()) == is_taken
    assert pool.outcomes().judged_days > 2.0
    assert (pool.outcomes().unspent_days > 0.0) == is_taken


def test_a_node_that_was_not_judged_says_nothing_about_the_level() -> None:
    assert pool_of(node(judged=0.0), node(judged=0.0)).cpu.level is None
    judged = node(unspent=-0.01)
    assert pool_of(judged, judged, *[node(judged=0.0)] * 10).cpu.level == pytest.approx(0.015)


def test_an_absurd_node_does_not_outweigh_a_pool() -> None:
    honest = [node(0.0, weight=7.0)] * 50
    distribution = pool_of(node(2.0, weight=1e6), *honest).cpu.distribution
    assert distribution is not None
    assert distribution.weight < 9.0
    assert distribution.quantiles[PROBABILITIES.index(0.75)] == 0.0


@pytest.mark.parametrize("days", [-1e4, 1e4])
def test_an_absurd_node_hardly_moves_the_level(days: float) -> None:
    honest = [node()] * 50
    for absurd in (
        node(judged=0.01, running=days), node(judged=0.01, unspent=days),
        node(judged=1e4, running=days), node(judged=1e4, unspent=days),
    ):  # fmt: skip
        level = pool_of(absurd, *honest).cpu.level
        assert level is not None
        # A node that spent all of its risk at once may count as much as six others.
        assert 0.25 * RISK <= level <= 1.5 * RISK
        if absurd.cpu.judged_days < 1.0:
            assert level == pytest.approx(RISK, rel=0.02)


def test_levels_of_high_risks_can_be_read() -> None:
    nodes = [node(running=1e4, unspent=1e4, risk=0.5) for _ in range(3)]
    record = pool_of(*nodes)
    assert decode_json(PoolOutcomesRecord, encode_json(record)) == record


def test_nodes_of_another_risk_or_horizon_do_not_count_while_settings_change() -> None:
    others = [node(1.0, risk=0.05), node(1.0, horizon_seconds=43_200)]
    record = pool_of(*others, node(), node())
    assert (record.nodes, record.risk, record.horizon_seconds) == (2, RISK, 86_400)
    assert record.cpu.distribution == pool_of(node(), node()).cpu.distribution


def test_one_node_or_nodes_without_outcomes_are_no_pool() -> None:
    nothing = NodeOutcomes(horizon_seconds=86_400, risk=RISK)
    for nodes in ([], [node()], [nothing] * 3, [node(), nothing]):
        stated = [StatedOutcomes(AT_MS, own) for own in nodes]
        assert pool_outcomes("gold", stated) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ('"weight":1.0', '"weight":-1.0'), ('"weight":1.0', '"weight":1e300'),
        ("[-0.01,0.0,", "[1.0,0.0,"), ("[-0.01,", "[-0.01,-0.01,"),
        ("[-0.01,", "[-99,"), ('"level":0.02', '"level":2'), ('"nodes":2', '"nodes":0'),
        ('"risk":0.02', '"risk":0.0'), ("2023-11-14", "yesterday"),
    ],
)  # fmt: skip
def test_an_absurd_record_is_refused(field: str, value: str) -> None:
    data = encode_json(pool_of(node(), node())).decode()
    assert field in data
    with pytest.raises(RecordError):
        decode_json(PoolOutcomesRecord, data.replace(field, value).encode())


# -- nodes that use their pool


def test_new_nodes_of_a_pool_predict_nearer_to_its_outcomes() -> None:
    """Usage is far below the requests, and a node alone needs days to believe it."""
    pools, pooled = [
        [CalibratedPool(HORIZON, (RISK,), single_node=True) for _ in range(6)] for _ in range(2)
    ]
    record: PoolOutcomesRecord | None = None
    peaks = np.zeros((2, 2))
    for step, usage in stationary(3, 24 * 9):
        for i, own in enumerate((pools, pooled)):
            for number, pool in enumerate(own):
                if number == 0 and step < 24 * 7:
                    continue  # came late
                of_node = usage.nodes == 1000 + number
                pool.observe(step, PodUsage(
                    usage.pods[of_node], usage.nodes[of_node], usage.usage[of_node],
                    usage.requests[of_node], usage.limits[of_node],
                ))  # fmt: skip
                if own is pooled and record is not None:
                    pool.use_pool(margins(record.cpu), record.cpu.level)
                predicted = pool.predict()
                if step == 24 * 9 - 1 and number < 2:
                    peaks[i, number] = predicted.peaks[0, 0] / predicted.requests[0]
        stated = [
            NodeOutcomes(horizon_seconds=86_400, risk=RISK, cpu=pool.outcomes()) for pool in pooled
        ]
        record = pool_outcomes("gold", [StatedOutcomes(AT_MS, own) for own in stated])
    assert record is not None
    assert (peaks[1] < peaks[0]).all()
    assert peaks[0, 0] - peaks[1, 0] > 0.02
