"""What-if: the results of the worker, the laws of policies, and causality."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.agents.apply_windows import apply_distinct, encode_reports
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, PartitionWindow
from pipeline.cli.replayed_policies import NodeAmounts, read_policy, replayed_policy
from pipeline.processors.backtest.judge import predict_suites
from pipeline.processors.backtest.protocol import score
from pipeline.processors.backtest.replay import Variant
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_samples import STATISTIC, Placement, sampled_windows
from pipeline.processors.backtest.what_if import (
    ReplayedPolicy,
    replay_outcome,
    replay_policy,
)
from pipeline.processors.descheduling.replayed_relief import ReplayedRelief
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import RESOURCES
from pipeline.settings import Settings
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.backtest.replayed_policies import (
    STEPS,
    outcome_of,
    policy_of,
    policy_text,
    trace_of,
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(allocatable_m=2000)


def test_offers_and_alerts_are_those_of_the_worker(trace: Trace) -> None:
    """The same windows, encoded as on the log, through the functions of the model agent."""
    policy = policy_of(trace, policy_text())
    no_output: Any = None
    bank = Bank(replace(policy.config, training_statistic=STATISTIC))
    rules = ModelRules("none", STATISTIC)
    cursor = ModelCursor(Ownership(0, epoch=0), 0, bank, no_output, rules)
    changes: list[AlertRecord] = []
    for windows, step in zip(
        sampled_windows(trace, policy.facts), replay_policy(trace, policy), strict=True
    ):
        sources = [
            PartitionWindow(cursor, step.step, decode_window(encode_window(window)))
            for window in windows
        ]
        pending = [applied.pending() for applied in apply_distinct(sources)]
        assert step.offers is not None
        for i, report in enumerate(encode_reports(pending)):
            assert report.resources is not None
            record = decode_json(NodeResourcesRecord, report.resources)
            for tier, amounts in ((record.mid, step.offers.mid), (record.batch, step.offers.batch)):
                assert tier is not None
                assert [tier.cpu_millicores, tier.memory_bytes] == amounts.amount[i].tolist()
        changes += step.changes
    events = [
        msgspec.structs.replace(event, generation=0, offset=0, epoch=0)
        for own in cursor.events.values()
        for event in own
        if isinstance(event, AlertRecord)
    ]
    assert len(changes) > 2
    by_time = lambda record: (record.as_of, record.id, record.transition)  # noqa: E731
    assert sorted(events, key=by_time) == sorted(changes, key=by_time)


def test_scores_are_those_of_the_backtest(trace: Trace) -> None:
    policy = policy_of(trace, policy_text())
    config = replace(policy.config, horizon_seconds=7200.0, drift="off")
    facts = {n: msgspec.structs.replace(f, hot_nodes=None) for n, f in policy.facts.items()}
    outcome = replay_outcome(trace, ReplayedPolicy(config=config, facts=facts), 24, 4)
    strategy = next(iter(facts.values())).strategy
    variant = Variant(name="v", config=replace(config, strategy=strategy))
    suites = [
        Suite(
            name=resource, dataset="made", resource=resource, horizon_hours=2, burn_in_hours=2,
            stride_steps=4,
        )
        for resource in RESOURCES
    ]  # fmt: skip
    for predicted in predict_suites(trace, suites, [variant]):
        expected = score(
            predicted.predictions[0], predicted.requests, predicted.oracle, predicted.tolerance
        )
        own = outcome.scores[predicted.suite.resource]
        assert own.points.tolist() == expected.points.tolist()
        assert own.violation == pytest.approx(expected.violation)
        assert own.savings == pytest.approx(expected.savings)
        assert 0 < expected.savings.mean() < 1


def test_policy_does_not_differ_from_itself(trace: Trace) -> None:
    one, other = (outcome_of(trace, policy_text()) for _ in range(2))
    for name in ("mid", "batch", "alerts", "hot_seconds"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.batch > 0).all()
    assert one.alerts.any()


def test_higher_margin_never_offers_more(trace: Trace) -> None:
    """Of Mid, and of both tiers together. Batch alone may get what Mid is not promised any more;
    without that promise it does not depend on predictions."""
    steps = [
        [*replay_policy(trace, policy_of(trace, policy_text(safetyMarginPercent=margin)))]
        for margin in (0, 30)
    ]
    smaller = 0
    for low, high in zip(*steps, strict=True):
        assert low.offers is not None
        assert high.offers is not None
        assert (high.offers.mid.amount <= low.offers.mid.amount).all()
        both = [each.mid.amount + each.batch.amount for each in (low.offers, high.offers)]
        assert (both[1] <= both[0]).all()
        smaller += int((high.offers.mid.amount < low.offers.mid.amount).sum())
    assert smaller > 0
    low_alone, high_alone = (
        outcome_of(trace, policy_text(safetyMarginPercent=margin, promiseOnce=False)).batch
        for margin in (0, 30)
    )
    np.testing.assert_array_equal(low_alone, high_alone)


def test_lower_target_utilisation_never_offers_more_batch(trace: Trace) -> None:
    low, high = (
        outcome_of(trace, policy_text(cpuReclaimThresholdPercent=percent)) for percent in (50, 70)
    )
    assert (low.batch[:, 0] < high.batch[:, 0]).all()
    np.testing.assert_array_equal(low.batch[:, 1], high.batch[:, 1])


def test_higher_threshold_is_never_hot_for_longer(trace: Trace) -> None:
    outcomes = [outcome_of(trace, policy_text(high)) for high in (40, 50, 60, 70, 95)]
    hot = [outcome.hot_seconds for outcome in outcomes]
    assert all((after <= before).all() for before, after in pairwise(hot))
    assert hot[0].sum() > hot[2].sum() > hot[4].sum() == 0
    assert outcomes[-1].alerts.sum() == 0 < outcomes[0].alerts.sum()


def test_future_changes_nothing_before_it(trace: Trace) -> None:
    last = 100
    usage = trace.usage.copy()
    for stay in range(len(trace.pods)):
        first = trace.first_sample[stay] - trace.start[stay]
        usage[first + last + 1 : first + trace.end[stay]] = 7.0
    changed = replace(trace, usage=usage)
    policy = policy_of(trace, policy_text())
    for before, after in zip(
        replay_policy(trace, policy), replay_policy(changed, policy), strict=True
    ):
        assert before.offers is not None
        assert after.offers is not None
        same = np.array_equal(before.offers.batch.amount, after.offers.batch.amount)
        if before.step <= last:
            assert same
            np.testing.assert_array_equal(before.reclaimable, after.reclaimable)
            assert before.changes == after.changes
    assert not same


def test_evictions_relieve_hot_nodes() -> None:
    trace = trace_of(allocatable_m=4000)
    text = policy_text(25).replace(b'"lowThresholds":{"cpu":20', b'"lowThresholds":{"cpu":16')
    file = read_policy(text, "policy", Settings())
    amounts = NodeAmounts.of(trace, "limits")
    policy = replayed_policy(trace, file, amounts)
    assert file.descheduling is not None
    relief = ReplayedRelief(trace.nodes, amounts.amounts, file.descheduling).moves
    hot = replay_outcome(trace, policy, 0, 4)
    relieved = replay_outcome(trace, policy, 0, 4, relief)
    assert hot.evictions.sum() == 0
    assert relieved.evictions.sum() > 0
    assert relieved.hot_seconds.sum() < hot.hot_seconds.sum()
    placement = Placement(trace)
    before: set[tuple[int, str]] = set()
    for step in replay_policy(trace, policy, relief, placement):
        if step.left:
            # Pods leave nodes with an alert alone, and each runs somewhere.
            assert {*step.left} <= {node for node, _ in before | _opened(trace, step.changes)}
        before = (before | _opened(trace, step.changes)) - _closed(trace, step.changes)
    moved = placement.moved_trace()
    assert placement.moves == relieved.evictions.sum()
    assert len(moved.pods) == len(trace.pods) + placement.moves
    for at in range(0, STEPS, 7):
        assert _fleet_usage(moved, at) == pytest.approx(_fleet_usage(trace, at))
    # What the planner would do follows from the past alone, too.
    usage = trace.usage.copy()
    for stay in range(len(trace.pods)):
        first = trace.first_sample[stay] - trace.start[stay]
        usage[first + 101 : first + trace.end[stay]] = 7.0
    other = replay_policy(replace(trace, usage=usage), policy, relief)
    for one, two in zip(replay_policy(trace, policy, relief), other, strict=True):
        if one.step <= 100:
            assert one.left == two.left


def _opened(trace: Trace, changes: Sequence[AlertRecord]) -> set[tuple[int, str]]:
    return {
        (trace.nodes.index(each.node), each.rule) for each in changes if each.transition == "opened"
    }


def _closed(trace: Trace, changes: Sequence[AlertRecord]) -> set[tuple[int, str]]:
    return {
        (trace.nodes.index(each.node), each.rule) for each in changes if each.transition == "closed"
    }


def _fleet_usage(trace: Trace, step: int) -> float:
    running = np.flatnonzero((trace.start <= step) & (step < trace.end))
    samples = trace.first_sample[running] + step - trace.start[running]
    return float(trace.usage[samples, 0].sum())


def test_unknown_usage_is_no_offer(trace: Trace) -> None:
    usage = trace.usage.copy()
    first = trace.first_sample[0]
    usage[first + 50 : first + 60] = np.nan
    policy = policy_of(trace, policy_text())
    node = int(trace.node_index[0])
    for step in replay_policy(replace(trace, usage=usage), policy):
        assert step.offers is not None
        assert step.offers.known[node] == (not 50 <= step.step < 60)
