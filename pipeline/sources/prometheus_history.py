"""Read the history of a cluster from a Prometheus, for a report.

Queries of pods are cut in time, so that none reads more than `MOST_READ_SAMPLES` on the server and
computes more than `MOST_INNER_SAMPLES`; a part that the server still refuses as too large, or is
too slow for, is halved. At most `CONCURRENT_QUERIES` run at a time. A query that fails otherwise is
repeated a few times.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import aiohttp

from pipeline.clock import Clock
from pipeline.errors import (
    InvalidRecordError,
    QueryTooLargeError,
    SampleSourceError,
)
from pipeline.processors.backtest.prometheus_ranges import read_columns, read_labels, read_vector
from pipeline.processors.imported_usage.prometheus_answers import error_text
from pipeline.processors.report.cluster_usage import HOUR_SECONDS
from pipeline.processors.report.history_answers import (
    History,
    HourSamples,
    Labels,
    PartMeans,
    Vector,
    hour_samples,
    place_of,
    steady_means,
)
from pipeline.processors.report.prometheus_queries import (
    CHANGED_CPU,
    COUNTERS,
    ENDED_REQUESTS,
    INSTANT,
    MEANS,
    NODE_RANGES,
    POD_RANGES,
    SCRAPES,
    SERIES,
    Span,
    filled,
    pod_matchers,
    rate_seconds,
)
from pipeline.sources.limits import (
    CONCURRENT_QUERIES,
    HISTORY_QUERY_SECONDS,
    MOST_INNER_SAMPLES,
    MOST_MATCHER_CHARACTERS,
    MOST_QUERY_HOURS,
    MOST_READ_SAMPLES,
)
from pipeline.sources.prometheus_access import PrometheusAccess, access_headers
from pipeline.sources.prometheus_requests import TRANSIENT, get, retried
from pipeline.times import format_time
from pipeline.tls import https_context

_T = TypeVar("_T")
Report = Callable[[float], None]

_TOO_MANY: Final = "too many samples"
_TOO_LARGE: Final = 422
_PROXY_TIME_OUT: Final = 504
_TIME_OUTS: Final = ("timeout:", "context deadline exceeded")
_SLOW: Final = (
    "give the server more CPU, raise its --query.timeout, select one of several clusters by "
    "--match, or shorten the history with --since"
)
_MOST_WARNINGS: Final = 5
_HINTS: Final = {
    401: "give --token-file or --basic-auth-file",
    403: "the credentials may not query: give another --token-file or --basic-auth-file",
    404: "give the URL below which /api/v1/query is, with its path prefix if it has one",
}
_MISSING: Final = {
    "allocatable": "kube_node_status_allocatable: scrape kube-state-metrics",
    "running": "running pods (kube_pod_info, kube_pod_status_phase): scrape kube-state-metrics",
    "cpu": "container_cpu_usage_seconds_total with labels container and pod: scrape the "
    "kubelet's /metrics/cadvisor",
}


class HistorySession:
    """A session for the queries of one report; created by `open_history`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        access: PrometheusAccess,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._session = session
        self._access = access
        # Compression costs the server more than all it computes.
        self._headers = {**access_headers(access), "Accept-Encoding": "identity"}
        self._clock = clock
        self._concurrency = asyncio.Semaphore(CONCURRENT_QUERIES)
        self._warnings: set[str] = set()
        self._tell = tell
        self._most_hours = MOST_QUERY_HOURS
        # A part that waits for others learns from them how long it may be.
        self._running_parts = asyncio.Semaphore(CONCURRENT_QUERIES)

    async def read(
        self, end_seconds: int, hours: int, matchers: Sequence[str], report: Report
    ) -> History:
        """The answers for the hours that end at `end_seconds`, a whole hour; `report` gets the
        share that is done.

        Raises `SampleSourceError` if a query fails or needed series are missing, `UsageError` for
        an invalid matcher.
        """
        span = Span(end_seconds, hours, matchers=tuple(matchers))
        scrapes = await self._vector(SCRAPES, span)
        by_hour = scrapes[0][1] if scrapes else 0.0
        span = span._replace(rate_seconds=rate_seconds(by_hour))
        running = await self._vector(INSTANT["running"], span)
        self._require("running", running)
        names = [name for name in INSTANT if name != "running"]
        hour_parts = _parts(len(running), by_hour, 1.0, span)
        rate_parts = _parts(len(running), by_hour, HOUR_SECONDS / span.rate_seconds, span)
        progress = _Progress(report, len(names) + len(SERIES) + 1 + 4 * hours)
        async with _first_error(), asyncio.TaskGroup() as group:

            def start(work: Coroutine[Any, Any, _T], size: int = 1) -> asyncio.Task[_T]:
                return group.create_task(progress.counted(work, size))

            def start_parts(
                text: str,
                parts: Sequence[Span],
                ask: Callable[[str, Span], Coroutine[Any, Any, _T]],
            ) -> list[asyncio.Task[list[_T]]]:
                return [start(self._halved(text, part, ask), part.hours) for part in parts]

            labels = {name: start(self._labels(name, span)) for name in SERIES}
            instants = {name: start(self._vector(INSTANT[name], span)) for name in names}
            ended = start(self._ended_requests(labels["pods"], instants["present"], span))
            nodes = {
                name: [start(self._halved(text, span, partial(self._range, span)), 0)]
                for name, text in NODE_RANGES.items()
            }
            ask_range, parts = partial(self._range, span), {"cpu": rate_parts, "memory": hour_parts}
            ranges = nodes | {
                name: start_parts(text, parts[name], ask_range) for name, text in POD_RANGES.items()
            }
            pods = {place_of(labels)[:2] for labels, _ in running}
            ask_mean = {
                "cpu": partial(self._cpu_mean, span, pods),
                "memory": partial(self._mean, span),
            }
            means = {
                name: start_parts(text, hour_parts, ask_mean[name]) for name, text in MEANS.items()
            }
        vectors = {name: task.result() for name, task in instants.items()} | {"running": running}
        vectors |= {name: [(own, 1.0) for own in task.result()] for name, task in labels.items()}
        vectors["requests"] = [*vectors["requests"], *ended.result()]
        all_ranges = {name: _joined(tasks) for name, tasks in ranges.items()}
        self._require("allocatable", vectors["allocatable"])
        self._require("cpu", [labels for part in all_ranges["cpu"] for labels in part.labels])
        return History(
            end_seconds,
            hours,
            span.rate_seconds,
            vectors,
            all_ranges,
            {name: _joined(tasks) for name, tasks in means.items()},
            [f"{warning:.200}" for warning in sorted(self._warnings)[:_MOST_WARNINGS]],
        )

    def _require(self, name: str, found: Sequence[object]) -> None:
        if not found:
            raise SampleSourceError(
                f"{self._access.url} has no {_MISSING[name]}",
                hint="docs/how-to/report.md lists the series; check --until, and that --match "
                "selects series of nodes, too",
            )

    async def _vector(self, text: str, span: Span) -> Vector:
        def read(body: bytes) -> Vector:
            return read_vector(body, self._warnings)

        params = {"query": filled(text, span), "time": str(span.end_seconds)}
        return await self._answer("query", params, read)

    async def _labels(self, name: str, span: Span) -> Sequence[Labels]:
        """The labels of the series of this name in the whole history."""
        selector, names = SERIES[name]
        params = {
            "match[]": filled(selector, span),
            "start": str(span.end_seconds - span.hours * HOUR_SECONDS),
            "end": str(span.end_seconds),
        }
        return await self._answer(
            "series", params, lambda body: read_labels(body, names, self._warnings)
        )

    async def _ended_requests(
        self, pods: asyncio.Task[Sequence[Labels]], present: asyncio.Task[Vector], span: Span
    ) -> Vector:
        """The last requests of the pods that are not present at the end."""
        ended = {place_of(labels) for labels in await pods}
        ended -= {place_of(labels) for labels, _ in await present}
        names = sorted({name for _, name, _ in ended})
        requests = await self._vectors(ENDED_REQUESTS, span, names)
        # A pod of this name may be present elsewhere.
        return [sample for sample in requests if place_of(sample[0]) in ended]

    async def _mean(self, whole: Span, text: str, part: Span) -> PartMeans:
        return _part_means(whole, part, await self._vector(text, part))

    async def _cpu_mean(
        self, whole: Span, pods: Set[tuple[str, str]], text: str, part: Span
    ) -> PartMeans:
        """As `_mean`, but of these pods only, by namespace and name. Samples within the part are
        read only of those that are not steady."""
        begin = part._replace(end_seconds=part.end_seconds - part.hours * HOUR_SECONDS)
        before, after = [await self._vector(COUNTERS, at) for at in (begin, part)]
        steady, changed = await asyncio.to_thread(steady_means, before, after, part.hours)
        # A pod may run, or be scraped, between both ends only.
        others = pods - ({place_of(labels)[:2] for labels, _ in steady} - changed)
        if len(others) > len(steady):
            return await self._mean(whole, text, part)
        read = await self._vectors(CHANGED_CPU, part, sorted({name for _, name in others}))
        # A pod of this name may be steady elsewhere.
        known = {frozenset(labels.items()) for labels, _ in steady}
        own = [
            (labels, cores)
            for labels, cores in read
            if place_of(labels)[:2] in others and frozenset(labels.items()) not in known
        ]
        return _part_means(whole, part, [*steady, *own])

    async def _vectors(self, text: str, span: Span, names: Sequence[str]) -> Vector:
        """The answer of a query for the pods with these names."""
        most_characters = MOST_MATCHER_CHARACTERS // text.count("$match")
        async with _first_error(), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    self._vector(text, span._replace(matchers=(*span.matchers, matcher)))
                )
                for matcher in pod_matchers(names, most_characters)
            ]
        return [sample for task in tasks for sample in task.result()]

    async def _range(self, whole: Span, text: str, part: Span) -> HourSamples:
        def read(body: bytes) -> HourSamples:
            columns = read_columns(body, self._warnings)
            return hour_samples(columns, whole.end_seconds, whole.hours)

        params = {
            "query": filled(text, part),
            "start": str(part.end_seconds - (part.hours - 1) * HOUR_SECONDS),
            "end": str(part.end_seconds),
            "step": str(HOUR_SECONDS),
        }
        return await self._answer("query_range", params, read)

    async def _halved(
        self, text: str, part: Span, ask: Callable[[str, Span], Awaitable[_T]]
    ) -> list[_T]:
        """The answers for the hours of `part`: several, if these are too many for the server. An
        error names the hours."""
        try:
            async with self._running_parts:
                if part.hours <= self._most_hours:
                    return [await ask(text, part)]
        except QueryTooLargeError as error:
            if part.hours == 1:
                raise _of_part(error, part) from error
            if self._most_hours == MOST_QUERY_HOURS:
                self._tell(f"{error.message}: asking for fewer hours at a time")
            self._most_hours = min(self._most_hours, part.hours // 2)
        except SampleSourceError as error:
            raise _of_part(error, part) from error
        return [
            answer
            for half in part.parts((part.hours + 1) // 2)
            for answer in await self._halved(text, half, ask)
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
            if isinstance(error.__cause__, TimeoutError):
                raise QueryTooLargeError(f"{url}: {error.message}", hint=_SLOW) from error
            raise SampleSourceError(
                f"{url}: {error.message}",
                may_pass=error.may_pass,
                hint="check the URL and --ca-file, and whether Prometheus answers there",
            ) from error
        if answer.status == 200:
            return answer.body
        text = error_text(answer.body)
        if answer.status == _TOO_LARGE and _TOO_MANY in text:
            raise QueryTooLargeError(
                f"{url}: {text}",
                hint="raise --query.max-samples of Prometheus, or select one of several clusters "
                "by --match",
            )
        if answer.status == _PROXY_TIME_OUT or any(each in text for each in _TIME_OUTS):
            raise QueryTooLargeError(f"{url}: {answer.status} {text}", hint=_SLOW)
        hint = _HINTS.get(answer.status, "the answer is of this URL: check it with curl")
        raise SampleSourceError(
            f"{url}: {answer.status} {text}", may_pass=answer.status in TRANSIENT, hint=hint
        )


def _parts(pods: int, read_by_hour: float, computed_by_hour: float, span: Span) -> list[Span]:
    """The hours of each query that reads and computes so many samples of a pod in an hour."""
    pods = max(pods, 1)
    most = min(
        MOST_READ_SAMPLES / (pods * max(read_by_hour, 1.0)),
        MOST_INNER_SAMPLES / (pods * computed_by_hour),
        MOST_QUERY_HOURS,
    )
    return span.parts(max(int(most), 1))


def _part_means(whole: Span, part: Span, means: Vector) -> PartMeans:
    end = whole.hours - (whole.end_seconds - part.end_seconds) // HOUR_SECONDS
    return PartMeans(end - part.hours, end, means)


def _joined(tasks: Sequence[asyncio.Task[list[_T]]]) -> list[_T]:
    return [part for task in tasks for part in task.result()]


def _of_part(error: SampleSourceError, part: Span) -> SampleSourceError:
    """The error with the hours of the query."""
    begin = format_time(part.end_seconds - part.hours * HOUR_SECONDS)
    until = format_time(part.end_seconds)
    return SampleSourceError(
        f"{error.message} (usage of pods from {begin} to {until})", hint=error.hint
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


@asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the first error of a task group, whose other tasks it cancels."""
    try:
        yield
    except* SampleSourceError as errors:
        raise errors.exceptions[0] from errors


@asynccontextmanager
async def open_history(
    access: PrometheusAccess, clock: Clock, tell: Callable[[str], None]
) -> AsyncIterator[HistorySession]:
    """Open a session without sending a request; `tell` gets what a user should know while it reads.
    Raises `SettingsError` for an invalid CA file,
    `UsageError` for invalid credentials."""
    context: ssl.SSLContext = https_context("--ca-file", access.ca_file)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield HistorySession(session, access, clock, tell)
