"""Invalid annotations are logged once, and again when they change."""

import asyncio
import logging
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.extender.annotation_warnings import log_invalid_thresholds, watch_annotations
from pipeline.extender.limits import ANNOTATION_CHECK_SECONDS
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.tasks import cancel_tasks

NEGATIVE = '{"usageThresholds": {"cpu": -1}}'


def annotate(table: Table, text: str, *names: str) -> None:
    for name in names:
        table.put_node(TableNode(node=name, annotations={ANNOTATION: text}))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, list[str]]]:
    """How many nodes each line is about, and which it names; forgotten afterwards."""
    fields_of_lines: list[Any] = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    caplog.clear()
    assert all(ANNOTATION in fields["reason"] for fields in fields_of_lines)
    return [(fields["count"], fields["nodes"]) for fields in fields_of_lines]


def test_each_annotation_is_logged_once_and_nodes_with_the_same_problem_share_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    table = Table()
    annotate(table, "{", "a")
    annotate(table, NEGATIVE, "b", "c", "d", "e")
    annotate(table, '{"usageThresholds": {"cpu": 1}}', "f")
    logged = log_invalid_thresholds(table, {})
    assert lines(caplog) == [(1, ["a"]), (4, ["b", "c", "d"])]
    logged = log_invalid_thresholds(table, logged)
    assert lines(caplog) == []
    # The text changed, and has the same problem.
    annotate(table, NEGATIVE + " ", "c")
    annotate(table, "{}", "a")
    logged = log_invalid_thresholds(table, logged)
    assert lines(caplog) == [(1, ["c"])]
    # An annotation that was corrected, and is invalid again, is logged again.
    annotate(table, "{", "a")
    table.drop_node("c")
    assert log_invalid_thresholds(table, logged).keys() == {"a", "b", "d", "e"}
    assert lines(caplog) == [(1, ["a"])]


async def test_annotations_that_appear_later_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    table, clock = Table(), ManualClock(0.0)
    annotate(table, "{", "a")
    caplog.set_level(logging.WARNING)
    telling = asyncio.create_task(watch_annotations(table, clock))
    await clock.advance(ANNOTATION_CHECK_SECONDS)
    annotate(table, "[", "b")
    await clock.advance(2 * ANNOTATION_CHECK_SECONDS)
    await cancel_tasks(telling)
    assert lines(caplog) == [(1, ["a"]), (1, ["b"])]
