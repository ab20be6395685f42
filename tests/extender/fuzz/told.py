"""`python -m tests.extender.fuzz.told`: a whole extender in a process of its own, in mode act.

All of it is what `springtide extender` runs (feeds, service, HTTP, logs), but for two things: its
feeds are told records by lines on standard input instead of by a broker, and its clock stands still
until a line moves it. Each line is a `Told`, answered by a `Said`; the first `Said` has the port.
"""

import asyncio
import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pipeline.clock import ManualClock
from pipeline.extender.scheduler_api import rules_of
from pipeline.extender.service import serve
from pipeline.logs import configure_logging
from pipeline.settings import ExtenderSettings
from pipeline.table import AND_PODS, Feed, Table
from pipeline.table.apply_records import apply, apply_point
from pipeline.table.table_feed import HISTORY, VIEWS
from pipeline.topics.registry import NODE_STATE, NODE_VIEWS, NODES, PODS, RESOURCES

TOPICS = {topic.name: topic for topic in (NODE_STATE, NODES, PODS, RESOURCES, NODE_VIEWS)}
SETTINGS = ExtenderSettings(mode="act", host="127.0.0.1", port=0)


class Told(msgspec.Struct, omit_defaults=True):
    """A record of a topic, its value JSON; seconds that pass; whether the table is caught up."""

    topic: str = ""
    key: str = ""
    value: str | None = None
    advance: float = 0.0
    caught_up: bool = True
    measure: bool = False


class Said(msgspec.Struct, omit_defaults=True):
    """The port, or the memory that is held once all that can be is given back."""

    port: int = 0
    resident_bytes: int = 0


class _Feed(Feed):
    """One that a line on standard input feeds."""

    async def run(self) -> NoReturn:
        self.state.caught_up = self.state.connected = True
        self.state.message = "following"
        await asyncio.Event().wait()
        raise AssertionError


def resident_bytes() -> int:
    gc.collect()
    # What was freed but is kept for later is no growth.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    configure_logging("info", "json")
    clock, rules = ManualClock(), rules_of(SETTINGS)
    beside: dict[str, Any] = {"client": {}, "prefix": "told", "clock": clock}
    feed = _Feed(Table(counting=rules.counting), topics=AND_PODS, **beside)
    views = _Feed(Table(), topics=VIEWS, name="node views", **beside)
    history = _Feed(Table(), topics=HISTORY, name="history", **beside)
    reader, stop = asyncio.StreamReader(limit=1 << 26), asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    def use(told: Told) -> Said:
        topic = TOPICS.get(told.topic)
        key, value = told.key.encode(), None if told.value is None else told.value.encode()
        if topic is not None:
            apply((views if topic is NODE_VIEWS else feed).table, topic, key, value)
        if topic is NODE_STATE:
            apply_point(history.table, topic, key, value)
        for one in (feed, views, history):
            one.state.caught_up = told.caught_up
        return Said(resident_bytes=resident_bytes() if told.measure else 0)

    async def listen() -> None:
        while line := await reader.readline():
            told = msgspec.json.decode(line, type=Told)
            await clock.advance(told.advance)
            say(use(told))
        stop.set()

    listening = asyncio.create_task(listen())
    await serve(
        feed, SETTINGS, clock, stop, lambda port: say(Said(port=port)), rules=rules, views=views,
        history=history, linger_seconds=0.0,
    )  # fmt: skip
    await listening


if __name__ == "__main__":
    asyncio.run(main())
