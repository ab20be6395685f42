"""Usage from Prometheus: one query per column, evaluated at the end of the window.

A failed query is retried if the error is transient. If it still fails, its column is missing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

from pipeline.bearer_tokens import authorization
from pipeline.clock import Clock
from pipeline.errors import SampleSourceError, UsageError
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.processors.imported_usage.prometheus_answers import (
    Matrix,
    error_text,
    gather,
    read_matrix,
)
from pipeline.processors.imported_usage.promql import Query, QueryGrid, queries
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.limits import CONCURRENT_QUERIES
from pipeline.sources.prometheus_requests import TRANSIENT, get, retried
from pipeline.sources.provider.sample_source import SampleSource
from pipeline.tls import https_context

log = get_logger(__name__)

REQUESTS: Final = counter(
    "provider_requests", "Requests to Prometheus, by status code.", ["status"]
)
CLOCK_AHEAD: Final = gauge(
    "provider_clock_ahead_seconds", "Time that the local clock is ahead of Prometheus."
)

_SKEW_SECONDS: Final = 5.0


def show_queries(settings: ProviderSettings) -> Iterator[str]:
    """Yield each query below the key that replaces it in `provider.queries`."""
    for query in queries(settings.queries, query_grid(settings)):
        yield f"{query.key}\n  {query.text.replace(chr(10), '')}"


def query_grid(settings: ProviderSettings) -> QueryGrid:
    """Return the window, step and labels of the queries."""
    return QueryGrid(
        settings.window_seconds,
        settings.step_seconds,
        settings.rate_seconds,
        settings.node_label,
        settings.pod_node_label,
    )


class PrometheusSession:
    """A session with Prometheus; created by `open_prometheus`."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: ProviderSettings, clock: Clock
    ) -> None:
        """Raises `SettingsError` for an invalid query."""
        self._session = session
        self._settings = settings
        self._clock = clock
        self._grid = query_grid(settings)
        self._queries = queries(settings.queries, self._grid)
        self._concurrency = asyncio.Semaphore(CONCURRENT_QUERIES)
        self._warned: set[str] = set()

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Return the usage in `window`, whose length must be that of the settings.

        Raises `SampleSourceError` if all queries fail.
        """
        attempts = [self._answer(query, window) for query in self._queries]
        answers: dict[Query, Matrix] = {}
        failed: dict[str, SampleSourceError] = {}
        for query, answer in zip(self._queries, await asyncio.gather(*attempts), strict=True):
            if isinstance(answer, SampleSourceError):
                failed[query.key] = answer
            else:
                answers[query] = answer
                self._warn(answer.warnings)
        if failed and not answers:
            raise next(iter(failed.values()))
        # In a thread, because a large answer would delay the renewal of the lease.
        usage = await asyncio.to_thread(gather, answers, window, self._grid)
        usage.failed = {key: error.message for key, error in failed.items()}
        return usage

    async def _answer(self, query: Query, window: TimeWindow) -> Matrix | SampleSourceError:
        async def attempt() -> Matrix:
            async with self._concurrency:
                return await asyncio.to_thread(read_matrix, await self._request(query, window))

        try:
            return await retried(self._clock, attempt)
        except SampleSourceError as error:
            return error

    async def _request(self, query: Query, window: TimeWindow) -> bytes:
        params = {"query": query.text, "time": f"{window.end_ms / 1000:.3f}"}
        url = f"{self._settings.url.rstrip('/')}/api/v1/query"
        timeout = self._settings.query_timeout_seconds
        try:
            answer = await get(self._session, url, params, self._headers(), timeout)
        except SampleSourceError as error:
            REQUESTS.labels("no answer").inc()
            raise SampleSourceError(
                f"{self._settings.url}: {error.message}",
                may_pass=error.may_pass,
                hint="check provider.url, and whether Prometheus answers there",
            ) from error
        self._note_clock(answer.date)
        REQUESTS.labels(str(answer.status)).inc()
        if answer.status != 200:
            raise SampleSourceError(
                f"{self._settings.url}: {answer.status} {error_text(answer.body)}",
                may_pass=answer.status in TRANSIENT,
            )
        return answer.body

    def _headers(self) -> dict[str, str]:
        file = self._settings.token_file
        try:
            return authorization(file)
        except (UsageError, ValueError) as error:
            raise SampleSourceError(f"provider.token_file {file}: {error}") from error

    def _note_clock(self, date: str) -> None:
        try:
            ahead = self._clock.now() - parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        CLOCK_AHEAD.set(ahead)
        if abs(ahead) > _SKEW_SECONDS:
            self._warn(("clocks differ by more than 5 s: springtide_provider_clock_ahead_seconds",))

    def _warn(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            if text not in self._warned and len(self._warned) < 100:
                self._warned.add(text)
                log.warning("Prometheus needs attention", warning=text[:300])


@asynccontextmanager
async def open_prometheus(
    settings: Settings, clock: Clock, api: Api | None
) -> AsyncIterator[PrometheusSession]:
    """Open a session without sending a request.

    Raises `SettingsError` for an invalid query or CA file.
    """
    ca_file, is_verified = settings.provider.ca_file, not settings.provider.insecure_skip_verify
    context = https_context("provider.ca_file", ca_file, verify=is_verified)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield PrometheusSession(session, settings.provider, clock)


SOURCE: Final = SampleSource(
    name="prometheus",
    text="Prometheus with the metrics of node-exporter and cAdvisor",
    open=open_prometheus,
    queries=show_queries,
    hint="check the queries with --show-queries; the labels --node-label and --pod-node-label must "
    "contain the names of nodes",
)
