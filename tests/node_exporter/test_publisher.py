"""The publisher without a broker stops on cancellation."""

import asyncio

from node_exporter.publisher import Publisher
from node_exporter.window_buffer import WindowBuffer
from pipeline.clock import SystemClock
from pipeline.settings import KafkaSettings


class PauseClock(SystemClock):
    """Sets `continued` if a pause begins after `cancelled`."""

    def __init__(self) -> None:
        self.cancelled = False
        self.continued = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if self.cancelled:
            self.continued.set()
        await asyncio.sleep(3600)


async def test_cancellation_at_any_moment_stops_the_publisher() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    swallowed = 0
    for step in range(200):
        clock = PauseClock()
        running = asyncio.create_task(Publisher(WindowBuffer(1 << 20), settings, "n", clock).run())
        await asyncio.sleep(step * 5e-5)  # an attempt takes a few milliseconds
        clock.cancelled = running.cancel()
        continuing = asyncio.create_task(clock.continued.wait())
        await asyncio.wait({running, continuing}, return_when=asyncio.FIRST_COMPLETED)
        swallowed += not running.done()
        running.cancel()
        continuing.cancel()
    assert swallowed == 0
