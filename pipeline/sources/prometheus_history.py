"""Read the history of a cluster from a Prometheus, for a report.

Queries of pods are cut in time, so that none computes more than `MOST_INNER_SAMPLES` on the server;
a part that the server still refuses as too large is halved. At most `CONCURRENT_QUERIES` run at a
time, and each is repeated a few times.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp

from pipeline.bearer_tokens import authorization, is_loopback
from pipeline.clock import Clock
from pipeline.errors import (
    InvalidRecordError,
    SampleSourceError,
    TooManySamplesError,
    UsageError,
)
from pipeline.input_files import read_file
from pipeline.processors.backtest.prometheus_ranges import read_columns, read_vector
from pipeline.processors.imported_usage.prometheus_answers import error_text
from pipeline.processors.report.cluster_usage import HOUR_SECONDS
from pipeline.processors.report.prometheus_history import (
    History,
    HourSamples,
    Vector,
    hour_samples,
)
from pipeline.processors.report.prometheus_queries import (
    INSTANT,
    NODE_RANGES,
    POD_RANGES,
    SCRAPES,
    Span,
    filled,
    rate_seconds,
)
from pipeline.sources.limits import (
    CONCURRENT_QUERIES,
    HISTORY_QUERY_SECONDS,
    MOST_INNER_SAMPLES,
    MOST_QUERY_HOURS,
)
from pipeline.sources.prometheus_requests import TRANSIENT, get, retried
from pipeline.tls import https_context

_T = TypeVar("_T")
Report = Callable[[float], None]

_TOO_MANY: Final = "too many samples"
_TOO_LARGE: Final = 422
_TIMED_OUT: Final = "timeout:"
_UNAVAILABLE: Final = 503
_SLOW: Final = "shorten the history with --since, or ask when the server has less to do"
_MOST_WARNINGS: Final = 5
_HINTS: Final = {
    401: "give --token-file or --basic-auth-file",
    403: "the credentials may not query: give another --token-file or --basic-auth-file",
    404: "give the URL below which /api/v1/query is, with its path prefix if it has one",
}
_MISSING: Final = {
    "allocatable": "kube_node_status_allocatable: scrape kube-state-metrics",
    "running": "running pods (kube_pod_info, kube_pod_status_phase): scrape kube-state-metrics",
    "cpu_mean": "container_cpu_usage_seconds_total with labels container and pod: scrape the "
    "kubelet's /metrics/cadvisor",
}


class PrometheusAccess(NamedTuple):
    """Where a Prometheus is, and the files with credentials. `basic_auth_file` has one line,
    `user:password`."""

    url: str
    token_file: Path | None = None
    basic_auth_file: Path | None = None
    ca_file: Path | None = None


class HistorySession:
    """A session for the queries of one report; created by `open_history`."""

    def __init__(
        self, session: aiohttp.ClientSession, access: PrometheusAccess, clock: Clock
    ) -> None:
        self._session = session
        self._access = access
        # Compression costs the server more than all it computes.
        self._headers = {**_headers(access), "Accept-Encoding": "identity"}
        self._clock = clock
        self._concurrency = asyncio.Semaphore(CONCURRENT_QUERIES)
        self._warnings: set[str] = set()

    async def read(
        self, end_seconds: int, hours: int, matchers: Sequence[str], report: Report
    ) -> History:
        """The answers for the hours that end at `end_seconds`, a whole hour; `report` gets the
        share that is done.

        Raises `SampleSourceError` if a query fails or needed series are missing, `UsageError` for
        an invalid matcher.
        """
        scrapes = await self._vector(
            filled(SCRAPES, Span(hours, matchers=tuple(matchers))), end_seconds
        )
        span = Span(hours, rate_seconds(scrapes[0][1]) if scrapes else 3600, tuple(matchers))
        progress = _Progress(report, len(INSTANT) + 2 * hours)
        running = await self._vector(filled(INSTANT["running"], span), end_seconds)
        self._require("running", running)
        names = [name for name in INSTANT if name != "running"]
        parts = self._parts(len(running), span)
        async with _first_error(), asyncio.TaskGroup() as group:
            instants = {
                name: group.create_task(
                    progress.counted(self._vector(filled(INSTANT[name], span), end_seconds), 1)
                )
                for name in names
            }
            ranges = {
                name: [
                    group.create_task(
                        progress.counted(
                            self._range(filled(text, span), end_seconds, hours, first, last),
                            (last - first) if name in POD_RANGES else 0,
                        )
                    )
                    for first, last in (parts if name in POD_RANGES else [(0, hours)])
                ]
                for name, text in {**NODE_RANGES, **POD_RANGES}.items()
            }
        vectors = {name: task.result() for name, task in instants.items()} | {"running": running}
        for name in _MISSING:
            self._require(name, vectors[name])
        return History(
            end_seconds,
            hours,
            span.rate_seconds,
            vectors,
            {
                name: [part for task in tasks for part in task.result()]
                for name, tasks in ranges.items()
            },
            [f"{warning:.200}" for warning in sorted(self._warnings)[:_MOST_WARNINGS]],
        )

    def _require(self, name: str, vector: Vector) -> None:
        if not vector:
            raise SampleSourceError(
                f"{self._access.url} has no {_MISSING[name]}",
                hint="docs/how-to/report.md lists the series; check --until, and that --match "
                "selects series of nodes, too",
            )

    @staticmethod
    def _parts(pods: int, span: Span) -> list[tuple[int, int]]:
        """The hours (first, end) of each query of pods."""
        by_hour = max(pods, 1) * HOUR_SECONDS // span.rate_seconds
        length = min(max(MOST_INNER_SAMPLES // by_hour, 1), MOST_QUERY_HOURS)
        return [(first, min(first + length, span.hours)) for first in range(0, span.hours, length)]

    async def _vector(self, query: str, end_seconds: int) -> Vector:
        def read(body: bytes) -> Vector:
            return read_vector(body, self._warnings)

        return await self._answer("query", {"query": query, "time": str(end_seconds)}, read)

    async def _range(
        self, query: str, end_seconds: int, hours: int, first: int, last: int
    ) -> list[HourSamples]:
        """The values of the hours from `first` to before `last`."""

        def read(body: bytes) -> HourSamples:
            return hour_samples(read_columns(body, self._warnings), end_seconds, hours)

        params = {
            "query": query,
            "start": str(end_seconds - (hours - 1 - first) * HOUR_SECONDS),
            "end": str(end_seconds - (hours - last) * HOUR_SECONDS),
            "step": str(HOUR_SECONDS),
        }
        try:
            return [await self._answer("query_range", params, read)]
        except TooManySamplesError:
            if last - first == 1:
                raise
        middle = (first + last) // 2
        return [
            *await self._range(query, end_seconds, hours, first, middle),
            *await self._range(query, end_seconds, hours, middle, last),
        ]

    async def _answer(self, path: str, params: dict[str, str], read: Callable[[bytes], _T]) -> _T:
        async def attempt() -> _T:
            async with self._concurrency:
                body = await self._request(path, params)
            # In a thread: the next answers arrive meanwhile.
            return await asyncio.to_thread(read, body)

        try:
            return await retried(self._clock, attempt)
        except InvalidRecordError as error:
            raise SampleSourceError(
                f"{self._access.url}: {error.message}",
                hint="check the URL with curl: another server or a proxy may have answered",
            ) from error

    async def _request(self, path: str, params: dict[str, str]) -> bytes:
        url, timeout = self._access.url.rstrip("/"), HISTORY_QUERY_SECONDS
        try:
            answer = await get(
                self._session, f"{url}/api/v1/{path}", params, self._headers, timeout
            )
        except SampleSourceError as error:
            is_slow = isinstance(error.__cause__, TimeoutError)
            raise SampleSourceError(
                f"{url}: {error.message}",
                may_pass=error.may_pass and not is_slow,
                hint=_SLOW
                if is_slow
                else "check the URL and --ca-file, and whether Prometheus answers there",
            ) from error
        if answer.status == 200:
            return answer.body
        text = error_text(answer.body)
        if answer.status == _TOO_LARGE and _TOO_MANY in text:
            raise TooManySamplesError(
                f"{url}: an hour of all pods has too many samples: {text}",
                hint="raise --query.max-samples of Prometheus, or select one of several clusters "
                "by --match",
            )
        is_slow = answer.status == _UNAVAILABLE and text.startswith(_TIMED_OUT)
        hint = _HINTS.get(answer.status, "the answer is of this URL: check it with curl")
        raise SampleSourceError(
            f"{url}: {answer.status} {text}",
            may_pass=answer.status in TRANSIENT and not is_slow,
            hint=_SLOW if is_slow else hint,
        )


class _Progress:
    """Reports the share of `total` that is done."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    async def counted(self, work: Awaitable[_T], size: int) -> _T:
        result = await work
        self._done += size
        self._report(self._done / self._total)
        return result


