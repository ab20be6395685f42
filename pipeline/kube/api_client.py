"""One session with the API server: requests in, JSON out, and errors that say what to do.

A request that the server did not take on, and one that changes nothing, is repeated for a while; of
any other it is for the caller to know whether it may be: an actuator compares again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

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
)
from pipeline.kube.api_access import Access, access
from pipeline.metrics import counter
from pipeline.settings import KubernetesSettings

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Of a list only who its objects are."""
METADATA_OF_ONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
JSON: Final = "application/json"
_ATTEMPTS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0
# A proxy may say a day, and would be obeyed for a day.
_LONGEST_TOLD_SECONDS: Final = 60.0
# A watch is told every minute that nothing has changed.
_SILENCE_SECONDS: Final = 150.0
_LATER: Final = (429, 500, 502, 503, 504)
_REFUSED: Final[Mapping[int, type[ApiRefusedError]]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}

REQUESTS = counter("kubernetes_requests", "Requests to the API server.", ["method", "status"])


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


class Api:
    """The API server; made by `open_api`. Not for several threads."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        access: Access,
        clock: Clock,
        timeout_seconds: float,
        rng: random.Random,
    ) -> None:
        self._session = session
        self._access = access
        self._way: Any = {"proxy": access.proxy, "server_hostname": access.server_name}
        self._timeout_seconds = timeout_seconds
        self.clock = clock
        self.rng = rng

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The object, or list, at `path`. Raises the errors of `request`."""
        return _decoded(path, await self.request("GET", path, params=params))

    async def create(self, path: str, body: Any) -> Any:
        """The object as it was made. Raises `ConflictError` if there is one of its name."""
        return _decoded(path, await self.request("POST", path, body=body))

    async def replace(self, path: str, body: Any) -> Any:
        """Put an object in the place of the one of its resourceVersion; `ConflictError` if that has
        changed."""
        return _decoded(path, await self.request("PUT", path, body=body))

    async def patch(self, path: str, body: Any) -> Any:
        """Merge `body` into an object: null removes. With metadata.resourceVersion in it only if
        the object is still that one, else `ConflictError`."""
        return _decoded(path, await self.request("PATCH", path, body=body, kind=MERGE))

    async def delete(self, path: str) -> None:
        """Delete an object; one that is not there is deleted already."""
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
        kind: str = JSON,
        accept: str = JSON,
        attempts: int = _ATTEMPTS,
    ) -> bytes:
        """The body of the answer.

        Raises `ApiUnavailableError` if there is none for long, else the fitting `ApiRefusedError`.
        """
        data = None if body is None else msgspec.json.encode(body)
        for attempt in range(1, attempts + 1):
            try:
                return await self._once(method, path, params, data, kind, accept)
            except ApiUnavailableError as error:
                may_repeat = method == "GET" or error.was_done is False
                if attempt == attempts or not may_repeat:
                    raise
                await self.pause(attempt, error.retry_after_seconds)
        raise AssertionError("the last attempt returns or raises")

    async def pause(self, attempt: int, at_least_seconds: float | None = None) -> None:
        """Wait before the next attempt: longer after each, and never all at the same time; where
        the server said for how long, as long as that, up to a minute."""
        longest = min(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
        seconds = longest * (0.5 + self.rng.random() / 2)
        told = min(at_least_seconds or 0.0, _LONGEST_TOLD_SECONDS)
        await self.clock.sleep(max(seconds, told))

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer in pieces as they come, for as long as it lasts. Raises as `request` does, for
        the first answer and while it is read."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout_seconds, sock_read=_SILENCE_SECONDS
        )
        try:
            async with self._session.get(
                self._access.server + path,
                params=params,
                headers={**await self._access.headers(), "Accept": accept},
                **self._way,
                timeout=timeout,
            ) as response:
                REQUESTS.labels("WATCH", str(response.status)).inc()
                if response.status != 200:
                    raise _error("GET", path, response, await response.read())
                yield response.content.iter_any()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailableError(f"GET {path}: {error or type(error).__name__}") from error

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        kind: str,
        accept: str,
    ) -> bytes:
        headers = {**await self._access.headers(), "Accept": accept}
        if data is not None:
            headers["Content-Type"] = kind
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                params=params,
                data=data,
                headers=headers,
                **self._way,
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            ) as response:
                found = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise ApiUnavailableError(f"{method} {path}: {error}", was_done=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"{method} {path}: {error or type(error).__name__}"
            raise ApiUnavailableError(text) from error
        REQUESTS.labels(method, str(response.status)).inc()
        if response.status >= 400:
            raise _error(method, path, response, found)
        return found


def _error(
    method: str, path: str, response: aiohttp.ClientResponse, body: bytes
) -> KubernetesError:
    try:
        said = msgspec.json.decode(body, type=_Status).message
    except (msgspec.DecodeError, UnicodeError):
        said = body[:200].decode(errors="replace")
    text = f"{method} {path}: {response.status} {said}".strip()
    if response.status in _LATER:
        return ApiUnavailableError(
            text,
            retry_after_seconds=_seconds(response.headers.get("Retry-After")),
            # The server says so before it looks at the request.
            was_done=False if response.status in (429, 503) else None,
        )
    return _REFUSED.get(response.status, ApiRefusedError)(text)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


@asynccontextmanager
async def open_api(
    settings: KubernetesSettings, clock: Clock, rng: random.Random | None = None
) -> AsyncIterator[Api]:
    """A session with the API server of `settings`. Raises `KubernetesError` where nothing says
    where it is, or the credentials cannot be read, `SettingsError` for a kubeconfig of no use."""
    try:
        found = await asyncio.to_thread(access, settings)
    except SettingsError:
        raise
    except (OSError, ValueError) as error:
        raise KubernetesError(f"credentials cannot be read: {error}") from error
    connector = aiohttp.TCPConnector(ssl=found.tls if found.tls is not None else True, limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
        yield Api(session, found, clock, settings.request_timeout_seconds, rng or random.Random())


def _decoded(path: str, answer: bytes) -> Any:
    """The object in an answer. Raises `ApiUnavailableError` for what is none: a proxy that has
    something to say, of which nobody knows whether the server was asked."""
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiUnavailableError(f"{path}: the answer is no object: {error}") from error
