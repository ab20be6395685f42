"""Without a broker the publisher stops on cancellation; a fake one makes it ready."""

import asyncio
from typing import Any

import pytest

from node_exporter import publisher as publishing
from node_exporter.publisher import Publisher
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import SystemClock
from pipeline.errors import KafkaError
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


async def test_a_fake_broker_that_refuses_the_first_window_makes_the_exporter_unready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, outcomes = KafkaSettings(), ["refused", "refused", "taken", "refused", "taken"]
    troubles: list[str] = []
    done = asyncio.Event()

    class FakeProducer:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def partition_count(self, topic: str) -> int:
            return settings.partitions

        async def deliver(self, *_: Any, **__: Any) -> None:
            troubles.append(publisher.trouble)
            if outcomes.pop(0) == "refused":
                raise KafkaError("may not write")
            if not outcomes:
                done.set()

        async def stop(self, seconds: float) -> None: ...

    class NoPauses(SystemClock):
        async def sleep(self, seconds: float) -> None:
            troubles.append(publisher.trouble)

    monkeypatch.setattr(publishing, "Producer", FakeProducer)
    buffer = WindowBuffer(1000)
    for sequence in range(2):
        buffer.append(EncodedWindow(sequence, b"window"))
    publisher = Publisher(buffer, settings, "n", NoPauses())
    running = asyncio.create_task(publisher.run())
    await done.wait()
    running.cancel()
    refused = "may not write"
    # At each delivery, and in the pause after a refusal.
    assert troubles == ["", refused, refused, refused, refused, "", "", ""]
