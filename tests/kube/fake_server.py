"""An API server that gives the answers of a script, one for each request, and then none."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api, open_api
from pipeline.settings import KubernetesSettings


class Answer(NamedTuple):
    """Sends `pieces` one by one; then ends, is `cut` off, or `hangs`."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    retry_after: str | None = None
    date: str | None = None
    cut: bool = False
    hangs: bool = False


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


class SleeplessClock(SystemClock):
    """Records how long a caller would have slept, and returns at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Fake:
    """A running server, a session with it, and its requests."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self.requests: list[Request] = []
        self.clock = SleeplessClock()
        self.stopped = asyncio.Event()
        self.url = ""
        self.api: Api

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(
            Request(request.method, request.path, dict(request.query), dict(request.headers))
        )
        answer = self._script.pop(0) if self._script else Answer(hangs=True)
        response = web.StreamResponse(status=answer.status)
        if answer.retry_after is not None:
            response.headers["Retry-After"] = answer.retry_after
        if answer.date is not None:
            response.headers["Date"] = answer.date
        await response.prepare(request)
        for piece in answer.pieces:
            await response.write(piece)
            await asyncio.sleep(0.001)
        if answer.hangs:
            await self.stopped.wait()
        if answer.cut and request.transport is not None:
            request.transport.abort()
        return response


def status(code: int, message: str = "because") -> Answer:
    """A refusal as the API server writes it."""
    body = {"kind": "Status", "code": code, "message": message}
    return Answer([json.dumps(body).encode()], code)


def user_file(folder: Path, url: str, **user: Any) -> KubernetesSettings:
    """Settings with a kubeconfig for `url` and this user."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "somebody"}}],
        "users": [{"name": "somebody", "user": user}],
    }))  # fmt: skip
    return KubernetesSettings(kubeconfig=path, request_timeout_seconds=2.0)


@asynccontextmanager
async def fake(folder: Path, *script: Answer, **user: Any) -> AsyncIterator[Fake]:
    """A server that gives these answers, and a session with it as this user."""
    server = Fake(script)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_api(user_file(folder, server.url, **user), server.clock) as server.api:
            yield server
    finally:
        server.stopped.set()
        await runner.cleanup()
