"""The state table: compacted topics as columns in memory, one row a node.

Read by the extender, `springtide top`, the planner and the console. `columns` holds the table and
declares what it shows; `feed` keeps it equal to the topics.
"""

from pipeline.table.columns import COLUMNS, UNKNOWN_ROW, Column, Row, Table
from pipeline.table.feed import Feed, FeedState

__all__ = ["COLUMNS", "UNKNOWN_ROW", "Column", "Feed", "FeedState", "Row", "Table"]
