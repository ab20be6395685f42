"""Judged peaks by group, beside the risk that the pool declares."""

import asyncio

from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.console.accuracy_document import JudgedFleet, accuracy_document
from tests.extender.console_samples import judged, read_judged
from tests.table.records import NOW


def test_scores_are_those_of_the_totals_and_unknown_is_null() -> None:
    made = accuracy_document(asyncio.run(read_judged(NOW - 86_400.0, NOW)))
    rows = list(zip(made.predictor, made.resource, strict=True))
    assert rows == [
        ("calibrated", "cpu"), ("calibrated", "memory"),
        ("percentile", "cpu"), ("percentile", "memory"),
    ]  # fmt: skip
    assert made.violation == [1.0, None, 0.0, None]
    assert made.severity == [0.2, None, None, None]
    assert made.savings == [0.25, None, 0.25, None]
    assert made.possible_savings == [0.375, None, 0.375, None]
    assert (made.nodes, made.judged, made.unjudged) == ([2, 0, 2, 0], [2, 0, 2, 0], [0, 2, 0, 2])
    assert made.deciding_nodes == [2, 2, 0, 0]
    assert made.declared_risk == [0.02, 0.02, None, None]
    assert made.judged_until_seconds == [round(NOW), None, round(NOW), None]


def test_a_pool_without_a_name_is_the_default_pool() -> None:
    totals = AccuracyTotals()
    totals.add(judged("a", pool=""))
    risks = {"__default_node_pool__": 0.05}
    made = accuracy_document(JudgedFleet(totals, {"a": ("", "calibrated")}, risks, 0.0, NOW))
    assert made.pool == ["__default_node_pool__"] * 4
    assert (made.deciding_nodes[0], made.declared_risk[0]) == (1, 0.05)
