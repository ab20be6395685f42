"""The exporter as a whole: tick, collect, close windows, hand them on; end without losing one.

`run` is the long-running role, `collect_window` gives one window for `--once`. What happens to a
window when the clock is moved, when readings are missed or when the process starts or ends is
decided in `WindowMaker`: a window is given out with the coverage that it really has, and no end
twice, not by two processes that follow one another either. How long windows are is for the settings
to say, and for the policy where it asks for longer ones.
"""

import asyncio
import logging
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from node_exporter import exporter_metrics, window_policy
from node_exporter.collection import Collection
from node_exporter.kernel.node_files import boot_id, machine_id
from node_exporter.live_socket import LiveServer
from node_exporter.publisher import Publisher
from node_exporter.sampler import Sampler
from node_exporter.ticks import Tick, Ticker
from node_exporter.window_aggregation import Emitted, Window, window_end_ms, window_seconds_by
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import Clock, SystemClock
from pipeline.errors import KernelError, SettingsError, SpringtideError
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.settings import ExporterSettings, Settings, node_name
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples

_FLUSH_SECONDS: Final = 10.0
_WINDOWS_WAITED_FOR: Final = 3
# A window that ends further ahead of the broker's clock is a dead letter (worker.future_tolerance).
_AHEAD_SECONDS_MOST: Final = 60.0

log = get_logger(__name__)


class WindowMaker:
    """Collections in, finished windows out, each with its header.

    The window in which the process started is the one that the process before gave out when it was
    stopped: it is kept only with `keep_leading`.
    """

    def __init__(
        self,
        settings: ExporterSettings,
        node: str,
        sampler: Sampler,
        epoch: int,
        *,
        keep_leading: bool = False,
    ) -> None:
        self.settings = settings
        self.node = node
        self.sampler = sampler
        self._epoch = epoch
        self._window_ms = self._wanted_ms = settings.window_seconds * 1000
        self._interval_ms = interval_ms(settings)
        self._machine_id = machine_id(str(settings.proc_root))
        self._boot_id = boot_id(str(settings.proc_root))
        self._window: Window | None = None
        self._emitted = Emitted()
        self._last_end_ms: int | None = None
        self._sequence = 0
        self._leading = not keep_leading

    def report_every(self, asked_seconds: float | None) -> None:
        """What the policy asks for; the windows that follow are as long, on their own grid."""
        seconds = window_seconds_by(asked_seconds, self.settings.window_seconds)
        if self._wanted_ms != 1000 * seconds:
            self._wanted_ms = 1000 * seconds
            log.info("windows change their length by the policy", seconds=seconds)

    def collect(self, tick: Tick) -> tuple[Collection, list[SampleBatch]]:
        """Read everything for the tick; the windows that ended with it, seldom more than one."""
        if self._window is None:
            self._change_length(tick.at_ms)
        end_ms = window_end_ms(tick.at_ms, self._window_ms)
        ends_window = tick.at_ms == end_ms
        collection = self.sampler.collect(tick.at_ms, ends_window=ends_window)
        finished = []
        if self._window is not None and self._window.end_ms != end_ms:
            # Ticks were missed, or the clock was moved: the window in hand is what it is.
            finished.append(self.close())
        if self._window is None:
            self._window = Window(end_ms, self._window_ms, self._interval_ms)
        self._window.add(collection)
        if ends_window:
            finished.append(self.close())
        return collection, [batch for batch in finished if batch is not None]

    def _change_length(self, at_ms: int) -> None:
        """Go over to the wanted length, unless that window would begin within the last one."""
        start_ms = window_end_ms(at_ms, self._wanted_ms) - self._wanted_ms
        if self._last_end_ms is None or start_ms >= self._last_end_ms:
            self._window_ms = self._wanted_ms
            exporter_metrics.WINDOW_SECONDS.set(self._window_ms / 1000)

    def close(self) -> SampleBatch | None:
        """The window in hand as it is; None if there is none to be given out."""
        window, self._window = self._window, None
        if window is None:
            return None
        self._last_end_ms = window.end_ms
        leading, self._leading = self._leading, False
        if leading:
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
        """The window in hand at the end of the process, up to the end that a usual one would have;
        none that would come from the future."""
        if self._window is not None:
            usual_end_ms = window_end_ms(round(now * 1000), 1000 * self.settings.window_seconds)
            if self._window.start_ms < usual_end_ms < self._window.end_ms:
                self._window.cut(usual_end_ms)
            ahead = self._window.end_ms / 1000 - now
            if ahead > _AHEAD_SECONDS_MOST:
                self._window = None
                exporter_metrics.WINDOWS_DROPPED.labels("ends_too_far_ahead").inc()
                log.warning("the window in hand is not published", ends_in_seconds=round(ahead))
        return self.close()


def interval_ms(settings: ExporterSettings) -> int:
    """The collection interval in whole milliseconds."""
    return round(settings.collect_interval_seconds * 1000)


