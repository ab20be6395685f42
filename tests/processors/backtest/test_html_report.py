"""The page of a backtest: its summary, what it shows of whom, and its size."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.backtest import made_trace
from pipeline.processors.backtest import html_report as reports
from pipeline.processors.backtest.backtest_figures import UNITS
from pipeline.processors.backtest.html_report import detailed_variants, explanation, html_report
from pipeline.processors.backtest.judge import Judgement, judge, settings_hash
from pipeline.processors.backtest.node_details import (
    BurstPod,
    Details,
    Judged,
    NodeSeries,
    RisenPod,
    Violation,
    details,
)
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.protocol import (
    TOLERANCE,
    FleetScores,
    outcomes,
    over_machines,
    score,
)
from pipeline.processors.backtest.replay import Variant, calibrated
from pipeline.processors.backtest.suites import Suite, usual_suites
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.model.model_config import RESOURCES, ModelConfig

OWN = Variant(name="as now", config=ModelConfig())


def judgement(
    variant: Variant, violation: float, savings: float, suite: str = "april-cpu", **changes: Any
) -> Judgement:
    """A judgement with these scores, without details."""
    ones = np.ones((1, 1))
    machines = score(ones, ones, ones, 1.0)
    fleet = replace(over_machines(machines), violation=violation, savings=savings, **changes)
    return Judgement(
        suite=Suite(name=suite, dataset="april"), variant=variant, nodes=("n",), machines=machines,
        fleet=fleet, hindsight=(0.0, 0.0, 0.0), trace_hours=24.0,
    )  # fmt: skip


def lead(*judgements: Judgement) -> str:
    found = re.search(r'<p class="lead">(.*?)</p>', html_report(judgements))
    assert found
    return found[1]


def test_the_summary_is_about_the_calibrated_variant_and_the_best_peer_as_safe() -> None:
    safe, safer, bold = PEERS[:3]
    assert lead(
        judgement(OWN, 0.2, 0.5), judgement(safe, 0.02, 0.12), judgement(safer, 0.001, 0.05),
        judgement(bold, 0.3, 0.4), judgement(calibrated(0.02), 0.021, 0.25, oracle_savings=0.4),
    ) == (
        "In april-cpu, calibrated 2% predicted too little 2.1% of the time, with a declared risk "
        "of 2%. On average it left 25.0% of the requests to others; a perfect prediction would "
        f"have left 40.0%. Of the 3 predictors of other systems, 2 missed no more; the best of "
        f"them, {safe.name}, left 12.0%."
    )  # fmt: skip


def test_the_summary_of_several_suites_names_the_worst() -> None:
    text = lead(judgement(OWN, 0.01, 0.2), judgement(OWN, 0.05, 0.3, suite="may-cpu"))
    assert text.startswith("In the worst of 2 suites, may-cpu, as now predicted too little 5.0%")
    assert "On average it left 25.0%" in text
    assert "other systems" not in text


def test_all_suites_have_the_settings_and_the_measured_risk_by_the_declared_one() -> None:
    variant = calibrated(0.02)
    judgements = [
        replace(judgement(variant, rate, 0.2, suite=suite), trace_hours=hours)
        for suite, rate, hours in (("a", 0.01, 504.0), ("b", 0.03, 720.0), ("c", 0.1, 24.0))
    ]
    text = html_report(judgements)
    assert f"<td>{settings_hash(variant)}</td>" in text
    assert '<td class="amount">0.50 to 1.50</td>' in text


def test_peers_that_all_miss_more_and_nothing_scored() -> None:
    peers = [judgement(peer, 0.2, 0.3) for peer in PEERS]
    assert lead(judgement(OWN, 0.1, 0.1), *peers).endswith(
        f"All {len(PEERS)} predictors of other systems missed more."
    )
    unscored = judgement(OWN, math.nan, math.nan, machines=0, points=0)
    assert lead(unscored).startswith("No prediction could be scored")


def test_nodes_are_shown_of_own_variants_and_of_a_peer_if_there_is_no_other() -> None:
    risks = [calibrated(0.01), calibrated(0.05)]
    assert detailed_variants([OWN, *PEERS, *risks]) == ["calibrated 1%", "calibrated 5%"]
    assert detailed_variants([OWN, *PEERS, risks[0]]) == ["calibrated 1%", "as now"]
    assert detailed_variants(PEERS) == [PEERS[0].name]


def test_many_suites_and_variants_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_SUITES", 2)
    monkeypatch.setattr(reports, "MOST_VARIANTS", 3)
    text = html_report(
        [judgement(v, 0.1, 0.1, suite=f"suite-{n}") for n in range(4) for v in PEERS[:5]]
    )
    assert "the first 2 of 4 suites and the first 3 of 5 variants; -o json has all" in text
    assert text.count("<svg") == 3
    assert text.count("<td>suite-0</td>") == 3


def violation(**changes: Any) -> Violation:
    nothing = np.zeros(0)
    series = NodeSeries(
        node="n", first_step=0, usage=nothing, requests=nothing, at=np.zeros(0, np.int64),
        predicted=nothing, real_peak=nothing, is_missed=np.zeros(0, np.bool_),
    )  # fmt: skip
    plain = Violation(
        node="n", step=9, peak_step=12, predicted=1000.0, real_peak=2000.0, requests=4000.0,
        pods=16, risen=(), bursts=(), risen_count=0, risen_by=0.0, new_pods=0,
        new_usage=0.0, unknown=0.0,
        series=series,
    )  # fmt: skip
    return replace(plain, **changes)


def test_explanations() -> None:
    shown = Details(
        step_seconds=300, start_seconds=0, horizon_steps=288, nodes=(), violations=()
    )  # fmt: skip
    pod = RisenPod(pod="cron-1", usage=900.0, past_peak=120.0)
    risen = violation(risen=(pod,), risen_count=3, risen_by=1300.0)
    assert [*explanation(risen, shown, UNITS["cpu"])] == [
        "cron-1 used 0.9 cores, 0.78 cores more than ever before (0.12 cores)",
        "2 other pods used more than ever before; all rises add up to 1.3 cores",
    ]
    burst = BurstPod(pod="cron-1", usage=3 * 2.0**30, past_mean=2.0**29)
    unknown = violation(bursts=(burst,), new_pods=2, new_usage=2.0**30, unknown=0.031)
    assert [*explanation(unknown, shown, UNITS["memory"])] == [
        "none of the 16 pods used more than ever before",
        "cron-1 used 3 GiB; its mean before was 0.5 GiB",
        "2 of 16 pods ran for less than 24 h; they used 1 GiB at the peak",
        "3.1% of the samples of the last 24 h were unknown",
    ]


def random_judgements(trace: Trace, suite: Suite, names: int) -> list[Judgement]:
    """Judgements of random predictions, every other one too low: the lines cannot be worse."""
    random, r, at = np.random.default_rng(2), RESOURCES.index(suite.resource), suite.at(trace)
    happened = outcomes(trace, at, suite.horizon_steps(trace))
    requests, oracle = happened.requests[..., r], happened.oracle[..., r]
    results = []
    for number in range(names):
        predictions = oracle * random.choice([0.5, 1.5], oracle.shape)
        machines = score(predictions, requests, oracle, float(TOLERANCE[r]))
        judged = Judged(
            trace=trace, resource=r, horizon_steps=suite.horizon_steps(trace), at=at,
            predictions=predictions, requests=requests, oracle=oracle,
            tolerance=float(TOLERANCE[r]), machines=machines,
        )  # fmt: skip
        results.append(
            Judgement(
                suite=suite, variant=replace(OWN, name=f"variant {number}"), nodes=trace.nodes,
                machines=machines, fleet=over_machines(machines), hindsight=(0.0, 0.0, 0.0),
                trace_hours=trace.hours, details=details(judged),
            )
        )  # fmt: skip
    return results


def test_the_report_of_a_month_of_100_nodes_is_small() -> None:
    trace = made_trace(nodes=100, pods=2, days=30)
    judgements = [
        each
        for suite in usual_suites(trace)
        for each in random_judgements(trace, suite, reports.MOST_DETAILED)
    ]
    judgements += [
        judgement(variant, 0.1, 0.2, suite=suite.name)
        for suite in usual_suites(trace)
        for variant in PEERS
    ]
    report = html_report(judgements)
    assert report.count('class="usage"/>') == 4 * 2 * (3 + 6)
    assert len(report.encode()) < 4_000_000


def test_judge_keeps_details_of_the_named_variants_only() -> None:
    trace = made_trace(nodes=3, pods=2, days=1)
    suite = Suite(name="s", dataset="made", horizon_hours=1, burn_in_hours=6)
    other = replace(OWN, name="other")
    with_details, without = judge(trace, [suite], [OWN, other], detailed=["as now"])
    assert without.details is None
    assert with_details.details is not None
    assert [node.role for node in with_details.details.nodes] == ["worst", "median", "best"]
    shown = with_details.details.nodes[0]
    place = with_details.nodes.index(shown.series.node)
    assert shown.violation == with_details.machines.violation[place]
    assert shown.series.is_missed.mean() == pytest.approx(shown.violation)
    assert isinstance(with_details.fleet, FleetScores)
