"""Judgements reproduce published scores, and are summed up as documented."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.processors.backtest import report
from pipeline.processors.backtest.judge import (
    HINDSIGHT_VIOLATIONS,
    Judgement,
    judge,
    settings_hash,
    summaries,
)
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.protocol import over_machines, score
from pipeline.processors.backtest.replay import Variant, calibrated
from pipeline.processors.backtest.suites import PUBLIC, Suite
from pipeline.processors.model.model_config import ModelConfig
from pipeline.sources.trace_folders import read_dataset
from pipeline.topics.nodes import Strategy

TRACES = Path(__file__).parents[2] / "data" / "traces"
SUITE = next(suite for suite in PUBLIC if suite.name == "google-cpu-24h")
_HALF_A_POINT = 0.005


@pytest.fixture(scope="module")
def judgements() -> dict[str, Judgement]:
    (trace,) = read_dataset(TRACES, "google_jobs")
    return {judgement.variant.name: judgement for judgement in judge(trace, [SUITE], PEERS)}


PUBLISHED = json.loads((TRACES / "baselines.json").read_text())[SUITE.name]


@pytest.mark.parametrize("name", [variant.name for variant in PEERS])
def test_peers_have_their_published_scores(name: str, judgements: dict[str, Judgement]) -> None:
    fleet, published = judgements[name].fleet, PUBLISHED["rows"][name]
    assert fleet.violation == pytest.approx(published["violation"], abs=_HALF_A_POINT)
    assert fleet.savings == pytest.approx(published["savings"], abs=_HALF_A_POINT)
    assert fleet.of_oracle == pytest.approx(published["captured"], abs=2 * _HALF_A_POINT)
    assert fleet.severity == pytest.approx(published["severity"], abs=0.02)
    assert fleet.violation_error == pytest.approx(published["violation_se"], abs=_HALF_A_POINT)
    hindsight = [published[f"cal{round(100 * rate)}"] for rate in HINDSIGHT_VIOLATIONS]
    assert judgements[name].hindsight == pytest.approx(hindsight, abs=0.02)


def test_oracle_and_points_are_the_published_ones(judgements: dict[str, Judgement]) -> None:
    fleet, info = judgements[PEERS[0].name].fleet, PUBLISHED["info"]
    assert fleet.machines == info["machines"]
    assert fleet.points == info["machines"] * info["points"]
    assert fleet.oracle_savings == pytest.approx(info["oracle"], abs=5e-5)


def judgement(
    suite: Suite, variant: Variant, predictions: list[list[float]], *, hours: float = 24.0
) -> Judgement:
    """Requests are 10 and the oracle is 8 at every step."""
    values = np.array(predictions)
    machines = score(values, np.full(values.shape, 10.0), np.full(values.shape, 8.0), 1.0)
    nodes = tuple(f"node-{i}" for i in range(len(values)))
    return Judgement(
        suite, variant, nodes, machines, over_machines(machines), (0.1, 0.2, np.nan), hours
    )


def variant_of(name: str) -> Variant:
    return Variant(name=name, config=ModelConfig())


def test_savings_are_averaged_within_origins_first() -> None:
    variant = variant_of("v")
    suites = {
        name: replace_suite(name, dataset)
        for name, dataset in (("a", "x_1"), ("b", "x_2"), ("c", "y"))
    }
    judged = [
        judgement(suites["a"], variant, [[8.0, 8.0]]),
        judgement(suites["b"], variant, [[6.0, 9.0]]),
        judgement(suites["c"], variant, [[9.0, 9.0]]),
    ]
    (summary,) = summaries(judged)
    assert (summary.worst_suite, summary.violation) == ("b", 0.5)
    assert summary.mean_violation == pytest.approx(0.5 / 3)
    assert summary.savings == pytest.approx(((0.2 + 0.25) / 2 + 0.1) / 2)
    assert summary.severity == pytest.approx(0.25)


def replace_suite(name: str, dataset: str) -> Suite:
    return Suite(name=name, dataset=dataset)


def test_suite_without_points_does_not_count() -> None:
    variant = variant_of("v")
    zeros = np.zeros((1, 2))
    empty = score(zeros, zeros, zeros, 1.0)
    nothing = Judgement(SUITE, variant, ("n",), empty, over_machines(empty), (np.nan,) * 3, 24.0)
    assert summaries([nothing]) == []
    (summary,) = summaries([nothing, judgement(replace_suite("a", "x"), variant, [[9.0]])])
    assert summary.worst_suite == "a"
    assert report.document([nothing])["suites"][0]["rows"][0]["violation"] is None


def test_hash_is_of_what_shapes_predictions() -> None:
    usual = variant_of("a")
    assert settings_hash(usual) == settings_hash(variant_of("b"))
    changed = [
        replace(usual, counts="node"),
        replace(usual, config=ModelConfig(strategy=Strategy(safety_margin_percent=11.0))),
        replace(usual, config=ModelConfig(options={"percentile": {"cpu": 0.5}})),
        replace(usual, config=ModelConfig(drift="shorten")),
    ]
    assert len({settings_hash(variant) for variant in (usual, *changed)}) == 5
    # Options of predictors beside the deciding one.
    others = ModelConfig(options={"vpa": {"cpu": 0.5}}, predictors=("percentile", "vpa"))
    assert settings_hash(replace(usual, config=others)) == settings_hash(usual)


def test_suite_that_is_not_possible() -> None:
    (trace,) = read_dataset(TRACES, "google_jobs")
    with pytest.raises(UsageError, match="240 h, too few for a burn-in of 230 h"):
        judge(trace, [Suite(name="s", dataset="google_jobs", burn_in_hours=230)], PEERS)
    with pytest.raises(UsageError, match="no pod of google_jobs in std has memory"):
        judge(trace, [Suite(name="s", dataset="google_jobs", resource="memory")], PEERS)


def test_table_has_a_row_per_machine() -> None:
    table = report.machine_table(
        [judgement(SUITE, variant_of("v"), [[9.0, 6.0], [9.0, np.nan]])]
    ).to_pylist()
    assert [row["node"] for row in table] == ["node-0", "node-1"]
    assert table[0] | {"suite": ""} == {
        "suite": "", "dataset": "google_jobs", "origin": "google", "scenario": "std",
        "resource": "cpu", "variant": "v", "settings_hash": settings_hash(variant_of("v")),
        "node": "node-0", "declared_risk": None, "points": 2, "violation": 0.5, "severity": 0.25,
        "savings": 0.25, "oracle_savings": pytest.approx(0.2), "unknown": 0.0,
    }  # fmt: skip
    assert (table[1]["severity"], table[1]["unknown"]) == (None, 0.5)


def test_text_has_a_table_per_suite_and_a_summary() -> None:
    judged = [
        judgement(replace_suite(name, "x"), variant_of(variant), [[9.0, 6.0]])
        for name in ("first", "second")
        for variant in ("short", "a longer name")
    ]
    assert list(report.text(judged)) == [
        "first: 1 nodes, 2 predictions, oracle saves 20.0%",
        "  variant        violation  p90 node  severity  savings  of oracle  unknown",
        "  short              50.0%     50.0%     25.0%    25.0%     125.0%     0.0%",
        "  a longer name      50.0%     50.0%     25.0%    25.0%     125.0%     0.0%",
        "",
        "second: 1 nodes, 2 predictions, oracle saves 20.0%",
        "  variant        violation  p90 node  severity  savings  of oracle  unknown",
        "  short              50.0%     50.0%     25.0%    25.0%     125.0%     0.0%",
        "  a longer name      50.0%     50.0%     25.0%    25.0%     125.0%     0.0%",
        "",
        "all suites",
        "  variant        worst   mean  p90 node  severity  savings  settings      worst suite",
        "  short          50.0%  50.0%     50.0%     25.0%    25.0%  "
        f"{settings_hash(variant_of('short'))}  first",
        "  a longer name  50.0%  50.0%     50.0%     25.0%    25.0%  "
        f"{settings_hash(variant_of('a longer name'))}  first",
    ]


def test_rates_of_long_traces_are_held_against_the_declared_risk() -> None:
    variant = calibrated(0.2)
    predictions = {"short": [[6.0, 6.0]], "half": [[6.0, 9.0]], "none": [[9.0, 9.0]]}
    judged = [
        judgement(replace_suite(name, "x"), variant, values, hours=24 if name == "short" else 504)
        for name, values in predictions.items()
    ]
    (summary,) = summaries(judged)
    assert summary.by_declared == pytest.approx((0.0, 2.5))
    assert summary.violation == 1.0
    (entry,) = report.document(judged)["summary"]
    assert (entry["declared_risk"], entry["measured_by_declared"]) == (0.2, [0.0, 2.5])
    (row,) = list(report.text(judged))[-1:]
    assert row.split()[-5:] == ["0.00", "to", "2.50", settings_hash(variant), "short"]
    (only_short,) = summaries(judged[:1])
    assert only_short.by_declared is None
    (of_peer,) = summaries([judgement(SUITE, PEERS[0], [[9.0]], hours=504)])
    assert of_peer.by_declared is None


def test_a_worker_declares_a_risk_too() -> None:
    strategy = Strategy(predictor="calibrated")
    usual = Variant(name="a", config=ModelConfig(strategy=strategy))
    options = {"calibrated": {"risk": 0.05}}
    other = Variant(name="b", config=ModelConfig(strategy=strategy, options=options))
    assert (usual.declared_risk, other.declared_risk) == (0.02, 0.05)
    assert variant_of("v").declared_risk is None
