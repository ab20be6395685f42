"""Run the exporter: tick, collect, close windows, publish them, and flush at the end.

`run` is the long-running role; `collect_window` returns one window for `--once`. `WindowMaker`
handles clock steps, missed readings, and start and end of the process: a window carries its real
coverage, and no end is emitted twice, not even by two consecutive processes, because workers apply
only the first window of an end. The settings define the length of windows; the policy may lengthen
them.
"""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from node_exporter import exporter_metrics, node_policy
from node_exporter.collection import Collection
from node_exporter.kernel.node_files import boot_id, machine_id
from node_exporter.live_socket import LiveServer
from node_exporter.node_policy import NodePolicy
from node_exporter.only_exporter import only_exporter_of
from node_exporter.publisher import Publisher
from node_exporter.sampler import Sampler
from node_exporter.ticks import Tick, Ticker
from node_exporter.window_aggregation import (
    EmittedRanges,
    OpenWindow,
    window_end_ms,
    window_seconds_for,
)
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import Clock, SystemClock
from pipeline.errors import KernelError, SettingsError
from pipeline.event_loop_lag import measure_event_loop_lag
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.open_files import raise_file_limit
from pipeline.settings import ExporterSettings, Settings, node_name
from pipeline.tasks import cancel_tasks, stop_signal
from pipeline.times import format_time
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples

# Clients need up to three more to disconnect if Kafka is away.
_FLUSH_SECONDS: Final = 7.0
_WINDOWS_TRIED: Final = 3
# Workers reject windows that end further ahead of the broker's clock (worker.future_tolerance).
_MAX_AHEAD_SECONDS: Final = 60.0

log = get_logger(__name__)


class WindowMaker:
    """Turns collections into closed windows with headers.

    The previous process emits the window in which this process starts when it stops; this process
    emits that window only with `emit_first_window`.
    """

    def __init__(
        self,
        settings: ExporterSettings,
        node: str,
        sampler: Sampler,
        epoch: int,
        *,
        emit_first_window: bool = False,
    ) -> None:
        self.settings = settings
        self.node = node
        self.sampler = sampler
        self._epoch = epoch
        self._window_ms = self._next_window_ms = settings.window_seconds * 1000
        exporter_metrics.WINDOW_SECONDS.set(settings.window_seconds)
        self._interval_ms = interval_ms(settings)
        self._machine_id = machine_id(str(settings.proc_root))
        self._boot_id = boot_id(str(settings.proc_root))
        self._window: OpenWindow | None = None
        self._emitted = EmittedRanges()
        self._last_end_ms: int | None = None
        self._sequence = 0
        self._drop_next = not emit_first_window
        self.memory_collect_policy = settings.memory_collect_policy

    def apply_policy(self, policy: NodePolicy) -> None:
        """Apply the policy of the node; its report interval decides the length of later windows."""
        self.memory_collect_policy = (
            policy.memory_collect_policy or self.settings.memory_collect_policy
        )
        refused = [*policy.refused, *self.sampler.add_host_applications(policy.host_applications)]
        if refused:
            exporter_metrics.ERRORS.labels("policy").inc()
            reasons = [str(reason) for reason in refused]
            log.warning("host applications of the policy are not measured", why=reasons)
        exporter_metrics.KOORDLET_HOST_APP.clear()
        seconds = window_seconds_for(policy.report_interval_seconds, self.settings.window_seconds)
        if self._next_window_ms != 1000 * seconds:
            self._next_window_ms = 1000 * seconds
            log.info("policy changes the length of windows", seconds=seconds)

    def collect(self, tick: Tick) -> tuple[Collection, list[SampleBatch]]:
        """Read everything for the tick; returns the collection and the windows that it closed."""
        if self._window is None and self._window_ms != self._next_window_ms:
            self._window_ms = self._next_window_ms
            exporter_metrics.WINDOW_SECONDS.set(self._window_ms / 1000)
        end_ms = window_end_ms(tick.at_ms, self._window_ms)
        ends_window = tick.at_ms == end_ms
        collection = self.sampler.collect(tick.at_ms, ends_window=ends_window)
        finished = []
        if self._window is not None and self._window.end_ms != end_ms:
            # Ticks were missed or the clock was stepped: the window ends incomplete.
            finished.append(self.close())
        if self._window is None:
            length_ms = end_ms - self._start_ms(end_ms)
            self._window = OpenWindow(end_ms, length_ms, self._interval_ms)
        self._window.add(collection)
        if ends_window:
            finished.append(self.close())
        return collection, [batch for batch in finished if batch is not None]

    def _start_ms(self, end_ms: int) -> int:
        """Start of the window with this end: that of the grid, but after a change of the length not
        before the last window's end."""
        start_ms = end_ms - self._window_ms
        if self._last_end_ms is not None and start_ms < self._last_end_ms < end_ms:
            return self._last_end_ms
        return start_ms

    def close(self) -> SampleBatch | None:
        """Close the open window; None without one, and for a window that must not be emitted."""
        window, self._window = self._window, None
        if window is None:
            return None
        self._last_end_ms = window.end_ms
        drop, self._drop_next = self._drop_next, False
        if drop:
            exporter_metrics.WINDOWS_DROPPED.labels("leading").inc()
            return None
        if not self._emitted.claim(window.start_ms, window.end_ms):
            exporter_metrics.WINDOWS_DROPPED.labels("end_repeated").inc()
            return None
        header = SampleHeader(
            node=self.node,
            machine_id=self._machine_id,
            boot_id=self._boot_id,
            epoch=self._epoch,
            sequence=self._sequence,
            window_start_ms=window.start_ms,
            window_end_ms=window.end_ms,
        )
        self._sequence += 1
        exporter_metrics.LAST_WINDOW_END.set(window.end_ms / 1000)
        return SampleBatch(header, window.rows(*self.sampler.capacity()))

    def finish(self, now: float) -> SampleBatch | None:
        """Close the open window at the end of the process.

        A longer window is cut to the default length. A window that ends too far in the future is
        dropped.
        """
        if self._window is not None:
            default_end_ms = window_end_ms(round(now * 1000), 1000 * self.settings.window_seconds)
            if self._window.start_ms < default_end_ms < self._window.end_ms:
                self._window.cut(default_end_ms)
            ahead = self._window.end_ms / 1000 - now
            if ahead > _MAX_AHEAD_SECONDS:
                self._window = None
                exporter_metrics.WINDOWS_DROPPED.labels("ends_too_far_ahead").inc()
                log.warning(
                    "window dropped, it ends too far in the future", ends_in_seconds=round(ahead)
                )
        return self.close()


