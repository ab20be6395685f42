"""The state table: compacted topics as columns in memory, one row a node.

The extender, `springtide top` and the metrics page read it. `state_table` holds it, `node_columns`
declares its columns, `pod_table` sums the pods of each node, `table_feed` fills it from the topics.
"""

from pipeline.table.node_columns import COLUMNS, Column, NodeRecords
from pipeline.table.node_names import UNKNOWN_ROW, NodeNames, RowArray, Rows
from pipeline.table.state_table import Table
from pipeline.table.table_feed import NODE_AND_POD_TOPICS, Feed, FeedState

__all__ = [
    "COLUMNS", "NODE_AND_POD_TOPICS", "UNKNOWN_ROW", "Column", "Feed", "FeedState", "NodeNames",
    "NodeRecords", "RowArray", "Rows", "Table",
]  # fmt: skip
