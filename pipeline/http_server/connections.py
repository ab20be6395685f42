"""Accept connections: bounded in all and by address, each with a time-out for its first request.

aiohttp bounds neither: a client that opens connections and sends no request would take every open
file of the process, and the scheduler would get no connection. Where too many are open, new ones
are closed unanswered. Connections that are still in the TLS handshake count, too.
"""

import asyncio
import collections
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from aiohttp import web
from prometheus_client import Counter, Gauge

from pipeline.errors import SettingsError
from pipeline.http_server import limits
from pipeline.http_server.access_log import HTTP_LOGGER, AccessLog
from pipeline.http_server.server_tls import Tls
from pipeline.logs import get_logger
from pipeline.tasks import cancel_tasks

_log = get_logger(__name__)

Refuse = Callable[[int, str], web.StreamResponse]
"""Makes the answer to a request that is refused, from its status and the reason."""


OPEN: Final = "Open connections."
CLOSED: Final = (
    "Connections closed without an answer: too many from one address, too many in all, no request "
    "in time, or a failed TLS handshake."
)


class ConnectionMetrics(NamedTuple):
    """The metrics of a role's connections: how many are `OPEN`, and how many were `CLOSED` by
    reason."""

    open: Gauge
    closed: Counter


class Connections:
    """The open connections of one server by address of the client. `section` of the settings has
    `connections_per_address` and the port."""

    def __init__(
        self, most: int, most_per_address: int, metrics: ConnectionMetrics, section: str
    ) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._metrics, self.section = metrics, section
        self._by_address = collections.Counter[str]()

    def take(self, address: str) -> bool:
        """Count a new connection; False if there are too many."""
        if self._by_address[address] >= self._most_per_address:
            self.close(
                "address", address,
                f"{self._most_per_address} connections of one address are open: is it a proxy, "
                f"raise {self.section}.connections_per_address",
            )  # fmt: skip
            return False
        if self._by_address.total() >= self._most:
            reason = f"{self._most} connections are open: raise the limit of open files"
            self.close("total", address, reason)
            return False
        self._by_address[address] += 1
        self._metrics.open.set(self._by_address.total())
        return True

    def free(self, address: str) -> None:
        """Count a connection that was taken as closed."""
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._metrics.open.set(self._by_address.total())

    def close(self, label: str, address: str, reason: str) -> None:
        """Report a connection that is closed without an answer."""
        self._metrics.closed.labels(label).inc()
        _log.warning("connection closed", per=reason, reason=reason, remote=address)


class _Connection(web.RequestHandler):
    """A connection that closes unless its first request arrives in time."""

    __slots__ = ("_address", "_connections", "_timer", "is_open")

    def __init__(self, server: web.Server, connections: Connections, address: str) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.KEEPALIVE_SECONDS,
            access_log_class=AccessLog,
            logger=HTTP_LOGGER,
        )
        self._connections, self._address = connections, address
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_open = True
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.HEAD_TIMEOUT_SECONDS, self._expire)

    def request_arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def connection_lost(self, error: BaseException | None) -> None:
        self.request_arrived()
        self._connections.free(self._address)
        super().connection_lost(error)

    def _expire(self) -> None:
        reason = f"no request within {limits.HEAD_TIMEOUT_SECONDS:g} s"
        self._connections.close("head", self._address, reason)
        self.force_close()


class Listener:
    """The listening sockets of a server, and the tasks that accept from them."""

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        tls: Tls | None,
        refuse: Refuse,
    ) -> None:
        self._server, self._connections, self._tls = server, connections, tls
        self._refuse = refuse
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[NoReturn]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._answer = server.request_handler
        server.request_handler = self._handle

    async def start(self, host: str, port: int) -> int:
        """Listen on every address of `host`; returns the port. Raises `SettingsError`."""
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, *_, address in dict.fromkeys(resolved):
                self._sockets.append(
                    socket.create_server(address, family=family, backlog=limits.ACCEPT_BACKLOG)
                )
        except OSError as error:
            await self.stop()
            raise SettingsError.listening(
                error, host, port, f"{self._connections.section}.port", or_none=False
            ) from error
        for listening in self._sockets:
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening), name="accept"))
        return int(self._sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Accept no more connections; those that are open stay open."""
        await cancel_tasks(*self._accepting)
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        if self._opening:
            await asyncio.wait(self._opening, timeout=limits.CLOSE_SECONDS)
        await cancel_tasks(*self._opening)

    async def _accept(self, listening: socket.socket) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (address, *_) = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # the client has left
            except OSError as error:
                reason = error.strerror or str(error)
                _log.warning("connection not accepted", per=reason, reason=reason)
                await asyncio.sleep(limits.ACCEPT_PAUSE_SECONDS)
                continue
            if self._connections.take(address):
                task = asyncio.create_task(self._open(accepted, address))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()
            # sock_accept does not wait while connections are queued: let the others run.
            await asyncio.sleep(0)

    async def _open(self, accepted: socket.socket, address: str) -> None:
        """Make the TLS handshake, if any, and hand the connection to the server."""
        connection = _Connection(self._server, self._connections, address)
        context = None if self._tls is None else self._tls.context
        timeout = None if context is None else limits.HEAD_TIMEOUT_SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=context, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            self._connections.close("handshake", address, f"TLS handshake failed: {_why(error)}")
        finally:
            if not connection.is_open:
                self._connections.free(address)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer 417 to any expectation except 100-continue. aiohttp itself answers before
        middlewares run, quotes the client, and fails if the quoted bytes are not text."""
        if isinstance(request.protocol, _Connection):
            request.protocol.request_arrived()
        if request.headers.get("Expect", "100-continue").lower() != "100-continue":
            return self._refuse(417, "the only supported expectation is 100-continue")
        return await self._answer(request)


def _why(error: OSError) -> str:
    """The error as a few words that are the same for each client."""
    return getattr(error, "reason", None) or type(error).__name__
