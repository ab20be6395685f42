"""A proxy of an API server that fails as networks and busy servers do, reproducibly by a seed.

It answers 409, 410, 429, 500 and 504 without asking the server, forwards requests and drops the
answer, cuts watches, and delays answers.
"""

import asyncio
import json
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
from aiohttp import web

from pipeline.local.control_plane import ControlPlane

Mode = Literal["as drawn", "slow", "lying"]
SLOW_SECONDS = 2.0
LATE_SECONDS = 5.0
_HOP_BY_HOP = {
    "connection", "content-length", "host", "keep-alive", "transfer-encoding", "content-encoding",
}  # fmt: skip


class FaultProxy:
    """Fails at most `share` of requests, and none once `is_fair` is set. In mode `slow` each answer
    takes seconds, in mode `lying` each GET is answered with 200 and nothing. `on_write` gets the
    method, path and body of each change that the server accepted.

    `faults` counts by method and kind, `writes` the changes that the server accepted by method and
    path; `attempts` are all requests to change something, with their times.
    """

    def __init__(
        self, plane: ControlPlane, *, seed: int | str, kubeconfig: Path | None = None
    ) -> None:
        """`kubeconfig` is the client of the server, by default its administrator."""
        self._server = plane.server
        path = kubeconfig if kubeconfig is not None else plane.kubeconfig()
        user = json.loads(path.read_text())["users"][0]["user"]
        self._tls = ssl.create_default_context(cafile=plane.certificate_authority)
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._rng = random.Random(seed)
        self._left: dict[tuple[int | str, ...], list[int | str]] = {}
        self.share = 0.2
        self.is_fair = False
        self.mode: Mode = "as drawn"
        self.on_write: Callable[[str, str, bytes], None] = lambda method, path, body: None
        self.faults: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.attempts: list[tuple[float, str]] = []
        self.url = ""
        self.session: aiohttp.ClientSession | None = None

    @property
    def kinds(self) -> set[str]:
        """The kinds of faults so far, without their methods."""
        return {fault.split()[1] for fault in self.faults}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.attempts.append((time.monotonic(), f"{request.method} {request.path}"))
        if self.mode == "lying" and request.method == "GET":
            return self._lie(request)
        if self.mode == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        kind = self._fault(request)
        if kind is not None:
            self.faults[f"{request.method} {kind}"] += 1
        if isinstance(kind, int):
            return self._refuse(kind)
        if kind == "slow":
            await asyncio.sleep(self._rng.random() * 0.5)
        try:
            return await self._pass_on(request, kind)
        except aiohttp.ClientError:
            # The server is unavailable: drop the connection.
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway from None

    def _lie(self, request: web.Request) -> web.Response:
        """Answer 200 with nothing, or with an empty list, as no API server does."""
        if self._rng.random() < 0.5:
            return web.json_response({})
        return web.json_response(
            {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
        )

    async def ask(self, path: str) -> Any:
        """The API server's own answer to GET, by its JSON. Raises `aiohttp.ClientError`."""
        assert self.session is not None
        async with self.session.get(self._server + path, ssl=self._tls) as answer:
            return await answer.json()

    def _fault(self, request: web.Request) -> int | str | None:
        if self.is_fair or self._rng.random() >= self.share:
            return None
        if request.query.get("watch"):
            return self._draw(410, 429, 500, "slow")
        if request.method == "GET":
            return self._draw(410, 429, 500, 504, "slow", "silent")
        return self._draw(409, 429, 500, 504, "slow", "silent")

    def _draw(self, *kinds: int | str) -> int | str:
        """Draw without replacement; start over when all kinds were drawn."""
        if not (left := self._left.setdefault(kinds, [])):
            left.extend(self._rng.sample(kinds, len(kinds)))
        return left.pop()

    def _refuse(self, status: int) -> web.Response:
        reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(status, "Internal")
        body = {"kind": "Status", "status": "Failure", "reason": reason, "code": status,
                "message": "by the fault proxy"}  # fmt: skip
        headers = {"Retry-After": "1"} if status == 429 and self._rng.random() < 0.3 else {}
        return web.json_response(body, status=status, headers=headers)

    async def _pass_on(self, request: web.Request, kind: int | str | None) -> web.StreamResponse:
        assert self.session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        async with self.session.request(
            request.method, self._server + str(request.rel_url), headers=headers,
            data=await request.read(), ssl=self._tls,
        ) as answer:  # fmt: skip
            if request.method != "GET" and answer.status < 300:
                self.writes[f"{request.method} {request.path}"] += 1
                self.on_write(request.method, request.path, await request.read())
            if kind in ("silent", "late"):
                await answer.read()
                if kind == "late":
                    await asyncio.sleep(LATE_SECONDS)
                if request.transport is not None:
                    request.transport.abort()
                raise web.HTTPInternalServerError
            response = web.StreamResponse(status=answer.status)
            response.content_type = "application/json"
            await response.prepare(request)
            # Cut every watch after some bytes.
            is_cut = request.query.get("watch") and not self.is_fair
            left = self._rng.randrange(3000) if is_cut else None
            async for piece in answer.content.iter_any():
                if left is not None and len(piece) >= left:
                    await response.write(piece[:left])
                    if request.transport is not None:
                        request.transport.abort()
                    break
                left = None if left is None else left - len(piece)
                await response.write(piece)
            return response


@asynccontextmanager
async def fault_proxy(plane: ControlPlane, *, seed: int) -> AsyncIterator[FaultProxy]:
    """A proxy of the control plane's API server on a free port, as its administrator."""
    proxy = FaultProxy(plane, seed=seed)
    async with served(proxy):
        yield proxy


@asynccontextmanager
async def served(proxy: FaultProxy) -> AsyncIterator[None]:
    """Serve the proxy on a free port."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        proxy.session = session
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()
