"""Run a whole extender in mode act: `python -m tests.extender.fuzz.extender_process`.

It runs what `springtide extender` runs (feeds, service, HTTP, logs), except that records come as
lines on standard input instead of from a broker, and that the clock advances only by such lines.
Each line is a `FeedInput`, answered by a `ProcessReply`; the first `ProcessReply` has the port.
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
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.service import serve
from pipeline.logs import configure_logging
from pipeline.settings import ExtenderSettings
from pipeline.table import NODE_AND_POD_TOPICS, Feed, Table
from pipeline.table.apply_records import apply, apply_point
from pipeline.table.table_feed import HISTORY_TOPICS, VIEW_TOPICS
from pipeline.topics.registry import NODE_STATE, NODE_VIEWS, NODES, PODS, RESOURCES
from tests.extender.console_samples import read_judged, read_results, relief

TOPICS = {topic.name: topic for topic in (NODE_STATE, NODES, PODS, RESOURCES, NODE_VIEWS)}
SETTINGS = ExtenderSettings(mode="act", host="127.0.0.1", port=0)


class FeedInput(msgspec.Struct, omit_defaults=True):
    """A record of a topic, its value JSON; seconds that pass; whether the table is caught up."""

    topic: str = ""
    key: str = ""
    value: str | None = None
    advance: float = 0.0
    caught_up: bool = True
    measure: bool = False


class ProcessReply(msgspec.Struct, omit_defaults=True):
    """The port, or the resident memory after everything unused was freed."""

    port: int = 0
    resident_bytes: int = 0


class _Feed(Feed):
    """A feed whose records come from standard input."""

    async def run(self) -> NoReturn:
        self.state.caught_up = self.state.connected = True
        self.state.message = "following"
        await asyncio.Event().wait()
        raise AssertionError


def resident_bytes() -> int:
    gc.collect()
    # Memory that malloc caches for later is no growth.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def write_reply(reply: ProcessReply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    configure_logging("info", "json")
    clock, rules = ManualClock(), rules_of(SETTINGS)
    options: dict[str, Any] = {"client": {}, "prefix": "fuzz", "clock": clock}
    feed = _Feed(Table(counting=rules.counting), topics=NODE_AND_POD_TOPICS, **options)
    views = _Feed(Table(), topics=VIEW_TOPICS, name="node views", **options)
    history = _Feed(Table(), topics=HISTORY_TOPICS, name="history", **options)
    plans, reading = _Feed(Table(), name="plans and actions", **options), relief()
    reading.state = plans.state
    reader, stop = asyncio.StreamReader(limit=1 << 26), asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    def use(item: FeedInput) -> ProcessReply:
        topic = TOPICS.get(item.topic)
        key, value = item.key.encode(), None if item.value is None else item.value.encode()
        if topic is not None:
            apply((views if topic is NODE_VIEWS else feed).table, topic, key, value)
        if topic is NODE_STATE:
            apply_point(history.table, topic, key, value)
        for each in (feed, views, history, plans):
            each.state.caught_up = item.caught_up
        return ProcessReply(resident_bytes=resident_bytes() if item.measure else 0)

    async def listen() -> None:
        while line := await reader.readline():
            item = msgspec.json.decode(line, type=FeedInput)
            await clock.advance(item.advance)
            write_reply(use(item))
        stop.set()

    listening = asyncio.create_task(listen())
    await serve(
        feed, SETTINGS, clock, stop, lambda port: write_reply(ProcessReply(port=port)), rules=rules,
        views=views, history=history, linger_seconds=0.0, plans=plans, relief=reading,
        read_judged=read_judged, read_results=read_results,
    )  # fmt: skip
    await listening


if __name__ == "__main__":
    asyncio.run(main())
