"""Plans with outcomes, alerts of the planner and judged peaks, as an extender reads them."""

from typing import Any, Final

import msgspec

from pipeline.extender.console_documents import ReliefReading
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.console.accuracy_document import JudgedFleet
from pipeline.processors.console.what_if_document import PublishedResults
from pipeline.table import FeedState
from pipeline.times import format_time
from pipeline.topics.accuracy import AccuracyRecord, Judgement, PeakAmounts, PredictorJudgement
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from tests.table.records import GIB, NOW
from tests.topics.golden import WHAT_IF

MADE: Final = NOW - 600.0
"""When the plan was made."""


def plan(id_: str = "p1", *, node: str = "node-00099", pods: int = 3, **more: Any) -> Any:
    """A plan that lets batch pods leave a node."""
    leaving = tuple(
        LeavingPod(
            uid=f"u{number}", pod_class="batch", namespace="jobs", name=f"crunch-{number}",
            cpu_millicores=250, memory_bytes=1 << 30, target="node-00001",
        )
        for number in range(pods)
    )  # fmt: skip
    usual = {
        "node": node, "id": id_, "at": format_time(MADE), "valid_until": format_time(MADE + 300),
        "planner": "planner", "why": "cpu 92.0% is above 80.0%", "pods": leaving,
        "strategy": "LowNodeLoad",
    }  # fmt: skip
    return EvictionPlanRecord(**(usual | more))


def action(outcome: Any, uid: str = "u0", **more: Any) -> ActionRecord:
    """An action of the evictor about a pod of the plan; without a uid about the whole plan."""
    usual: dict[str, Any] = {
        "node": "node-00099", "at": format_time(MADE), "actuator": "evictor", "action": "evict",
        "outcome": outcome, "why": "plan p1", "plan": "p1",
        "before": {f"jobs/{uid}": uid} if uid else {},
    }  # fmt: skip
    return ActionRecord(**(usual | more))


def relief(**more: Any) -> ReliefReading:
    """One plan: a pod left, one was refused, of one nothing is known; and a pool without a way
    out."""
    reading = ReliefReading(state=FeedState(caught_up=True, connected=True))
    log, alerts = reading.log, reading.alerts
    log.take_plan(plan(**more), MADE, NOW)
    log.take_action(action("intended"), MADE + 1, NOW)
    log.take_action(action("done"), MADE + 2, NOW)
    refused = action("refused", "u1", error="a PodDisruptionBudget allows no eviction")
    log.take_action(refused, MADE + 3, NOW)
    verdict = action("done", "", actuator="planner", why="the node cooled")
    log.take_action(verdict, MADE + 500, NOW)
    alerts.take(
        AlertRecord(
            node="", as_of=format_time(MADE), epoch=0, generation=0, offset=1, id="pool gpu",
            rule="all_nodes_hot", transition="opened", severity="critical",
            since=format_time(MADE), duration_seconds=0.0, pool="gpu", why="all 3 nodes are hot",
        ),
        0.0,
    )  # fmt: skip
    return reading


def judged(node: str, made_at: float = NOW - 86_400.0, **more: Any) -> AccuracyRecord:
    """Peaks of two predictors: usage of CPU exceeded one of them, memory is not known."""
    one = {"peak": 3000.0, "severity": 0.0, "savings": 0.25}
    predictors = {
        "calibrated": PredictorJudgement(cpu=Judgement(violated=True, **one | {"severity": 0.2})),
        "percentile": PredictorJudgement(cpu=Judgement(violated=False, **one)),
    }
    usual: dict[str, Any] = {
        "node": node, "as_of": format_time(made_at + 86_400.0), "epoch": 1, "generation": 1,
        "offset": 1, "made_at": format_time(made_at), "horizon_seconds": 86_400.0, "pool": "gpu",
        "decides": "calibrated", "requests": PeakAmounts(cpu=4000.0, memory=1.0 * GIB),
        "highest": PeakAmounts(cpu=2500.0), "known_share_cpu": 1.0, "known_share_memory": 0.0,
        "predictors": predictors,
    }  # fmt: skip
    return AccuracyRecord(**(usual | more))


async def read_results() -> PublishedResults:
    """Two results, and a record that is none."""
    results = PublishedResults()
    older = msgspec.structs.replace(WHAT_IF, name="first", difference=(), traces=())
    for record, at in ((older, MADE), (WHAT_IF, MADE + 60.0)):
        results.take(record.name.encode(), encode_json(record), at)
    results.take(b"bad", b"{", MADE)
    return results


async def read_judged(since: float, now: float) -> JudgedFleet:
    """Two nodes of one pool with a declared risk."""
    totals = AccuracyTotals()
    for node in ("node-1", "node-2"):
        totals.add(judged(node))
    deciding = dict.fromkeys(("node-1", "node-2"), ("gpu", "calibrated"))
    return JudgedFleet(totals, deciding, {"gpu": 0.02}, since, now)