def interval_ms(settings: ExporterSettings) -> int:
    """The collection interval in whole milliseconds."""
    return round(settings.collect_interval_seconds * 1000)


async def collect_window(
    settings: ExporterSettings, environ: Mapping[str, str], clock: Clock
) -> SampleBatch:
    """Collect the next window with a coverage of at least one half.

    Raises `KernelFileError` or `SettingsError` if the node cannot be read at the start, and
    `KernelError` if the coverage of three windows is too low.
    """
    raise_file_limit()
    sampler = Sampler(settings, clock)
    node = node_name(settings, environ)
    maker = WindowMaker(settings, node, sampler, _epoch(clock), emit_first_window=True)
    ticker = Ticker(clock, interval_ms(settings))
    end_ms = window_end_ms(round(clock.now() * 1000), settings.window_seconds * 1000)
    log.info(
        "collecting one window", seconds=settings.window_seconds, start=format_time(end_ms / 1000)
    )
    try:
        closed = 0
        while closed < _WINDOWS_TRIED:
            for batch in maker.collect(await ticker.next())[1]:
                if batch.rows[0]["coverage"] >= 0.5:
                    return batch
                closed += 1
        raise sampler.failure or KernelError(
            f"each of {closed} windows has a coverage below one half",
            path=str(settings.proc_root),
            hint="raise --collect-interval-seconds if the machine is too busy for it",
        )
    finally:
        sampler.close()


async def run(settings: Settings, environ: Mapping[str, str], clock: Clock | None = None) -> None:
    """Run until SIGTERM or SIGINT, then publish the remaining windows. Raises `KernelFileError` or
    `SettingsError` if the exporter cannot start, `UsageError` if another one measures the node."""
    clock = clock or SystemClock()
    exporter = settings.exporter
    node = node_name(exporter, environ)
    raise_file_limit()
    if settings.log.level != "debug":
        # aiokafka logs each failed attempt several times; the publisher limits its rate.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_exporter_of(settings, node))
        sampler = Sampler(exporter, clock)
        stack.callback(sampler.close)
        maker = WindowMaker(exporter, node, sampler, _epoch(clock))
        publisher = Publisher(WindowBuffer(exporter.buffer_bytes), settings.kafka, node, clock)
        if (live := await start_live_server(exporter, node)) is not None:
            stack.push_async_callback(live.stop)
        readiness = Readiness(partial(_trouble, sampler, publisher))
        page = serve_metrics("exporter", exporter.metrics_host, exporter.metrics_port, readiness)
        if page is not None:
            stack.callback(page.stop)
        log.info(
            "exporter started",
            node=node,
            window_seconds=exporter.window_seconds,
            kafka=settings.kafka.bootstrap_servers,
            socket=str(exporter.socket_path) if live else None,
            metrics_port=page.server_port if page else None,
        )
        gc.freeze()  # what the start has made lives on, and need not be looked at again and again
        follow = node_policy.follow(settings.kafka, node, clock, maker.apply_policy)
        await _run_until_stopped(maker, clock, publisher, live, follow)