def _headers(access: PrometheusAccess) -> dict[str, str]:
    """The header with credentials. Raises `UsageError` for a file that is not readable or has none,
    and for credentials that would travel without encryption."""
    parts = urlsplit(access.url)
    has_credentials = access.token_file is not None or access.basic_auth_file is not None
    if has_credentials and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"the credentials for {access.url} would be readable on the network",
            hint="use https, or `kubectl port-forward` and http://localhost",
        )
    if access.basic_auth_file is None:
        try:
            return authorization(access.token_file)
        except ValueError as error:
            raise UsageError(
                f"{access.token_file}: {error}", hint="a file with a bearer token"
            ) from error
    text = read_file(access.basic_auth_file, 4096).decode(errors="replace").strip()
    if ":" not in text or "\n" in text:
        raise UsageError(
            f"{access.basic_auth_file} has no credentials", hint="one line, user:password"
        )
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the first error of a task group, whose other tasks it cancels."""
    try:
        yield
    except* SampleSourceError as errors:
        raise errors.exceptions[0] from errors


@asynccontextmanager
async def open_history(access: PrometheusAccess, clock: Clock) -> AsyncIterator[HistorySession]:
    """Open a session without sending a request. Raises `SettingsError` for an invalid CA file,
    `UsageError` for invalid credentials."""
    context: ssl.SSLContext = https_context("--ca-file", access.ca_file)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield HistorySession(session, access, clock)
