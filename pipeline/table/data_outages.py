"""Outages of the data behind the table: usage that stopped for most nodes, and a dead watcher."""

from pipeline.processors.loadaware.usage_outage import UsageOutage, usage_outage
from pipeline.table.state_table import Table
from pipeline.topics.heartbeats import WatcherTrouble

_ALL_ROWS = slice(None)


class DataOutages:
    """The outages of one table, whose windows are stale after `stale_after_seconds`."""

    def __init__(self, table: Table, stale_after_seconds: float) -> None:
        self._table = table
        self._stale_after_seconds = stale_after_seconds
        self._usage: UsageOutage | None = None
        self._asked: tuple[int, float] | None = None

    def usage(self, now: float) -> UsageOutage | None:
        """The outage of usage at `now`, None without one."""
        if self._asked != (self._table.version, now):
            self._asked = self._table.version, now
            self._usage = usage_outage(
                now,
                self._table["as_of_seconds"],
                self._table["window_seconds"],
                self._table.fresh(_ALL_ROWS, now, self._stale_after_seconds),
                self._table["has_node"],
                self._usage,
            )
        return None if self._usage is None or self._usage.is_over else self._usage

    @property
    def has_watcher(self) -> bool:
        """Whether a watcher writes Nodes and Pods; else another source does."""
        return self._table.is_watched

    def watcher(self, now: float) -> WatcherTrouble | None:
        """What is wrong with the watcher at `now`; None if nothing is, or there is none."""
        trouble = self._table.heartbeats.trouble(now)
        return trouble if self._table.is_watched else None
