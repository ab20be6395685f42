"""A session with the API server: requests, JSON answers, and errors that say what to do.

A request is repeated for a while if the server did not process it, or if it is a GET. Whether any
other may be repeated, only the caller knows: an actuator compares the object again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from pipeline import __version__
from pipeline.clock import Clock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    GoneError,
    KubernetesError,
    NotFoundError,
    SettingsError,
    UnauthenticatedError,
    unanswered_reason,
)
from pipeline.kube import limits
from pipeline.kube.api_access import ApiAccess, api_access
from pipeline.metrics import counter
from pipeline.settings import KubernetesSettings

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""A list with the metadata of its objects alone."""
METADATA_OF_ONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""The same for one object."""
JSON: Final = "application/json"
_RETRIABLE: Final = (429, 500, 502, 503, 504)
_REFUSED: Final[Mapping[int, type[ApiRefusedError]]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}

AnswerT = TypeVar("AnswerT")

_objects: Final = msgspec.json.Decoder(dict[str, Any])

REQUESTS = counter("kubernetes_requests", "Requests to the API server.", ["method", "status"])


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class ObjectList(msgspec.Struct):
    """A page of a list; `metadata.more` requests the next page."""

    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None


_object_lists: Final = msgspec.json.Decoder(ObjectList)


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None


class Api:
    """The API server, for one thread. Made by `open_api`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        access: ApiAccess,
        clock: Clock,
        timeout_seconds: float,
        rng: random.Random,
    ) -> None:
        self._session = session
        self._access = access
        self._route: Any = {"proxy": access.proxy, "server_hostname": access.server_name}
        self._timeout_seconds = timeout_seconds
        self.clock = clock
        self.rng = rng
        self._server_ahead_of_monotonic: float | None = None

    def server_now(self) -> float | None:
        """The wall time of the API server (Unix time), or a little less, by its last answer; None
        before one that states it. Objects are stamped by this clock."""
        if self._server_ahead_of_monotonic is None:
            return None
        return self.clock.monotonic() + self._server_ahead_of_monotonic

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """Get the object or list at `path`. Raises the errors of `request`."""
        return await self._object("GET", path, params=params)

    async def create(self, path: str, body: Any) -> Any:
        """Create an object. Raises `ConflictError` if its name is taken."""
        return await self._object("POST", path, body=body)

    async def replace(self, path: str, body: Any) -> Any:
        """Replace an object of the same resourceVersion. Raises `ConflictError` if it has
        changed."""
        return await self._object("PUT", path, body=body)

    async def patch(self, path: str, body: Any) -> Any:
        """Merge `body` into an object; null removes a key. Raises `ConflictError` if `body` has a
        metadata.resourceVersion that is not the object's."""
        return await self._object("PATCH", path, body=body, content_type=MERGE)

    async def _object(self, method: str, path: str, **request: Any) -> Any:
        answer = await self.request(method, path, **request)
        return decode_answer(_objects, answer, f"{method} {path}")

    async def delete(self, path: str) -> None:
        """Delete an object; a missing object is no error."""
        try:
            await self.request("DELETE", path)
        except NotFoundError:
            return

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        attempts: int = limits.REQUEST_ATTEMPTS,
        connect_seconds: float | None = None,
    ) -> bytes:
        """Send a request; returns the body of the answer. An attempt is not sent if no connection
        is made in `connect_seconds`. Raises `ApiUnavailableError` if all attempts fail,
        `ApiRefusedError` or a subclass if the server refuses the request."""
        data = None if body is None else msgspec.json.encode(body)
        # aiohttp takes 0 for no limit.
        connect = None if connect_seconds is None else max(connect_seconds, 0.001)
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, connect=connect)
        for attempt in range(1, attempts + 1):
            try:
                return await self._once(method, path, params, data, content_type, accept, timeout)
            except ApiUnavailableError as error:
                may_repeat = method == "GET" or error.was_done is False
                if attempt == attempts or not may_repeat:
                    raise
                await self.pause(attempt, error.retry_after_seconds)
        raise AssertionError("the last attempt returns or raises")

    async def pause(self, attempt: int, at_least_seconds: float | None = None) -> None:
        """Wait before the next attempt: longer after each attempt, with jitter, and at least as
        long as the server asked for, up to a minute."""
        longest = min(limits.FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), limits.LONGEST_PAUSE_SECONDS)
        seconds = longest * (0.5 + self.rng.random() / 2)
        at_least = min(at_least_seconds or 0.0, limits.LONGEST_RETRY_AFTER_SECONDS)
        await self.clock.sleep(max(seconds, at_least))

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the answer in chunks as they arrive. Raises the errors of `request`, also while
        chunks are read. Errors of the caller's own block pass unchanged."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout_seconds, sock_read=limits.WATCH_SILENCE_SECONDS
        )
        async with AsyncExitStack() as stack:
            with _unavailable(f"GET {path}"):
                request = self._session.get(
                    self._access.server + path,
                    params=params,
                    headers={**await self._access.headers(), "Accept": accept},
                    **self._route,
                    timeout=timeout,
                )
                response = await stack.enter_async_context(request)
                REQUESTS.labels("WATCH", str(response.status)).inc()
                if response.status != 200:
                    raise _error("GET", path, response, await response.read())
            yield _chunks(response, path)

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> bytes:
        headers = {**await self._access.headers(), "Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        with _unavailable(f"{method} {path}"):
            async with self._session.request(
                method,
                self._access.server + path,
                params=params,
                data=data,
                headers=headers,
                **self._route,
                timeout=timeout,
            ) as response:
                answer = await response.read()
        self._note_date(response.headers.get("Date"))
        REQUESTS.labels(method, str(response.status)).inc()
        if response.status >= 400:
            raise _error(method, path, response, answer)
        return answer

    def _note_date(self, text: str | None) -> None:
        try:
            date = parsedate_to_datetime(text or "").timestamp()
        except (ValueError, OverflowError):
            return
        self._server_ahead_of_monotonic = date - self.clock.monotonic()


@contextmanager
def _unavailable(request: str) -> Iterator[None]:
    """Raise errors of a connection as `ApiUnavailableError`."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        text = f"{request}: {unanswered_reason(error)}"
        raise ApiUnavailableError(text, was_done=False) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ApiUnavailableError(f"{request}: {unanswered_reason(error)}") from error


async def _chunks(response: aiohttp.ClientResponse, path: str) -> AsyncIterator[bytes]:
    with _unavailable(f"GET {path}"):
        async for chunk in response.content.iter_any():
            yield chunk


def _error(
    method: str, path: str, response: aiohttp.ClientResponse, body: bytes
) -> KubernetesError:
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        status = _Status(body[:200].decode(errors="replace"))
    text = f"{method} {path}: {response.status} {status.message}".strip()
    error: KubernetesError
    if response.status in _RETRIABLE:
        error = ApiUnavailableError(
            text,
            retry_after_seconds=_seconds(response.headers.get("Retry-After")),
            # The server sends these before it processes a request.
            was_done=False if response.status in (429, 503) else None,
        )
    else:
        error = _REFUSED.get(response.status, ApiRefusedError)(text, reason=status.reason)
    error.status = response.status
    causes = status.details.causes if status.details is not None else None
    error.causes = tuple(cause.reason for cause in causes or ())
    return error


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


@asynccontextmanager
async def open_api(
    settings: KubernetesSettings, clock: Clock, *, name: str = "springtide"
) -> AsyncIterator[Api]:
    """Open a session with the API server of `settings`. The server logs `name` as the user agent,
    and names it as the manager of the fields that the session writes. Raises `KubernetesError` if
    none is configured or credentials cannot be read, `SettingsError` for an invalid kubeconfig."""
    try:
        access = await asyncio.to_thread(api_access, settings)
    except SettingsError:
        raise
    except (OSError, ValueError) as error:
        raise KubernetesError(f"credentials cannot be read: {error}") from error
    connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True, limit=0)
    headers = {"User-Agent": f"{name}/{__version__}"}
    async with aiohttp.ClientSession(
        connector=connector, auto_decompress=True, headers=headers
    ) as session:
        timeout_seconds = settings.request_timeout_seconds
        yield Api(session, access, clock, timeout_seconds, random.Random())


def decode_answer(
    decoder: msgspec.json.Decoder[AnswerT], answer: bytes | msgspec.Raw, request: str
) -> AnswerT:
    """Decode the answer to `request`. Raises `ApiUnavailableError` if it is invalid: a proxy
    answered, and whether the server got the request is unknown."""
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ApiUnavailableError(f"{request}: invalid answer: {error}") from error


def decode_list(answer: bytes, request: str) -> ObjectList:
    """Decode the List that answers `request`. Raises `ApiUnavailableError` for any other answer: a
    proxy's `{}` must not pass for an empty cluster."""
    listed = decode_answer(_object_lists, answer, request)
    if not listed.kind.endswith("List") or not listed.metadata.resource_version:
        raise ApiUnavailableError(
            f"{request}: invalid answer: kind {listed.kind!r:.80}, resourceVersion "
            f"{listed.metadata.resource_version!r:.80}, expected a List with a version"
        )
    return listed
