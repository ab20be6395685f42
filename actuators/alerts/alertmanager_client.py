"""Send alerts to one Alertmanager, and repeat until it has them.

Alerts wait by their labels, so that of an alert only the newest state is sent, and an Alertmanager
that is down costs a bounded amount of memory.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

import aiohttp
import msgspec

from pipeline.bearer_tokens import authorization
from pipeline.clock import Clock
from pipeline.errors import UsageError, unanswered_reason
from pipeline.kafka.follow import Backoff
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.hot_nodes.firing_alerts import FiringAlert, Labels, posted_alert
from pipeline.settings import NotifierSettings

log = get_logger(__name__)

SENT = counter(
    "notifier_alerts", "Alerts that an Alertmanager accepted or refused.", ["url", "result"]
)
FAILED = counter("notifier_failed_requests", "Requests without success, to be repeated.", ["url"])
WAITING = gauge("notifier_waiting_alerts", "Alerts that wait to be sent.", ["url"])

LIFETIMES: Final = 4
"""An alert that is not repeated fires for so many repetitions, as alerts of Prometheus do."""
_MOST_AT_ONCE: Final = 500
"""Alerts of a request. After a failure the next one has half as many, and others come first: an
Alertmanager may be too slow for so many, or fail because of one."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MOST_OF_BODY: Final = 2_000
_REFUSED: Final = (400, 413, 422)


class _Waiting(NamedTuple):
    firing: FiringAlert
    ended_at: float | None = None


class AlertmanagerClient:
    """The alerts that one Alertmanager does not have yet."""

    def __init__(
        self, url: str, settings: NotifierSettings, session: aiohttp.ClientSession, clock: Clock
    ) -> None:
        self._url = url.rstrip("/")
        self._token_file = settings.token_file
        self._lifetime_seconds = LIFETIMES * settings.resend_seconds
        self._session, self._clock = session, clock
        self._waiting: dict[Labels, _Waiting] = {}
        self._has_work = asyncio.Event()
        self._problem: str | None = None
        self._refused: list[str] = []
        self._at_once = _MOST_AT_ONCE

    def fire(self, alerts: Mapping[Labels, FiringAlert]) -> None:
        """Send these alerts as firing, soon."""
        self._add({labels: _Waiting(firing) for labels, firing in alerts.items()})

    def resolve(self, alerts: Mapping[Labels, FiringAlert], now: float) -> None:
        """Send that these alerts ended `now`, soon."""
        self._add({labels: _Waiting(firing, now) for labels, firing in alerts.items()})

    def _add(self, waiting: Mapping[Labels, _Waiting]) -> None:
        self._waiting.update(waiting)
        if waiting:
            self._has_work.set()

    async def run(self) -> None:
        """Send what waits, until cancelled."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            await self._has_work.wait()
            self._drop_expired()
            batch = dict(islice(self._waiting.items(), self._at_once))
            self._refused = []
            self._note(await self._post(batch) if batch else None)
            if self._problem is None:
                backoff.reset()
                self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
                for labels, sent in batch.items():
                    if self._waiting.get(labels) is sent:
                        del self._waiting[labels]
            else:
                self._at_once = max(self._at_once // 2, 1)
                for labels in batch:
                    self._waiting[labels] = self._waiting.pop(labels)
            if not self._waiting:
                self._has_work.clear()
            WAITING.labels(self._url).set(len(self._waiting))
            if self._problem is not None:
                await self._clock.sleep(backoff.pause())

    def _drop_expired(self) -> None:
        """Drop ended alerts that no longer fire in any case."""
        oldest = self._clock.now() - self._lifetime_seconds
        self._waiting = {
            labels: waiting
            for labels, waiting in self._waiting.items()
            if waiting.ended_at is None or waiting.ended_at > oldest
        }

    async def _post(self, batch: Mapping[Labels, _Waiting]) -> str | None:
        """Send these alerts; why they must be sent again, or None."""
        ends_at = self._clock.now() + self._lifetime_seconds
        body = msgspec.json.encode([
            posted_alert(labels, firing, ends_at if ended_at is None else ended_at)
            for labels, (firing, ended_at) in batch.items()
        ])  # fmt: skip
        try:
            headers = {"Content-Type": "application/json", **authorization(self._token_file)}
            async with self._session.post(
                f"{self._url}/api/v2/alerts", data=body, headers=headers, timeout=_TIMEOUT,
                allow_redirects=False,
            ) as response:  # fmt: skip
                text = (await response.content.read(_MOST_OF_BODY)).decode(errors="replace")
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return unanswered_reason(error)
        except (UsageError, ValueError) as error:
            return f"notifier.token_file: {error}"
        if status in _REFUSED and len(batch) > 1:
            # It may have kept none because of one.
            alerts = [*batch.items()]
            half = len(alerts) // 2
            problem = await self._post(dict(alerts[:half]))
            return await self._post(dict(alerts[half:])) if problem is None else problem
        if status in _REFUSED:
            # It would refuse the alert each time.
            self._refused.append(text[:300])
            SENT.labels(self._url, "refused").inc()
            return None
        if not 200 <= status < 300:
            return f"answer {status}: {text[:200]}"
        SENT.labels(self._url, "accepted").inc(len(batch))
        return None

    def _note(self, problem: str | None) -> None:
        if self._refused:
            log.warning("Alertmanager refuses alerts", url=self._url, alerts=len(self._refused),
                        answer=self._refused[0])  # fmt: skip
        if problem is not None:
            FAILED.labels(self._url).inc()
        if problem is not None and problem != self._problem:
            hint = "check notifier.alertmanager_urls, and whether Alertmanager answers there"
            log.warning("alerts are not sent, trying again", url=self._url, why=problem, hint=hint)
        if problem is None and self._problem is not None:
            log.info("alerts are sent again", url=self._url)
        self._problem = problem