async def collect_window(
    settings: ExporterSettings, environ: Mapping[str, str], clock: Clock
) -> SampleBatch:
    """The next window of which at least half can be collected.

    Raises `KernelFileError` or `SettingsError` for what cannot work from the start, and
    `KernelError` if the node could not be read for three windows.
    """
    _allow_many_files()
    sampler = Sampler(settings, clock)
    node = node_name(settings, environ)
    maker = WindowMaker(settings, node, sampler, _epoch(clock), keep_leading=True)
    ticker = Ticker(clock, interval_ms(settings))
    end_ms = window_end_ms(round(clock.now() * 1000), settings.window_seconds * 1000)
    log.info(
        "collecting one window", seconds=settings.window_seconds, from_=format_time(end_ms / 1000)
    )
    try:
        closed = 0
        while closed < _WINDOWS_WAITED_FOR:
            for batch in maker.collect(await ticker.next())[1]:
                if batch.rows[0]["coverage"] >= 0.5:
                    return batch
                closed += 1
        raise sampler.failure or KernelError(
            f"less than half of each of {closed} windows could be read",
            path=str(settings.proc_root),
            hint="is the machine too busy for --collect-interval-seconds?",
        )
    finally:
        sampler.close()


async def run(settings: Settings, environ: Mapping[str, str], clock: Clock | None = None) -> None:
    """Export until SIGTERM or SIGINT; then flush what is in hand.

    Raises `KernelFileError` or `SettingsError` for what cannot work from the start.
    """
    clock = clock or SystemClock()
    exporter = settings.exporter
    node = node_name(exporter, environ)
    _allow_many_files()
    if settings.log.level != "debug":
        # It says each failed attempt, several times; what we say about it is enough.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sampler = Sampler(exporter, clock)
    maker = WindowMaker(exporter, node, sampler, _epoch(clock))
    buffer = WindowBuffer(exporter.buffer_bytes)
    publisher = Publisher(buffer, settings.kafka, node, clock)
    live = await _serve_live(exporter, node)
    try:
        page = serve_metrics("exporter", exporter.metrics_host, exporter.metrics_port)
    except SpringtideError:
        if live is not None:
            await live.stop()
        sampler.close()
        raise
    log.info(
        "exporter started",
        node=node,
        window_seconds=exporter.window_seconds,
        kafka=settings.kafka.bootstrap_servers,
        socket=str(exporter.socket_path) if live else None,
        metrics_port=page.port if page else None,
    )
    publishing = asyncio.create_task(publisher.run())
    collecting = asyncio.create_task(_collect_forever(maker, clock, buffer, live))
    following = asyncio.create_task(
        window_policy.follow(settings.kafka, node, clock, maker.report_every)
    )
    stopping = asyncio.create_task(_stop_signal())
    try:
        done, _ = await asyncio.wait(
            (publishing, collecting, following, stopping), return_when=asyncio.FIRST_COMPLETED
        )
        await cancel_tasks(collecting)
        if (batch := maker.finish(clock.now())) is not None:
            _hand_on(batch, buffer)
        await _flush(buffer, publishing)
        for task in done - {stopping}:
            task.result()
    finally:
        try:
            await cancel_tasks(collecting, following, publishing, stopping)
        finally:
            if live is not None:
                await live.stop()
            sampler.close()
            if page is not None:
                page.close()


async def _serve_live(exporter: ExporterSettings, node: str) -> LiveServer | None:
    """The local socket; None where none is wanted, or where the default path cannot be used."""
    if exporter.socket_path is None:
        return None
    live = LiveServer(exporter.socket_path, node)
    try:
        await live.start()
    except SettingsError as error:
        if exporter.socket_path != ExporterSettings().socket_path:
            raise
        log.warning("the last seconds are not served", why=error)
        return None
    return live


async def _collect_forever(
    maker: WindowMaker, clock: Clock, buffer: WindowBuffer, live: LiveServer | None
) -> None:
    ticker = Ticker(clock, interval_ms(maker.settings))
    while True:
        tick = await ticker.next()
        note_tick(tick)
        with exporter_metrics.COLLECTION_SECONDS.time():
            collection, finished = maker.collect(tick)
            if live is not None:
                live.add(collection)
        exporter_metrics.record(collection, maker.settings, maker.node)
        exporter_metrics.record_unsupported(maker.sampler.unsupported)
        for batch in finished:
            _hand_on(batch, buffer)


def note_tick(tick: Tick) -> None:
    """Count and say what was wrong with the time since the last tick."""
    if tick.missed:
        exporter_metrics.COLLECTIONS_MISSED.inc(tick.missed)
    if tick.stepped_seconds:
        forward = tick.stepped_seconds > 0
        exporter_metrics.CLOCK_STEPS.labels("forward" if forward else "backward").inc()
        log.warning("the wall clock was moved", seconds=round(tick.stepped_seconds, 3))


def _hand_on(batch: SampleBatch, buffer: WindowBuffer) -> None:
    with exporter_metrics.UPDATE_SECONDS.time():
        value = encode_samples(batch)
    dropped = buffer.append(EncodedWindow(batch.header.window_end_ms, value))
    if dropped:
        exporter_metrics.WINDOWS_DROPPED.labels("buffer_full").inc(dropped)


async def _flush(buffer: WindowBuffer, publishing: asyncio.Task[None]) -> None:
    """Wait for Kafka to take what waits, but not for ever."""
    emptied = asyncio.ensure_future(buffer.empty())
    await asyncio.wait(
        (emptied, publishing), timeout=_FLUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    await cancel_tasks(emptied)
    if lost := len(buffer):
        log.error("ended with windows that Kafka did not take", windows=lost)
    else:
        log.info("exporter stopped, every window is in Kafka")


async def _stop_signal() -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()


def _epoch(clock: Clock) -> int:
    return int(clock.now() * 1000)


def _allow_many_files() -> None:
    # Some files per pod stay open; the usual soft limit of 1024 would do for 200 pods.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard)
        )
