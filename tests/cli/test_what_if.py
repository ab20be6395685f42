"""What-if: the results of the worker, the laws of policies, and causality."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pipeline.agents.apply_windows import apply_distinct, encode_reports
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, PartitionWindow
from pipeline.cli.main import cli
from pipeline.cli.replayed_policies import NodeAmounts, read_policy, replayed_policy
from pipeline.errors import SpringtideError
from pipeline.processors.backtest.judge import predict_suites
from pipeline.processors.backtest.protocol import score
from pipeline.processors.backtest.replay import Variant
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_samples import STATISTIC, Placement, sampled_windows
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.backtest.what_if import (
    PolicyOutcome,
    ReplayedPolicy,
    replay_outcome,
    replay_policy,
)
from pipeline.processors.descheduling.replayed_relief import ReplayedRelief
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import RESOURCES
from pipeline.settings import ModelSettings, Settings
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

STEPS, NODES = 160, 3
SPRINGTIDE_KEYS = ("safetyMarginPercent", "midFormula", "predictor", "promiseOnce")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(allocatable_m=2000)


def trace_of(allocatable_m: int) -> Trace:
    """Nodes that are busy at times, and a pod that comes and goes."""
    random = np.random.default_rng(6)
    metadata = {"step_s": "300", "t0_unix": "1700000100", "steps": str(STEPS)}
    series, stays = [], []
    for n in range(NODES):
        for p in range(2):
            busy = 400 * (np.arange(STEPS) // 20 % 3 == n)
            cpu = np.clip(200 + busy + random.normal(0, 60, STEPS), 0, 1000).round().astype(int)
            memory = np.clip(300 + 0.3 * busy + random.normal(0, 9, STEPS), 0, 1024)
            series.append(
                series_row(
                    f"s{n}{p}", cpu.tolist(), cpu_request_m=800, mem_request_mi=512,
                    mem_limit_mi=1024, mem_mi=memory.round().astype(int).tolist(),
                )
            )  # fmt: skip
            begin, end = (20, 130) if p else (0, STEPS)
            own = {"node": f"n{n}", "allocatable_m": allocatable_m}
            stays.append(stay_row(f"p{n}{p}", f"s{n}{p}", begin, end, **own))
    (made,) = read_traces(
        "made", table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    )
    return made


def policy_text(high: int = 60, **changes: Any) -> bytes:
    colocation = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 3600}}
    springtide: dict[str, Any] = {"bufferPercent": 0}
    for key, value in changes.items():
        (springtide if key in SPRINGTIDE_KEYS else colocation)[key] = value
    objects = [
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
            "data": {
                "colocation-config": msgspec.json.encode(colocation).decode(),
                "springtide-config": msgspec.json.encode(springtide).decode(),
            },
        },
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [
                {
                    "name": "balance",
                    "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                    "pluginConfig": [
                        {
                            "name": "LowNodeLoad",
                            "args": {
                                "highThresholds": {"cpu": high, "memory": 90},
                                "lowThresholds": {"cpu": 20, "memory": 60},
                            },
                        }
                    ],
                }
            ],
        },
    ]  # fmt: skip
    return b"\n---\n".join(msgspec.json.encode(each) for each in objects)


def policy_of(trace: Trace, text: bytes) -> ReplayedPolicy:
    file = read_policy(text, "policy", Settings())
    return replayed_policy(trace, file, NodeAmounts.of(trace, "limits"))


def outcome_of(trace: Trace, text: bytes) -> PolicyOutcome:
    return replay_outcome(trace, policy_of(trace, text), 24, 4)


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


def test_results_as_text_and_json(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
    usage = random.integers(100, 500, 48).tolist()
    tables = {
        "series": table_of([series_row("s", usage)], SERIES, metadata),
        "placement": table_of([stay_row("p", "s", 0, 48)], PLACEMENT, metadata),
    }
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, tmp_path / f"april.{name}.parquet")
    policies = {"old": policy_text(), "new": policy_text(cpuReclaimThresholdPercent=80)}
    for name, text in policies.items():
        (tmp_path / f"{name}.yaml").write_bytes(text)
    out = tmp_path / "out.json"
    result = CliRunner().invoke(
        cli,
        [
            "what-if", str(tmp_path), "--policy", str(tmp_path / "new.yaml"), "--against",
            str(tmp_path / "old.yaml"), "--by-node", "--json", str(out), "--burn-in", "6h",
            "--horizon-seconds", "21600",
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (item,) = json.loads(out.read_text())["items"]
    old, new = item["total"]["old"], item["total"]["new"]
    assert new["batch_cpu_millicores"] == pytest.approx(old["batch_cpu_millicores"] + 1600)
    # No pod of the trace has memory: what would be offered of it is unknown.
    assert (old["mid_memory_bytes"], old["batch_memory_bytes"]) == (None, None)
    assert [node["node"] for node in item["nodes"]] == ["node-0"]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["node-0", "batch", "cpu"] in [line[:3] for line in lines]
    same = CliRunner().invoke(
        cli,
        ["what-if", str(tmp_path), "--policy", "-", "--against", str(tmp_path / "old.yaml"),
         "--by-node", "--burn-in", "6h"],
        input=policies["old"],
    )  # fmt: skip
    assert "no node differs" in same.stdout, same.output


def test_names_in_files_may_be_any_text(tmp_path: Path) -> None:
    policy, out = tmp_path / "new.yaml", tmp_path / "out.json"
    policy.write_bytes(policy_text())

    def replay(node: str, pod: str) -> dict[str, Any]:
        metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
        usage = np.random.default_rng(8).integers(100, 500, 48).tolist()
        series = table_of([series_row("s", usage)], SERIES, metadata)
        stays = table_of([stay_row(pod, "s", 0, 48, node=node)], PLACEMENT, metadata)
        pyarrow.parquet.write_table(series, tmp_path / "april.series.parquet")
        pyarrow.parquet.write_table(stays, tmp_path / "april.placement.parquet")
        arguments = ["--policy", str(policy), "--json", str(out), "--overwrite"]
        result = CliRunner().invoke(cli, ["what-if", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.output
        (item,) = json.loads(out.read_text())["items"]
        (found,) = item["nodes"]
        assert found.pop("node") == node
        return item

    usual = replay("n", "p")
    assert usual["total"]["new"]["batch_cpu_millicores"] is not None
    for node, pod in (("Node 1, old", "p"), ("n" * 300, "p" * 300), ("", '"\\\x1b')):
        assert replay(node, pod) == usual


def test_traces_of_which_nothing_is_known(tmp_path: Path) -> None:
    policy = tmp_path / "new.yaml"
    policy.write_text("model: {safety_margin_percent: 20}")

    def replay(usage: list[int | None], **amounts: int) -> Result:
        metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
        series = table_of([series_row("s", usage, **amounts)], SERIES, metadata)
        stays = table_of([stay_row("p", "s", 0, 48)], PLACEMENT, metadata)
        pyarrow.parquet.write_table(series, tmp_path / "april.series.parquet")
        pyarrow.parquet.write_table(stays, tmp_path / "april.placement.parquet")
        return CliRunner().invoke(cli, ["what-if", str(tmp_path), "--policy", str(policy)])

    gaps = replay([None] * 48)
    assert (gaps.exit_code, "every amount is 0 or unknown" in gaps.stdout) == (0, True), gaps.output
    unlimited = replay([100] * 48, cpu_limit_m=0, cpu_request_m=0)
    assert (unlimited.exit_code, "give traces with limits" in unlimited.output) == (2, True)


def test_unknown_usage_is_no_offer(trace: Trace) -> None:
    usage = trace.usage.copy()
    first = trace.first_sample[0]
    usage[first + 50 : first + 60] = np.nan
    policy = policy_of(trace, policy_text())
    node = int(trace.node_index[0])
    for step in replay_policy(replace(trace, usage=usage), policy):
        assert step.offers is not None
        assert step.offers.known[node] == (not 50 <= step.step < 60)


def test_capacity_that_the_trace_lacks_is_said(trace: Trace) -> None:
    amounts = NodeAmounts.of(trace, "limits")
    assert amounts.amounts[:, 0].tolist() == [2000.0] * NODES
    assert amounts.amounts[:, 1].tolist() == [2048 * 2.0**20] * NODES
    assert amounts.notes == [
        "capacity of memory is not in the trace of 3 nodes: the highest sum of limits stands for it"
    ]
    assert NodeAmounts.of(trace, "requests").amounts[0, 1] == 1024 * 2.0**20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "has no policy: it is empty"),
        (b"model: {safety_margin_percent: 5}\nkafka: {}", "not just the section model"),
        (policy_text(cpuReclaimThresholdPercent=-1), "cpuReclaimThresholdPercent"),
        (policy_text(high=10), "lowThresholds.cpu: 20 is above"),
        (b"model: {half_life: 3}", "unknown setting"),
    ],
)
def test_invalid_policies(text: bytes, problem: str) -> None:
    with pytest.raises(SpringtideError, match=problem):
        read_policy(text, "policy", Settings())


def test_settings_in_a_policy_count(trace: Trace) -> None:
    text = policy_text() + b"\n---\nmodel: {half_life_seconds: {cpu: 600}, horizon_seconds: 3600}"
    policy = policy_of(trace, text)
    assert policy.config.profile.half_life_seconds[0] == 600.0
    assert policy.config.horizon_seconds == 3600.0
    other = policy_of(trace, policy_text(predictor="nsigma-v2"))
    assert other.config.predictors == ("nsigma-v2",)


def test_a_policy_with_another_statistic_than_the_one_replayed_is_refused() -> None:
    text = b"model: {training_statistic: max}"
    with pytest.raises(SpringtideError, match="training_statistic is max, but p90") as caught:
        read_policy(text, "new.yaml", Settings())
    assert "--training-statistic max" in (caught.value.hint or "")
    file = read_policy(text, "new.yaml", Settings(model=ModelSettings(training_statistic="max")))
    assert file.settings.model.training_statistic == "max"
