"""How predictors order by violation and by savings, on the trace of this repository and on made
ones, each pinned relation with its reason.

All registered predictors and all peers run, except `calibrated` and `river`: they are in no
relation, and each would take longer than the others together. Rates closer than a point and savings
closer than two are a tie: no relation is pinned there.
"""

from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import pytest

from pipeline.cli.backtest_files import settings_variants
from pipeline.processors.backtest.judge import judge
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.protocol import FleetScores
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.settings import ModelSettings, Settings
from pipeline.sources.trace_folders import read_dataset
from tests.processors.backtest.synthetic_traces import SHAPES, trace_of

TRACES: Final = Path(__file__).parents[2] / "data" / "traces"
TIE: Final = {"violation": 0.01, "savings": 0.02}
MEMBERS: Final = ("percentile", "nsigma-v1")
"""Members of the registered `max`."""
MODEL: Final = ModelSettings(
    predictors=tuple(name for name in PREDICTORS.points if name not in ("calibrated", "river")),
    predictor_options={"max": {"members": [*MEMBERS]}},
    cold_start_seconds=7199.0, cold_start_samples=0,
)  # fmt: skip


class Relation(NamedTuple):
    """On a trace one predictor has less of a measure than another one, for a reason."""

    trace: str
    measure: Literal["violation", "savings"]
    less: str
    more: str
    reason: str


V1_3, V1_5, V2_5 = ("N-sigma v1, N=3", "N-sigma v1, N=5", "N-sigma v2, N=5")
NSIGMA_10H, NSIGMA_24H = (f"N-sigma 5, Google, {hours}h" for hours in (10, 24))
RC95, RC99, RC99_24H = ("RC-like p95, 10h", "RC-like p99, 10h", "RC-like p99, 24h")
MAX_10H = "max(N-sigma 5, RC p99), 10h"
VPA_TARGET, CRANE = ("hist p90 24h +15% (VPA target)", "hist p99 24h +15% (Crane)")
KOORDINATOR = "Koordinator (p95/12h cpu, p98/24h mem, +10%)"

SIGMAS = "five deviations reach peaks that three miss, and give less away"
PODS = "v2 is the larger of v1 and of the sum over pods, whose deviations add up in full"
HISTORY = "ten hours do not have the highest hour of a day in them, which a horizon of 24 h has"
PERCENT = "a higher percentile of the same usage is a higher peak"
LARGEST = "the largest of several peaks is at least each of them"
COLD = "Koordinator counts the request of a pod in its first day, the other in two hours"
POOLING = "deviations of pods with peaks of their own do not add up in the total of a node"
SEASON = "within one hour of the day usage hardly varies, over a day it does"
WAVE = "the deviation of a daily wave is large, and five or three of it go far beyond its top"
RARE = "a burst in 330 samples is above every percentile of a pod, and moves its deviation"

RELATIONS: Final = (
    Relation("google_jobs", "violation", V2_5, V1_5, PODS),
    Relation("google_jobs", "savings", V2_5, V1_5, PODS),
    Relation("google_jobs", "violation", V1_5, V1_3, SIGMAS),
    Relation("google_jobs", "savings", V1_5, V1_3, SIGMAS),
    Relation("google_jobs", "violation", RC99_24H, RC99, HISTORY),
    Relation("google_jobs", "violation", NSIGMA_24H, NSIGMA_10H, HISTORY),
    Relation("google_jobs", "savings", NSIGMA_24H, NSIGMA_10H, HISTORY),
    Relation("google_jobs", "violation", RC99, RC95, PERCENT),
    Relation("google_jobs", "savings", RC99, RC95, PERCENT),
    Relation("google_jobs", "violation", CRANE, VPA_TARGET, PERCENT),
    Relation("google_jobs", "savings", CRANE, VPA_TARGET, PERCENT),
    Relation("google_jobs", "violation", MAX_10H, NSIGMA_10H, LARGEST),
    Relation("google_jobs", "violation", MAX_10H, RC99, LARGEST),
    Relation("google_jobs", "savings", MAX_10H, RC99, LARGEST),
    Relation("google_jobs", "violation", KOORDINATOR, "percentile", COLD),
    Relation("google_jobs", "savings", KOORDINATOR, "percentile", COLD),
    Relation("steady", "savings", "pods-nsigma", "nsigma-v1", POOLING),
    Relation("steady", "savings", "percentile", "nsigma-v1", POOLING),
    Relation("steady", "violation", V1_5, V1_3, SIGMAS),
    Relation("steady", "savings", RC99, RC95, PERCENT),
    Relation("daily", "savings", "nsigma-v1", "hourly-nsigma", SEASON),
    Relation("daily", "savings", "nsigma-v1", "percentile", WAVE),
    Relation("daily", "savings", V1_5, V1_3, WAVE),
    Relation("daily", "violation", NSIGMA_24H, NSIGMA_10H, HISTORY),
    Relation("daily", "savings", NSIGMA_24H, NSIGMA_10H, HISTORY),
    Relation("daily", "violation", RC99_24H, RC99, HISTORY),
    Relation("daily", "savings", RC99_24H, RC99, HISTORY),
    Relation("bursts", "violation", "pods-nsigma", "percentile", RARE),
    Relation("bursts", "savings", "pods-nsigma", "percentile", RARE),
    Relation("bursts", "violation", V2_5, V1_5, PODS),
    Relation("bursts", "savings", V2_5, V1_5, PODS),
    Relation("bursts", "violation", "max", "percentile", LARGEST),
)


def trace_called(name: str) -> Trace:
    if name in SHAPES:
        return trace_of(name, SHAPES[name](np.random.default_rng(25)))
    return next(each for each in read_dataset(TRACES, name) if each.scenario == "std")


@cache
def scores(trace: str) -> dict[str, FleetScores]:
    """The scores of each variant for a horizon of a day after three days."""
    suite = Suite(
        name=trace, dataset=trace, horizon_hours=24.0, burn_in_hours=72.0,
        stride_steps=24 if trace == "google_jobs" else 8,
    )  # fmt: skip
    variants = [*settings_variants(Settings(model=MODEL)), *PEERS]
    judgements = judge(trace_called(trace), [suite], variants)
    return {judgement.variant.name: judgement.fleet for judgement in judgements}


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda each: "-".join(each[:4]))
def test_predictors_are_in_this_order(relation: Relation) -> None:
    found = scores(relation.trace)
    less, more = (getattr(found[name], relation.measure) for name in (relation.less, relation.more))
    assert less + TIE[relation.measure] < more, relation.reason


@pytest.mark.parametrize("trace", ["google_jobs", *SHAPES])
@pytest.mark.parametrize(
    ("larger", "members"),
    [
        ("max", MEMBERS),
        (MAX_10H, (NSIGMA_10H,)),
        ("nsigma-v2", ("nsigma-v1", "pods-nsigma")),
        (V2_5, (V1_5,)),
    ],
)
def test_no_member_is_safer_than_their_maximum_or_saves_less(
    trace: str, larger: str, members: tuple[str, ...]
) -> None:
    found = scores(trace)
    for member in members:
        assert found[larger].violation <= found[member].violation
        assert found[larger].savings <= found[member].savings


@pytest.mark.parametrize("trace", ["google_jobs", *SHAPES])
def test_nothing_that_holds_saves_more_than_the_oracle(trace: str) -> None:
    found = scores(trace)
    assert {*MODEL.predictors} < {*found}
    safe = [each for each in found.values() if each.violation == 0.0]
    assert safe
    assert all(each.savings <= each.oracle_savings + 0.001 for each in safe)
