"""The publisher without a broker: whenever it is cancelled, it ends.

With a broker: tests/system and tests/integration.
"""

import asyncio

from node_exporter.publisher import Publisher
from node_exporter.window_buffer import WindowBuffer
from pipeline.clock import SystemClock
from pipeline.settings import KafkaSettings


class PauseClock(SystemClock):
    """Tells of a pause that begins after the end was `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self.went_on = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if self.asked:
            self.went_on.set()
        await asyncio.sleep(3600)


async def test_a_cancellation_at_any_moment_of_an_attempt_ends_it() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    swallowed = 0
    for place in range(200):
        clock = PauseClock()
        running = asyncio.create_task(Publisher(WindowBuffer(1 << 20), settings, "n", clock).run())
        await asyncio.sleep(place * 5e-5)  # an attempt takes a few milliseconds
        clock.asked = running.cancel()
        going_on = asyncio.create_task(clock.went_on.wait())
        await asyncio.wait({running, going_on}, return_when=asyncio.FIRST_COMPLETED)
        swallowed += not running.done()
        running.cancel()
        going_on.cancel()
    assert swallowed == 0
