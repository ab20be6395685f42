"""A server named a fake, where the real one cannot be made to say what is asked: it gives the
answers of a script, one a request, and is silent after the last."""

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
    """`pieces` come one by one; then the answer ends, is `cut` off, or `hangs`."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    retry_after: str | None = None
    cut: bool = False
    hangs: bool = False


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Patient(SystemClock):
    """A clock that notes how long somebody would have slept, and lets him go on."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Fake:
    """A running fake, a session with it, and what it was asked."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self.asked: list[Asked] = []
        self.clock = Patient()
        self.over = asyncio.Event()
        self.url = ""
        self.api: Api

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(
            Asked(request.method, request.path, dict(request.query), dict(request.headers))
        )
        given = self._script.pop(0) if self._script else Answer(hangs=True)
        found = web.StreamResponse(status=given.status)
        if given.retry_after is not None:
            found.headers["Retry-After"] = given.retry_after
        await found.prepare(request)
        for piece in given.pieces:
            await found.write(piece)
            await asyncio.sleep(0.001)
        if given.hangs:
            await self.over.wait()
        if given.cut and request.transport is not None:
            request.transport.abort()
        return found


def status(code: int, message: str = "because") -> Answer:
    """A refusal as the API server writes it."""
    body = {"kind": "Status", "code": code, "message": message}
    return Answer([json.dumps(body).encode()], code)


def user_file(folder: Path, url: str, **user: Any) -> KubernetesSettings:
    """Settings by which one comes to `url` as this user of a kubeconfig."""
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
    """A fake that gives these answers, and a session with it as this user."""
    found = Fake(script)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_api(user_file(folder, found.url, **user), found.clock) as found.api:
            yield found
    finally:
        found.over.set()
        await runner.cleanup()
