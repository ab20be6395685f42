"""The predictor `calibrated` with the outcomes of a pool in its windows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from pipeline.processors.calibrated.node_pools import NodePools
from pipeline.processors.calibrated.pool_fold import StatedOutcomes, pool_outcomes
from pipeline.processors.join.joined_outcomes import INTERVAL_MS, joined_outcomes
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.times import format_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pool_outcomes import (
    LONGEST_MS,
    PROBABILITIES,
    NodeOutcomes,
    OutcomeQuantiles,
    PooledOutcomes,
    PoolOutcomesRecord,
    ResourceOutcomes,
)
from tests.processors.predictors.test_calibrated import (
    HORIZON_SECONDS,
    MIDNIGHT_MS,
    MINUTE_MS,
    churning,
    learned_risk,
    prod,
)

RISK = 0.1


def pooled(
    end_ms: int = MIDNIGHT_MS, z: float = -1.0, level: float | None = RISK
) -> PoolOutcomesRecord:
    """A pool whose nodes all used exp(z) times their shape."""
    distribution = OutcomeQuantiles(weight=500.0, quantiles=(z,) * len(PROBABILITIES))
    of_resource = PooledOutcomes(distribution=distribution, level=level)
    return PoolOutcomesRecord(
        at=format_time(end_ms / 1000), nodes=100, horizon_seconds=round(HORIZON_SECONDS), risk=RISK,
        cpu=of_resource, memory=of_resource,
    )  # fmt: skip


def windows_of(seed: int, hours: int, first_hour: int = 0) -> list[NodeWindow]:
    """Windows of five minutes of pods that stay."""
    minutes = range(5 + 60 * first_hour, 60 * (first_hour + hours) + 5, 5)
    return [one for one in churning(seed, minutes, "node-a") if one.pod_uids]


def joined(windows: Sequence[NodeWindow], record: PoolOutcomesRecord | None) -> list[NodeWindow]:
    return [
        replace(one, pool_outcomes=joined_outcomes(record, one.start_ms, one.end_ms))
        for one in windows
    ]


def outcomes_of(bank: Bank, node: str = "node-a") -> NodeOutcomes:
    outcomes = bank.peaks([node])[0].outcomes
    assert outcomes is not None
    return outcomes


def test_windows_have_the_outcomes_every_half_hour_for_a_day() -> None:
    record, half_hour = pooled(), INTERVAL_MS // MINUTE_MS
    ends = [MIDNIGHT_MS + 5 * number * MINUTE_MS for number in range(-300, 301)]
    having = [
        (end - MIDNIGHT_MS) // MINUTE_MS
        for end in ends if joined_outcomes(record, end - 5 * MINUTE_MS, end) is not None
    ]  # fmt: skip
    day = LONGEST_MS // MINUTE_MS
    assert having == [*range(-day, day + 1, half_hour)]
    long = MIDNIGHT_MS + 3 * MINUTE_MS
    assert joined_outcomes(record, long - 7 * MINUTE_MS, long) == record
    assert joined_outcomes(None, long - 7 * MINUTE_MS, long) is None


def test_a_node_without_outcomes_of_its_own_relies_on_its_pool() -> None:
    windows = windows_of(1, 3)
    alone = prod(learned_risk(windows, RISK))
    careful, bold = (prod(learned_risk(joined(windows, pooled(z=z)), RISK)) for z in (1.0, -1.0))
    assert bold["share"] < alone["share"] < careful["share"]
    assert bold["outcomes"] == 0.0


def test_the_level_of_the_pool_decides() -> None:
    spread = pooled()
    quantiles = tuple(np.linspace(-2, 2, len(PROBABILITIES)).tolist())
    distribution = OutcomeQuantiles(weight=500.0, quantiles=quantiles)
    windows = windows_of(1, 3)
    shares = [
        prod(learned_risk(joined(windows, msgspec.structs.replace(
            spread, cpu=PooledOutcomes(distribution=distribution, level=level)
        )), RISK))["share"]
        for level in (0.05, 0.1, 0.2)
    ]  # fmt: skip
    assert shares[0] > shares[1] > shares[2]


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(pooled(), horizon_seconds=43_200),
        pooled(MIDNIGHT_MS - LONGEST_MS - 3_600_000),
    ],
)
def test_outcomes_of_another_horizon_or_day_are_not_used(other: PoolOutcomesRecord) -> None:
    windows = windows_of(1, 3)
    with_pool = [replace(one, pool_outcomes=other) for one in windows]
    assert prod(learned_risk(with_pool, RISK)) == prod(learned_risk(windows, RISK))


def test_margins_of_a_pool_with_another_risk_are_used_but_not_its_level() -> None:
    windows, other = windows_of(1, 3), msgspec.structs.replace(pooled(level=0.001), risk=0.4)
    expected = prod(learned_risk(joined(windows, pooled(level=None)), RISK))
    assert prod(learned_risk(joined(windows, other), RISK)) == expected


def test_without_a_newer_record_a_node_is_on_its_own_after_a_day() -> None:
    windows = windows_of(2, 30)
    pool_then_none = [*joined(windows[:24], pooled(z=-2.0)), *windows[24:]]
    with_pool, alone = learned_risk(pool_then_none, RISK), learned_risk(windows, RISK)
    # What it predicted with the pool still counts.
    assert prod(with_pool)["share"] == pytest.approx(prod(alone)["share"], rel=0.3)
    used = prod(learned_risk(pool_then_none[:100], RISK))["share"]
    assert used < prod(learned_risk(windows[:100], RISK))["share"]
    pools = with_pool.store.slots["calibrated_pools"][with_pool.node_models["node-a"].slot]
    assert not pools._pools[0].margins.any()


def test_outcomes_of_nodes_become_those_of_a_pool() -> None:
    banks = [learned_risk(windows_of(seed, 24), RISK) for seed in range(3)]
    stated = [StatedOutcomes(MIDNIGHT_MS, outcomes_of(bank)) for bank in banks]
    record = pool_outcomes("gold", stated)
    assert record is not None
    assert (record.nodes, record.risk, record.horizon_seconds) == (3, RISK, HORIZON_SECONDS)
    distributions = [record.cpu.distribution, *(own.cpu.distribution for _, own in stated)]
    weight, *own = [0.0 if each is None else each.weight for each in distributions]
    assert weight == pytest.approx(sum(own) / 3, rel=0.02)
    assert weight > 2.0
    assert record.cpu.level is not None
    assert decode_json(PoolOutcomesRecord, encode_json(record)) == record


def test_a_young_node_states_that_it_knows_nothing() -> None:
    outcomes = outcomes_of(learned_risk(windows_of(1, 2), RISK))
    assert outcomes.cpu.distribution is outcomes.memory.distribution is None
    assert outcomes.cpu.judged_days > 0.0
    assert outcomes.cpu.unspent_days == 0.0


def test_an_exceeded_prediction_counts_at_once() -> None:
    windows = joined(windows_of(3, 3), pooled(z=-2.5))
    outcomes = outcomes_of(learned_risk(windows, RISK))
    assert outcomes.cpu.distribution is None
    assert outcomes.cpu.unspent_days == 0.0
    assert outcomes.cpu.running_days < -0.5 * outcomes.cpu.judged_days


def test_another_risk_drops_what_counts_for_the_level() -> None:
    first = learned_risk(windows_of(4, 18), RISK)
    second = learned_risk([], 0.01)
    second.restore("node-a", first.encode_state("node-a"))
    before, after = outcomes_of(first).cpu, outcomes_of(second).cpu
    assert before.judged_days > 0.5
    assert after == ResourceOutcomes(distribution=before.distribution)


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_any_moment_change_nothing_with_a_pool(seed: int) -> None:
    random = np.random.default_rng(seed)
    records = [pooled(MIDNIGHT_MS + hour * 3_600_000, z=hour / 30 - 1.0) for hour in range(20)]
    windows = [
        replace(one, pool_outcomes=records[(one.end_ms - MIDNIGHT_MS) // 3_600_000])
        if random.random() < 0.2 else one
        for one in churning(seed, range(5, 60 * 18, 5), "node-a")
    ]  # fmt: skip
    undisturbed = learned_risk(windows, RISK)
    cuts = sorted(random.integers(1, len(windows), 5).tolist())
    bank = learned_risk(windows[: cuts[0]], RISK)
    for first, last in pairwise([*cuts, len(windows)]):
        stated = outcomes_of(bank)
        restored = learned_risk([], RISK)
        restored.restore("node-a", bank.encode_state("node-a"))
        assert outcomes_of(restored) == stated
        bank = restored
        bank.apply(windows[max(first - 3, 0) : last])
    assert bank.encode_state("node-a") == undisturbed.encode_state("node-a")
    assert outcomes_of(bank) == outcomes_of(undisturbed)


def test_a_state_from_before_pools_is_restored() -> None:
    bank = learned_risk(windows_of(5, 8), RISK)
    before = prod(bank)
    pools = bank.store.slots["calibrated_pools"][bank.node_models["node-a"].slot]
    state = msgspec.msgpack.decode(pools.pack())
    del state["pool_outcomes"]
    for of_resource in state["pools"]:
        del of_resource["tally"]
    old = NodePools.restored(msgspec.msgpack.encode(state), RISK)
    bank.store.slots["calibrated_pools"][bank.node_models["node-a"].slot] = old
    assert prod(bank) == before
    assert outcomes_of(bank).cpu.distribution is None
    bank.apply(windows_of(5, 8, first_hour=8))
    assert outcomes_of(bank).cpu.distribution is not None
