"""A proxy in front of an API server that fails as networks and busy servers do, by a seed.

It answers 409, 410, 429, 500 and 504 in the server's place, does what it is asked and then says
nothing of it, cuts watches off, and lets answers wait. Never more often than `share` of requests,
never once `is_fair` is set.
"""

import asyncio
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "transfer-encoding",
    "content-encoding",
}


class FaultProxy:
    """`url` stands for the server; `faults` counts what was done to whom, `writes` what the server
    took; `attempts` are all that were made to change something, and when."""

    def __init__(self, server: str, certificate: Path, key: Path, ca: Path, *, seed: int) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=ca)
        self._tls.load_cert_chain(certificate, key)
        self._rng = random.Random(seed)
        self._left: dict[tuple[int | str, ...], list[int | str]] = {}
        self.share = 0.2
        self.is_fair = False
        self.faults: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.attempts: list[tuple[float, str]] = []
        self.url = ""
        self.session: aiohttp.ClientSession | None = None

    @property
    def kinds(self) -> set[str]:
        """Every kind of fault there was, whatever the method."""
        return {fault.split()[1] for fault in self.faults}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.attempts.append((time.monotonic(), f"{request.method} {request.path}"))
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
            # The server is away, or went away: so does the connection.
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway from None

    def _fault(self, request: web.Request) -> int | str | None:
        if self.is_fair or self._rng.random() >= self.share:
            return None
        if request.query.get("watch"):
            return self._one_of(410, 429, 500, "slow")
        if request.method == "GET":
            return self._one_of(410, 429, 500, 504, "slow", "silent")
        return self._one_of(409, 429, 500, 504, "slow", "silent")

    def _one_of(self, *kinds: int | str) -> int | str:
        """Each of them once, in any order, before one comes again."""
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
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        async with self.session.request(
            request.method, self._server + str(request.rel_url), headers=headers,
            data=await request.read(), ssl=self._tls,
        ) as answer:  # fmt: skip
            if request.method != "GET" and answer.status < 300:
                self.writes[f"{request.method} {request.path}"] += 1
            if kind == "silent":
                await answer.read()
                if request.transport is not None:
                    request.transport.abort()
                raise web.HTTPInternalServerError
            found = web.StreamResponse(status=answer.status)
            found.content_type = "application/json"
            await found.prepare(request)
            # No watch lasts long.
            cut = request.query.get("watch") and not self.is_fair
            left = self._rng.randrange(3000) if cut else None
            async for piece in answer.content.iter_any():
                if left is not None and len(piece) >= left:
                    await found.write(piece[:left])
                    if request.transport is not None:
                        request.transport.abort()
                    break
                left = None if left is None else left - len(piece)
                await found.write(piece)
            return found


@asynccontextmanager
async def fault_proxy(
    server: str, certificate: Path, key: Path, ca: Path, *, seed: int
) -> AsyncIterator[FaultProxy]:
    """A proxy on a free port of this machine."""
    proxy = FaultProxy(server, certificate, key, ca, seed=seed)
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
            yield proxy
        finally:
            await runner.cleanup()
