"""The publisher without a broker: whenever it is cancelled, it ends.

With a broker: tests/system and tests/integration.
"""

import asyncio

from node_exporter.buffer import WindowBuffer
from node_exporter.publish import Publisher
from pipeline.clock import SystemClock
from pipeline.settings import KafkaSettings


async def test_a_cancellation_at_any_moment_of_an_attempt_ends_it() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    going_on = 0
    for place in range(100):
        publisher = Publisher(WindowBuffer(1 << 20), settings, "n", SystemClock())
        running = asyncio.create_task(publisher.run())
        await asyncio.sleep(place * 1e-4)  # an attempt takes a few milliseconds
        running.cancel()
        # Long enough for a client to be closed, shorter than the pause between attempts.
        await asyncio.wait({running}, timeout=0.8)
        going_on += not running.done()
        running.cancel()
    assert going_on == 0
