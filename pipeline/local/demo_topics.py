"""Create the topics of a demo on its own broker."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, DemoError
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings

START_SECONDS: Final = 180.0
"""A part of a demo that takes longer to start is an error."""
_PAUSE_SECONDS: Final = 1.0


async def create_topics(
    kafka: KafkaSettings, clock: Clock, stop: asyncio.Event, check: Callable[[], None]
) -> bool:
    """Create the topics; False if `stop` is set before. An attempt that times out is repeated: a
    new broker on a busy machine answers late. `check` raises if the broker has ended.

    Raises `DemoError` after `START_SECONDS`.
    """
    began_at = clock.monotonic()
    while not stop.is_set():
        try:
            await apply_topics(kafka)
            return True
        except BrokerUnavailableError as error:
            check()
            seconds = clock.monotonic() - began_at
            if seconds > START_SECONDS:
                raise DemoError(
                    f"the demo's broker did not answer within {seconds:.0f} s: {error.message}",
                    hint="this machine may be overloaded: try again when it is less busy",
                ) from error
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _PAUSE_SECONDS)
    return False
