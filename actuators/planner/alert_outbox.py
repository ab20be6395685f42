"""Write changes of the planner's alerts to `springtide.alerts`, in order, until delivered."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from pipeline.errors import KafkaError
from pipeline.logs import get_logger
from pipeline.processors.descheduling.relief_alerts import MOST_OPEN, ReliefAlerts
from pipeline.topics.alerts import AlertRecord

log = get_logger(__name__)


class AlertOutbox:
    """Records of `alerts` that are not delivered yet. `publish` raises `KafkaError`, `may_publish`
    is asked before each record."""

    def __init__(
        self, alerts: ReliefAlerts, publish: Callable[[AlertRecord], Awaitable[None]],
        may_publish: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._alerts, self._publish, self._may_publish = alerts, publish, may_publish
        self._unsent: deque[AlertRecord] = deque(maxlen=2 * MOST_OPEN)

    def add(self, records: Iterable[AlertRecord]) -> None:
        """Write these records, too, after those that wait."""
        self._unsent += records

    async def send(self, now: float) -> None:
        """Write what waits, and again the alerts that have been open for long."""
        self._unsent += self._alerts.repeats(now)
        while self._unsent and self._may_publish():
            record = self._unsent[0]
            try:
                await self._publish(record)
            except KafkaError as error:
                log.warning("alert is not delivered, trying again", id=record.id,
                            why=error.message)  # fmt: skip
                return
            self._unsent.popleft()
            log.info("alert", id=record.id, change=record.transition, why=record.why)
