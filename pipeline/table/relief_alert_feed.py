"""Feed alerts of the planner, about hot nodes that cannot be relieved, from their topic."""

from pipeline.clock import Clock
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, may_be_relief_alert
from pipeline.table.apply_records import Headers
from pipeline.table.state_table import Table
from pipeline.table.table_feed import Apply
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import Topic


def apply_relief_alerts(alerts: ReliefAlerts, clock: Clock) -> Apply:
    """What a `Feed` of `springtide.alerts` applies to `alerts`; its table stays empty. Read the
    last `FORGOTTEN_SECONDS`."""

    def apply(
        _table: Table, _topic: Topic, _key: bytes | None, value: bytes | None, _headers: Headers
    ) -> bool:
        if value is None or not may_be_relief_alert(value):
            return False
        return alerts.take(decode_json(AlertRecord, value), clock.now())

    return apply
