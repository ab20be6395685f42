"""Programs of `springtide qos-bench`, which use only the standard library.

    python -I -S bench_programs.py serve PORT WORK_US     a worker of an HTTP server on 127.0.0.1
    python -I -S bench_programs.py crunch FILE            work that only counts: its rounds in FILE
    python -I -S bench_programs.py load PORT RATE SECONDS latencies in seconds, one a line

Workers share a port, and the kernel gives each connection to one of them. The load is open:
requests arrive at random (a Poisson process, the same in each run), whether earlier ones were
answered or not, and a latency counts from the time at which its request was due. So a server that
stalls is charged for every request that waited, as by users who do not know of each other.
"""

import asyncio
import mmap
import os
import random
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

ROUND_SIZE = 8
_BACKLOG = 4096
_CONNECTIONS_MAX = 500  # below the usual limit of open files, 1024
_WAIT_SECONDS = 30.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
_REQUEST_BYTES_MAX = 4096
# Rounds of `_work` between two looks at the clock.
_STEPS = 200
_SEED = 1


def _work(seconds: float) -> None:
    """Use CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(_STEPS))


def serve(port: int, work_us: int) -> None:
    """Answer one request of each connection, one after the other."""
    listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG, reuse_port=True)
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.settimeout(_WAIT_SECONDS)
            if connection.recv(_REQUEST_BYTES_MAX):
                _work(work_us / 1e6)
                connection.sendall(_ANSWER)


def crunch(path: str) -> None:
    with Path(path).open("r+b") as file:
        counter = mmap.mmap(file.fileno(), ROUND_SIZE)
    rounds = 0
    while True:
        sum(range(2000))
        rounds += 1
        counter[:] = rounds.to_bytes(ROUND_SIZE, "little")


async def load(port: int, rate: float, seconds: float) -> list[float]:
    """Send requests at `rate` a second; the latency of each from the time at which it was due. One
    without an answer counts with the time that it waited."""
    await _until_served(port)
    free = asyncio.Semaphore(_CONNECTIONS_MAX)

    async def ask(due: float) -> float:
        try:
            async with asyncio.timeout(_WAIT_SECONDS), free:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_REQUEST)
                await reader.readexactly(len(_ANSWER))
                writer.close()
        except (OSError, EOFError):
            return _WAIT_SECONDS
        return time.monotonic() - due

    arrivals, requests = random.Random(_SEED), []
    began = due = time.monotonic()
    while (due := due + arrivals.expovariate(rate)) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        requests.append(asyncio.create_task(ask(due)))
    return list(await asyncio.gather(*requests))


async def _until_served(port: int) -> None:
    """Return when the server answers, which may still be starting."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return writer.close()


def _be_outside() -> None:
    """Run before other processes, as a client on another machine would."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:  # cgroups without a share of real time
        os.nice(-20)


def main(kind: str, *arguments: str) -> None:
    if kind == "serve":
        serve(int(arguments[0]), int(arguments[1]))
    elif kind == "crunch":
        crunch(arguments[0])
    else:
        _be_outside()
        port, rate, seconds = arguments
        latencies = asyncio.run(load(int(port), float(rate), float(seconds)))
        sys.stdout.writelines(f"{latency:.6f}\n" for latency in latencies)


if __name__ == "__main__":
    main(*sys.argv[1:])