def _trouble(sampler: Sampler, publisher: Publisher) -> str:
    """Why the exporter is not ready: it cannot read the node, or Kafka has taken no window yet.
    Empty if it is ready."""
    failure = sampler.failure
    return publisher.trouble if failure is None else failure.message


async def _run_until_stopped(
    maker: WindowMaker,
    clock: Clock,
    publisher: Publisher,
    live: LiveServer | None,
    follow: Coroutine[Any, Any, None],
) -> None:
    """Collect and publish until a signal or a failure, then publish the remaining windows.

    Collection stops first, so that the last window is complete when the buffer is flushed.
    """
    measure_event_loop_lag()
    publishing = asyncio.create_task(publisher.run())
    collecting = asyncio.create_task(_collect_forever(maker, clock, publisher.buffer, live))
    following = asyncio.create_task(follow)
    stopping = asyncio.create_task(stop_signal())
    tasks = (publishing, collecting, following, stopping)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await cancel_tasks(collecting)
        if (batch := maker.finish(clock.now())) is not None:
            _buffer_window(batch, publisher.buffer)
        await _flush(publisher, publishing)
        for task in done - {stopping}:
            task.result()
    finally:
        await cancel_tasks(*tasks)


async def start_live_server(exporter: ExporterSettings, node: str) -> LiveServer | None:
    """Start the local socket; None if it is disabled or the default path cannot be used."""
    if exporter.socket_path is None:
        return None
    live = LiveServer(exporter.socket_path, node)
    try:
        await live.start()
    except SettingsError as error:
        if exporter.socket_path != ExporterSettings().socket_path:
            raise
        log.warning("local socket is not available", why=error)
        return None
    return live


async def _collect_forever(
    maker: WindowMaker, clock: Clock, buffer: WindowBuffer, live: LiveServer | None
) -> None:
    ticker = Ticker(clock, interval_ms(maker.settings))
    while True:
        tick = await ticker.next()
        record_tick(tick)
        with exporter_metrics.COLLECTION_SECONDS.time():
            collection, finished = maker.collect(tick)
            if live is not None:
                live.add(collection)
        exporter_metrics.record(
            collection, maker.sampler.host_applications, maker.memory_collect_policy, maker.node
        )
        exporter_metrics.record_unsupported(maker.sampler.unsupported)
        for batch in finished:
            _buffer_window(batch, buffer)


def record_tick(tick: Tick) -> None:
    """Count missed collections and clock steps since the previous tick."""
    if tick.missed:
        exporter_metrics.COLLECTIONS_MISSED.inc(tick.missed)
    if tick.stepped_seconds:
        forward = tick.stepped_seconds > 0
        exporter_metrics.CLOCK_STEPS.labels("forward" if forward else "backward").inc()
        log.warning("wall clock was stepped", seconds=round(tick.stepped_seconds, 3))


def _buffer_window(batch: SampleBatch, buffer: WindowBuffer) -> None:
    with exporter_metrics.UPDATE_SECONDS.time():
        value = encode_samples(batch)
    dropped = buffer.append(EncodedWindow(batch.header.window_end_ms, value))
    if dropped:
        exporter_metrics.WINDOWS_DROPPED.labels("buffer_full").inc(dropped)


async def _flush(publisher: Publisher, publishing: asyncio.Task[None]) -> None:
    """Wait until Kafka has acknowledged all windows, for a limited time."""
    emptied = asyncio.ensure_future(publisher.buffer.wait_empty())
    await asyncio.wait(
        (emptied, publishing), timeout=_FLUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    await cancel_tasks(emptied)
    published = publisher.published
    if lost := len(publisher.buffer):
        log.error("exporter stopped, windows were not published", windows=lost, published=published)
    else:
        log.info("exporter stopped", published=published)


def _epoch(clock: Clock) -> int:
    return int(clock.now() * 1000)
