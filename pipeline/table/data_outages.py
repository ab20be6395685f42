"""Outages of the data behind the table: usage that stopped for most nodes, and a dead watcher."""

from pipeline.processors.loadaware.usage_outage import UsageOutage, usage_outage
from pipeline.table.state_table import Table
from pipeline.topics.heartbeats import is_alive

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
                self._table["as_of_seconds"],
                self._table["window_seconds"],
                self._table.fresh(_ALL_ROWS, now, self._stale_after_seconds),
                self._table["has_node"],
                self._usage,
            )
        return self._usage

    @property
    def has_watcher(self) -> bool:
        """Whether there was any heartbeat; else another source writes Nodes and Pods."""
        return self._table.last_heartbeat is not None

    def watcher(self, now: float) -> float | None:
        """Seconds since the last heartbeat of a dead watcher, below 0 if that is in the future;
        None for an alive one."""
        heartbeat = self._table.last_heartbeat
        return None if heartbeat is None or is_alive(now - heartbeat) else now - heartbeat
