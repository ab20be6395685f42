"""An extender in its own process, and the state that follows from its input.

`Fleet` sends records and requests. It maintains the `World` of the oracle, with the pods that the
extender has placed and whose records have not arrived.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from pipeline.extender.decision_rules import rules_of
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.pods import CountedPod, pod_key
from tests.extender.fuzz.extender_process import SETTINGS, FeedInput, ProcessReply
from tests.extender.oracle import ENDED, World
from tests.table.records import NOW

COUNTING = rules_of(SETTINGS).counting
STALE = SETTINGS.stale_after_seconds
TENTATIVE_SECONDS = 5.0
REUSED_SECONDS = 2.0


class Placed(NamedTuple):
    """A pod that the extender counts on a node before its record arrives."""

    pod: CountedPod
    until: float


class Cycle(NamedTuple):
    """A filter request about a pod; for a while prioritize may answer from its moment."""

    world: World
    now: float
    names: frozenset[str]


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Fleet:
    """The input of a served extender. Offsets of records grow, as in a log."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log
        self._stdin: Any = process.stdin
        self._stdout: Any = process.stdout
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{port}")
        self.now = NOW
        self.asked = 0
        self.begun = 0
        self._offset = 0
        self._reported: set[str] = set()
        self.states: dict[str, NodeStateRecord] = {}
        self.nodes: dict[str, TableNode] = {}
        self.offers: dict[str, OfferedResources] = {}
        self.pods: dict[str, CountedPod] = {}
        self.views: dict[str, int] = {}
        self.placed: dict[str, Placed] = {}
        self.cycles: dict[str, Cycle] = {}

    @classmethod
    async def start(cls, folder: Path) -> "Fleet":
        """Start an extender over an empty table."""
        log = folder / "extender.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.extender.fuzz.extender_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=stderr,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        stdout: Any = process.stdout
        line = await asyncio.wait_for(stdout.readline(), 120)
        return cls(process, msgspec.json.decode(line, type=ProcessReply).port, log)

    async def end(self) -> int | None:
        """Stop the extender, and return its exit code."""
        await self.session.close()
        self._stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 60)
        if self.process.returncode is None:
            self.process.kill()
        return self.process.returncode

    # -- records

    async def feed(self, *inputs: FeedInput) -> ProcessReply:
        """Send inputs, and wait until the extender has applied them."""
        self._stdin.write(b"".join(msgspec.json.encode(item) + b"\n" for item in inputs))
        reply = ProcessReply()
        for _ in inputs:
            line = await asyncio.wait_for(self._stdout.readline(), 120)
            reply = msgspec.json.decode(line, type=ProcessReply)
        return reply

    async def measure(self) -> int:
        """The resident memory of the extender in bytes."""
        return (await self.feed(FeedInput(measure=True))).resident_bytes

    async def begin(self) -> None:
        """Begin a scenario: remove every record and every placed pod."""
        removals = [
            self.drop(topic, name) for topic, by_name in self._kept() for name in [*by_name]
        ]
        removals += [self.drop_pod(uid) for uid in [*self.pods]]
        await self.feed(*removals, self.pass_by(1000.0))
        self.begun += 1

    def _kept(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            ("node-state", self.states), ("nodes", self.nodes), ("resources", self.offers),
            ("node-views", self.views),
        ]  # fmt: skip

    def pass_by(self, seconds: float) -> FeedInput:
        self.now += seconds
        return FeedInput(advance=seconds)

    def put_state(self, record: NodeStateRecord, age: float, *, older: bool = False) -> FeedInput:
        """A result of a window that ended `age` seconds ago. An `older` result changes nothing if
        the node has another."""
        self._offset += 1
        older = older and record.node in self._reported
        self._reported.add(record.node)
        offset = 0 if older else self._offset
        stamped = msgspec.structs.replace(record, as_of=format_time(self.now - age), offset=offset)
        if not older:
            self.states[stamped.node] = stamped
        return _record("node-state", stamped.node, stamped)

    def put_node(self, node: TableNode) -> FeedInput:
        self.nodes[node.node] = node
        return _record("nodes", node.node, node)

    def put_offer(self, offer: OfferedResources, age: float) -> FeedInput:
        self._offset += 1
        stamped = msgspec.structs.replace(
            offer, as_of=format_time(self.now - age), offset=self._offset
        )
        self.offers[stamped.node] = stamped
        return _record("resources", stamped.node, stamped)

    def put_view(self, view: NodeViewRecord) -> FeedInput:
        self._offset += 1
        self.views[view.node] = self._offset
        return _record(
            "node-views", view.node, msgspec.structs.replace(view, generation=self._offset)
        )

    def put_pod(self, pod: CountedPod, age: float | None) -> FeedInput:
        since = None if age is None else format_time(self.now - age)
        stamped = msgspec.structs.replace(pod, scheduled_at=since)
        if stamped.node:
            self.pods[stamped.uid] = stamped
            self.placed.pop(stamped.uid, None)
        return _record("pods", pod_key(stamped.node, stamped.uid).decode(), stamped)

    def drop(self, topic: str, node: str) -> FeedInput:
        dict(self._kept())[topic].pop(node, None)
        return FeedInput(topic=topic, key=node)

    def drop_pod(self, uid: str) -> FeedInput:
        return FeedInput(topic="pods", key=pod_key(self.pods.pop(uid).node, uid).decode())

    def drop_unseen(self, node: str, uid: str) -> FeedInput:
        """The tombstone of a pod without a record, which may be placed on this node."""
        if uid in self.placed and self.placed[uid].pod.node == node:
            del self.placed[uid]
        return FeedInput(topic="pods", key=pod_key(node, uid).decode())

    # -- expected state

    def world(self, aside: str = "") -> World:
        """The newest records, and placed pods except that of the UID `aside`."""
        self.placed = {u: item for u, item in self.placed.items() if item.until > self.now}
        pods = self.pods | {uid: item.pod for uid, item in self.placed.items() if uid != aside}
        return World({**self.states}, {**self.nodes}, pods, COUNTING, {**self.offers})

    def withdraw(self, uid: str) -> bool:
        """Undo the placement of a pod; whether it was placed."""
        return self.placed.pop(uid, None) is not None

    def place(self, pod: CountedPod, node: str) -> None:
        """Count the pod on this node, as the extender does."""
        if not pod.uid or self.is_bound(pod.uid) or not self.world().knows(node):
            return
        on_its_way = msgspec.structs.replace(pod, node=node, scheduled_at=format_time(self.now))
        self.placed[pod.uid] = Placed(on_its_way, self.now + TENTATIVE_SECONDS)

    def is_bound(self, uid: str) -> bool:
        return uid in self.pods and self.pods[uid].phase not in ENDED

    # -- requests

    async def ask(
        self, method: str, path: str | URL, body: bytes | None = None, **more: Any
    ) -> Answer:
        """Send a request by an HTTP client."""
        self.asked += 1
        async with self.session.request(method, path, data=body, **more) as response:
            return Answer(response.status, await response.read(), response.headers)

    async def post(self, verb: str, body: Mapping[str, Any] | bytes) -> Answer:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.ask("POST", f"/{verb}", data)

    async def together(
        self, inputs: Sequence[FeedInput], bodies: Sequence[tuple[str, Any]]
    ) -> list[Answer]:
        """Send inputs and requests at the same time, in any order."""
        asked = [asyncio.create_task(self.post(verb, body)) for verb, body in bodies]
        await asyncio.gather(self.feed(*inputs), *asked)
        return [task.result() for task in asked]

    async def raw(self, data: bytes, *, seconds: float = 0.1) -> bytes:
        """The bytes that the extender answers to these bytes, until it closes the connection or
        the time is over."""
        self.asked += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(seconds):
                    writer.write(data)
                    while chunk := await reader.read(1 << 16):
                        received += chunk
        finally:
            writer.transport.abort()
        return received


def complaints_of(log: Path) -> list[str]:
    """The lines of a log that are errors or not in the format of the extender."""
    received = []
    # Not `splitlines`: names may hold what it takes for the end of a line.
    for line in log.read_text(errors="replace").strip().split("\n"):
        try:
            reply = msgspec.json.decode(line)
            is_bad = reply["level"] in ("error", "critical") or "traceback" in reply
        except (msgspec.DecodeError, KeyError, TypeError):
            is_bad = True
        if is_bad:
            received.append(line)
    return received


def _record(topic: str, key: str, record: Any) -> FeedInput:
    return FeedInput(topic=topic, key=key, value=encode_json(record).decode())
