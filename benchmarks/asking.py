"""A scheduler's questions to a running extender, and how long their answers take.

Owes `benchmarks.extender`: a client that does little else than send and receive, and what is
printed of a size, a form and a number of clients.
"""

import asyncio
import gc
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ORDERS = 64
_WHOLE_QUESTIONS = 25
_LARGEST_ANSWER = 1 << 23
_AGAIN_SECONDS = 1.0


class RefusedError(Exception):
    """What an extender says instead of an answer."""


class Connection(asyncio.BufferedProtocol):
    """One that stays open and does nothing but send and receive, into one place: what a client of
    more parts does beside it would be counted as the extender's, on processors that both share."""

    def __init__(self, largest: int) -> None:
        self._received = bytearray(largest)
        self._view = memoryview(self._received)
        self._status = self._length = self._body = self._end = 0

    @classmethod
    async def open(cls, port: int, largest: int = _LARGEST_ANSWER) -> "Connection":
        """To an extender whose answers are no larger."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(largest), "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._length :]

    def buffer_updated(self, nbytes: int) -> None:
        self._length += nbytes
        if not self._body:
            self._read_head()
        if self._body and self._length >= self._end and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError("gone before the answer"))

    def _read_head(self) -> None:
        head, found, _ = bytes(self._view[: min(self._length, 4096)]).partition(b"\r\n\r\n")
        if found:
            self._status = int(head.split()[1])
            self._body = len(head) + len(found)
            self._end = self._body + int(head.lower().partition(b"content-length:")[2].split()[0])

    async def get(self, path: str) -> memoryview:
        """As `post`, without a body."""
        return await self._ask(f"GET /{path} HTTP/1.1\r\nHost: extender\r\n\r\n", b"")

    async def post(self, verb: str, body: bytes) -> memoryview:
        """The answer's body, until the next. Raises `RefusedError` for one that is not 200."""
        head = f"POST /{verb} HTTP/1.1\r\nHost: extender\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self._ask(head, body)

    async def _ask(self, head: str, body: bytes) -> memoryview:
        self._length = self._body = self._end = 0
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.writelines((head.encode(), body))
        await self._answered
        answer = self._view[self._body : self._end]
        if self._status != 200:
            raise RefusedError(bytes(answer[:200]))
        return answer

    def close(self) -> None:
        self._transport.close()


async def ask(
    port: int,
    extender: "subprocess.Popen[bytes]",
    names: Sequence[str],
    clients: int,
    seconds: float,
) -> None:
    """Filter and prioritize one pod after the other, each client for itself."""
    orders, asked = itertools.cycle(shuffled(names)), pods()
    took: dict[str, list[float]] = {"filter": [], "prioritize": []}

    async def post(connection: Connection, verb: str, body: bytes) -> memoryview:
        began = time.perf_counter()
        answer = await connection.post(verb, body)
        took[verb].append(time.perf_counter() - began)
        return answer

    async def client(until: float) -> int:
        connection, done = await Connection.open(port), 0
        while time.monotonic() < until:
            head = b'{"Pod":%s,"NodeNames":' % json.dumps(next(asked)).encode()
            reply = bytes(await post(connection, "filter", head + next(orders) + b"}"))
            _, _, left = reply.partition(b'"NodeNames":')
            left = left[: left.index(b"]") + 1]
            if left != b"[]":
                await post(connection, "prioritize", head + left + b"}")
            done += 1
        connection.close()
        return done

    async def scrape() -> None:
        connection = await Connection.open(port)
        while True:
            await connection.get("metrics")
            await asyncio.sleep(1.0)

    # Nor does it collect what all that came before has left.
    gc.collect()
    gc.freeze()
    await client(time.monotonic() + 0.5)
    for times in took.values():
        times.clear()
    before, began = cpu_seconds(extender), time.monotonic()
    scraping = asyncio.create_task(scrape())
    done = await asyncio.gather(*(client(began + seconds) for _ in range(clients)))
    scraping.cancel()
    elapsed = time.monotonic() - began
    spent = cpu_seconds(extender) - before
    said = ", ".join(f"{verb} {_spread(times)}" for verb, times in took.items())
    print(
        f"  {clients:2d} clients, names: {said}; {sum(done) / elapsed:.0f} pods/s, "
        f"{spent / sum(done) * 1000:.1f} ms CPU a pod, {memory(extender)} MiB",
        flush=True,
    )


async def ask_whole(
    port: int, extender: "subprocess.Popen[bytes]", names: Sequence[str], clients: int
) -> None:
    """The form with whole Node objects of some 6 KB each."""
    filler = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(142)}
    nodes = [
        {
            "metadata": {"name": name, "labels": filler},
            "status": {"allocatable": {"cpu": "32", "memory": "128Gi"}},
        }
        for name in names
    ]
    whole = json.dumps({"items": nodes}).encode()
    asked, refused = pods(), 0
    took: dict[str, list[float]] = {"filter": [], "prioritize": []}

    async def post(connection: Connection, verb: str, body: bytes) -> None:
        nonlocal refused
        while True:
            began = time.perf_counter()
            try:
                await connection.post(verb, body)
            except RefusedError:
                refused += 1
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                took[verb].append(time.perf_counter() - began)
                return

    async def client() -> None:
        connection = await Connection.open(port, len(whole) + _LARGEST_ANSWER)
        for _ in range(_WHOLE_QUESTIONS // clients + 1):
            body = b'{"Pod":%s,"Nodes":%s}' % (json.dumps(next(asked)).encode(), whole)
            for verb in took:
                await post(connection, verb, body)
        connection.close()

    before = cpu_seconds(extender)
    await asyncio.gather(*(client() for _ in range(clients)))
    spent = (cpu_seconds(extender) - before) / len(took["filter"])
    said = ", ".join(f"{verb} {_spread(times)}" for verb, times in took.items())
    print(
        f"  {clients:2d} clients, whole Nodes ({len(whole) / 1e6:.1f} MB): {said}; "
        f"{spent * 1000:.1f} ms CPU a pod, {memory(extender)} MiB, {refused} times refused",
        flush=True,
    )


def pods() -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        asked = {"cpu": f"{100 + number % 400}m", "memory": "256Mi"}
        yield {
            "metadata": {"name": f"p{number}", "namespace": "shop", "uid": f"asked-{number}"},
            "spec": {
                "containers": [{"name": "main", "resources": {"requests": asked, "limits": asked}}]
            },
        }


def shuffled(names: Sequence[str]) -> list[bytes]:
    """The names in some orders, as Go writes them: without spaces."""
    shuffle, found = list(names), []
    for _ in range(_ORDERS):
        random.shuffle(shuffle)
        found.append(json.dumps(shuffle, separators=(",", ":")).encode())
    return found


def _spread(times: Sequence[float]) -> str:
    if not times:
        return "-"
    p50, p99 = np.percentile(times, [50, 99]) * 1000
    return f"p50 {p50:.1f} p99 {p99:.1f} ms"


def cpu_seconds(process: "subprocess.Popen[bytes]") -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: "subprocess.Popen[bytes]") -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024
