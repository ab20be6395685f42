"""The state table: compacted topics as columns in memory, one row a node.

Read by the extender, `springtide top`, the planner and the console. `table` holds it, `columns`
declares what it shows, `pods` what it sums of the pods of each node; `feed` keeps it equal to the
topics.
"""

from pipeline.table.node_columns import COLUMNS, Column, NodeRecords
from pipeline.table.state_table import UNKNOWN_ROW, RowArray, Rows, Table
from pipeline.table.table_feed import AND_PODS, Feed, FeedState

__all__ = [
    "AND_PODS", "COLUMNS", "UNKNOWN_ROW", "Column", "Feed", "FeedState", "NodeRecords", "RowArray",
    "Rows", "Table",
]  # fmt: skip
