"""Prometheus as a provider: a query a column, at the end of the window.

Owes the rest: a query that fails is asked again while that may help, and then costs its column.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

from pipeline.clock import Clock
from pipeline.errors import ProviderError, SettingsError
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.processors.provided.fetched_usage import FetchedUsage, TimeWindow
from pipeline.processors.provided.prometheus_answers import Matrix, error_text, gather, read_matrix
from pipeline.processors.provided.promql import Query, QueryGrid, queries
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.providers.protocol import SampleSource
from pipeline.sources.providers.provider_metrics import CLOCK_AHEAD, REQUESTS

log = get_logger(__name__)

_ATTEMPTS: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.5
_AT_ONCE: Final = 4
_MOST_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 1 << 18
# What a server says that may be able to answer later.
_LATER: Final = (408, 429, 500, 502, 503, 504)
_SKEW_SECONDS: Final = 5.0


def grid_of(settings: ProviderSettings) -> QueryGrid:
    """How windows are asked for."""
    return QueryGrid(
        settings.window_seconds,
        settings.step_seconds,
        settings.rate_seconds,
        settings.node_label,
        settings.pod_node_label,
    )


class Prometheus:
    """A session with Prometheus; made by `open_prometheus`."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: ProviderSettings, clock: Clock
    ) -> None:
        """Raises `SettingsError` for a query that cannot be."""
        self._session = session
        self._settings = settings
        self._clock = clock
        self._grid = grid_of(settings)
        self._queries = queries(settings.queries, self._grid)
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._warned: set[str] = set()

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Usage in `window`, which has the length of the settings. Raises `ProviderError` if no
        query is answered."""
        asked = [self._ask(query, window) for query in self._queries]
        answers: dict[Query, Matrix] = {}
        failed: dict[str, ProviderError] = {}
        for query, answer in zip(self._queries, await asyncio.gather(*asked), strict=True):
            if isinstance(answer, ProviderError):
                failed[query.key] = answer
            else:
                answers[query] = answer
                self._warn(answer.warnings)
        if failed and not answers:
            raise next(iter(failed.values()))
        # Large answers take longer than a lease may wait for its renewal.
        found = await asyncio.to_thread(gather, answers, window, self._grid)
        found.failed = {key: error.message for key, error in failed.items()}
        return found

    async def _ask(self, query: Query, window: TimeWindow) -> Matrix | ProviderError:
        async with self._turn:
            pause = _FIRST_PAUSE_SECONDS
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return await asyncio.to_thread(read_matrix, await self._once(query, window))
                except ProviderError as error:
                    if not error.may_pass or attempt == _ATTEMPTS:
                        return error
                await self._clock.sleep(pause * (0.5 + random.random() / 2))
                pause *= 2
        raise AssertionError("the last attempt returns")

    async def _once(self, query: Query, window: TimeWindow) -> bytes:
        params = {"query": query.text, "time": f"{window.end_ms / 1000:.3f}"}
        url = f"{self._settings.url.rstrip('/')}/api/v1/query"
        timeout = aiohttp.ClientTimeout(total=self._settings.query_timeout_seconds)
        try:
            async with self._session.get(
                url,
                params=params,
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                REQUESTS.labels(str(response.status)).inc()
                self._note_clock(response.headers.get("Date", ""))
                body = await _body(response)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            REQUESTS.labels("no answer").inc()
            text = str(error) or type(error).__name__
            raise ProviderError(f"{self._settings.url}: {text}", may_pass=True) from error
        if status != 200:
            raise ProviderError(
                f"{self._settings.url}: {status} {error_text(body)}", may_pass=status in _LATER
            )
        return body

    def _headers(self) -> dict[str, str]:
        file = self._settings.token_file
        if file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {file.read_text('ascii').strip()}"}
        except (OSError, UnicodeError) as error:
            raise ProviderError(f"provider.token_file: {file} cannot be read: {error}") from error

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
                log.warning("prometheus", warning=text[:300])


async def _body(response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        found += piece
        if len(found) > _MOST_BYTES:
            raise ProviderError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
    return bytes(found)


@asynccontextmanager
async def open_prometheus(
    settings: Settings, clock: Clock, api: Api | None
) -> AsyncIterator[Prometheus]:
    """Open a session with Prometheus, without a request. Raises `SettingsError` for invalid queries
    and files."""
    connector = aiohttp.TCPConnector(ssl=_tls(settings.provider))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Prometheus(session, settings.provider, clock)


SOURCE: Final = SampleSource(
    name="prometheus",
    text="metrics of node-exporter and cAdvisor",
    open=open_prometheus,
    hint="check the queries with --show-queries; the labels --node-label and --pod-node-label must "
    "contain the names of nodes",
)


def _tls(settings: ProviderSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"provider.ca_file: {settings.ca_file} cannot be used: {error.strerror or error}",
            key="provider.ca_file",
            hint="a readable file in PEM format",
        ) from error
    if settings.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
