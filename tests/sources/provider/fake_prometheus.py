"""A fake Prometheus that answers each query from a script, for errors that a real one does not
produce on request."""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web


class Answer(NamedTuple):
    """One answer; with `hangs`, none is sent."""

    body: bytes = b""
    status: int = 200
    hangs: bool = False
    headers: Mapping[str, str] = {}


def matrix(*series: tuple[Mapping[str, str], Sequence[tuple[float, str]]]) -> Answer:
    """A successful answer."""
    result = [{"metric": metric, "values": values} for metric, values in series]
    data = {"resultType": "matrix", "result": result}
    return Answer(json.dumps({"status": "success", "data": data}).encode())


def refusal(status: int, error: str = "because") -> Answer:
    """An error in the format of Prometheus."""
    document = {"status": "error", "errorType": "some", "error": error}
    return Answer(json.dumps(document).encode(), status)


class FakePrometheus:
    """A scripted server.

    `scripts` has the answers by a substring of the query; the last one repeats. `requests` counts
    requests by substring. `last_request` has the headers and parameters of the last request.
    """

    def __init__(self, scripts: Mapping[str, Sequence[Answer]]) -> None:
        self.scripts = {part: list(answers) for part, answers in scripts.items()}
        self.requests: Counter[str] = Counter()
        self.last_request: dict[str, str] = {}
        self.closing = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.last_request = {**request.headers, **request.query, "path": request.path}
        part = next((part for part in self.scripts if part in query), "")
        self.requests[part] += 1
        script = self.scripts.get(part, [matrix()])
        answer = script.pop(0) if len(script) > 1 else script[0]
        if answer.hangs:
            await self.closing.wait()
        return web.Response(body=answer.body, status=answer.status, headers=dict(answer.headers))


@asynccontextmanager
async def fake_prometheus(
    scripts: Mapping[str, Sequence[Answer]], path: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakePrometheus]:
    """Run a fake at `path` of its server; queries without a script get an empty matrix."""
    fake = FakePrometheus(scripts)
    app = web.Application()
    app.router.add_get(f"{path}/api/v1/query", fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}{path}"
        yield fake
    finally:
        fake.closing.set()
        await runner.cleanup()
