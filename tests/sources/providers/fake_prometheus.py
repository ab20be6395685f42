"""A server named a fake, where the real Prometheus cannot be made to fail as is asked: it answers
each query by a script of its own."""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web


class Answer(NamedTuple):
    """One answer; `hangs` is none."""

    body: bytes = b""
    status: int = 200
    hangs: bool = False
    headers: Mapping[str, str] = {}


def matrix(*series: tuple[Mapping[str, str], Sequence[tuple[float, str]]]) -> Answer:
    """A good answer."""
    result = [{"metric": metric, "values": values} for metric, values in series]
    data = {"resultType": "matrix", "result": result}
    return Answer(json.dumps({"status": "success", "data": data}).encode())


def refusal(status: int, error: str = "because") -> Answer:
    """An error as Prometheus tells it."""
    said = {"status": "error", "errorType": "some", "error": error}
    return Answer(json.dumps(said).encode(), status)


class FakePrometheus:
    """`scripts` are answers by a part of the query, the last one for ever; `asked` counts these
    parts, `seen` are the headers and parameters of the last request."""

    def __init__(self, scripts: Mapping[str, Sequence[Answer]]) -> None:
        self.scripts = {part: list(answers) for part, answers in scripts.items()}
        self.asked: Counter[str] = Counter()
        self.seen: dict[str, str] = {}
        self.over = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.seen = {**request.headers, **request.query, "path": request.path}
        part = next((part for part in self.scripts if part in query), "")
        self.asked[part] += 1
        script = self.scripts.get(part, [matrix()])
        answer = script.pop(0) if len(script) > 1 else script[0]
        if answer.hangs:
            await self.over.wait()
        return web.Response(body=answer.body, status=answer.status, headers=dict(answer.headers))


@asynccontextmanager
async def fake_prometheus(
    scripts: Mapping[str, Sequence[Answer]], path: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakePrometheus]:
    """A fake that answers queries in which a part of `scripts` is by its script, and others with
    nothing; it is at `path` of its server."""
    found = FakePrometheus(scripts)
    app = web.Application()
    app.router.add_get(f"{path}/api/v1/query", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        found.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}{path}"
        yield found
    finally:
        found.over.set()
        await runner.cleanup()
