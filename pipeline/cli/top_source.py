"""Where `springtide top` gets the state table from: the topics, or a running extender."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import msgspec

from pipeline.cli.extender_client import ExtenderClient
from pipeline.cli.node_table import JudgedPeaks
from pipeline.cli.past_records import records_since
from pipeline.cli.table_reading import feed_table, read_table
from pipeline.clock import SystemClock
from pipeline.errors import SpringtideError
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.settings import Settings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import NO_FACTS, NodeFacts, NodeItem, node_facts
from pipeline.table.table_feed import NODE_TOPICS
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.registry import ACCURACY, PODS

ACCURACY_SECONDS: Final = 7 * 86_400.0
"""Peaks that were judged in this time before the command started, and since then, count."""


class TableReading(NamedTuple):
    """The state table, facts about its nodes from other records, why it is not fed (empty while it
    is), and judged peaks if they are read."""

    table: Table
    facts: NodeFacts = NO_FACTS
    problem: str = ""
    judged: JudgedPeaks | None = None


Source = AsyncGenerator[TableReading, None]


async def read_kafka(settings: Settings, *, is_live: bool, pods: bool, accuracy: bool) -> Source:
    """Yield the table of the topics, and judged peaks, again and again; a live view also while
    nothing is read."""
    topics = (*NODE_TOPICS, PODS) if pods else NODE_TOPICS
    open_feed = feed_table if is_live else read_table
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(open_feed(settings, Table(), topics))
        while not feed.state.caught_up:
            yield TableReading(feed.table, problem=feed.state.message)
        judged = None
        if accuracy:
            since = SystemClock().now() - ACCURACY_SECONDS
            records = await stack.enter_async_context(
                records_since(settings.kafka, ACCURACY, AccuracyRecord, since)
            )
            judged = JudgedPeaks(AccuracyTotals(), settings.model.accuracy_interval_seconds)
            async for record in records.each_to_end():
                judged.totals.add(record)
        while True:
            table, names = feed.table, tuple(feed.table)
            yield TableReading(
                table,
                node_facts(table, names, has_pods=pods),
                "" if feed.state.connected else feed.state.message,
                judged,
            )
            if judged:
                for record in await records.next(timeout_seconds=0.0):
                    judged.totals.add(record)


class NodeStateList(msgspec.Struct):
    """The extender's answer to GET /v1/nodes."""

    items: list[NodeItem]
    without_state: list[str] = []


async def read_extender(extender: ExtenderClient, *, is_live: bool) -> Source:
    """Request the nodes from an extender again and again, and yield them as a table. A live view
    keeps the last one while there is no answer."""
    reading = TableReading(Table())
    async with extender.session() as session:
        while True:
            try:
                nodes = await extender.request(session, "/v1/nodes", NodeStateList)
                reading = build_table(nodes)
            except SpringtideError as error:
                if not is_live:
                    raise
                reading = reading._replace(problem=error.message)
            yield reading


def build_table(nodes: NodeStateList) -> TableReading:
    table = Table()
    for item in nodes.items:
        table.put_state(item)
    for name in nodes.without_state:
        table.put_node(TableNode(node=name))
    limits = {item.node: item.limits_ratio for item in nodes.items if item.limits_ratio}
    problems = {
        item.node: item.usage_thresholds_problem
        for item in nodes.items
        if item.usage_thresholds_problem
    }
    return TableReading(table, NodeFacts(limits, problems))
