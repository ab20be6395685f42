"""Following one kind of object: all there are, page by page, then each change as it happens.

Owes the rest: nothing is missed. What was deleted while nobody looked is what a whole list does not
have: `Began` and `Complete` are around each, and between them comes every object there is. Nothing
is kept here but the version to go on from; objects are handed on as the bytes they came in.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import ApiRefusedError, ApiUnavailableError, GoneError, KubernetesError
from pipeline.kube.api_client import JSON, METADATA, METADATA_OF_ONE, Api
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

LISTS = counter("kubernetes_lists", "Whole lists that were begun.", ["path"])
EVENTS = counter("kubernetes_watch_events", "Changes that were told.", ["path", "type"])

_PAGE: Final = 500
_WATCH_SECONDS: Final = 300
_SLOWEST: Final = 10
_ATTEMPTS_FROM_A_VERSION: Final = 5


class Began(NamedTuple):
    """A whole list begins; what one before it lacked counts no more."""


class Page(NamedTuple):
    """Objects of a list."""

    objects: list[msgspec.Raw]


class Complete(NamedTuple):
    """The list is complete: what was not in it is not there."""


class Changed(NamedTuple):
    """An object was made or changed, or it `is_gone`: then it is as it was last."""

    object: msgspec.Raw
    is_gone: bool


class Alive(NamedTuple):
    """Nothing has changed, and the server says so."""


Event = Began | Page | Complete | Changed | Alive


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _Told(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Versioned(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    code: int = 0
    message: str = ""


_lists: Final = msgspec.json.Decoder(_List)
_told: Final = msgspec.json.Decoder(_Told)
_versions: Final = msgspec.json.Decoder(_Versioned)


async def follow(
    api: Api,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    page: int = _PAGE,
    only_metadata: bool = False,
) -> AsyncGenerator[Event, None]:
    """All events of the objects at `path`, for ever; `only_metadata` leaves out what they say.
    While the server does not answer it waits, and tries again. Raises `ApiRefusedError` if there is
    no such kind, or if it is not allowed at the first time: who was answered once waits until he is
    again, for a server that has just started may not know yet."""
    accept = (METADATA, METADATA_OF_ONE) if only_metadata else (JSON, JSON)
    attempt, was_allowed = 0, False
    while True:
        try:
            version = ""
            async with aclosing(_list(api, path, params or {}, page, accept[0])) as listed:
                async for event in listed:
                    if isinstance(event, str):
                        version = event
                    else:
                        yield event
            was_allowed = True
            while True:
                began = api.clock.monotonic()
                async with aclosing(_watch(api, path, params or {}, version, accept[1])) as told:
                    async for event in told:
                        if isinstance(event, str):
                            version, attempt = event, 0
                        else:
                            yield event
                if api.clock.monotonic() - began < 1.0:
                    # A server that ends each watch at once must not be asked without a pause.
                    await api.pause(1)
        except (ApiUnavailableError, ApiRefusedError) as error:
            if not isinstance(error, (GoneError, ApiUnavailableError)) and not was_allowed:
                raise
            await _before_listing_anew(api, path, error, attempt)
            attempt = min(attempt + 1, _SLOWEST)


async def _before_listing_anew(api: Api, path: str, error: KubernetesError, attempt: int) -> None:
    """Say why, and wait: not if it is the first time since a change was told that a version lies
    too far back, which is nobody's fault."""
    if isinstance(error, GoneError):
        log.info("listing anew", path=path, why=error.message)
        if attempt > 0:
            await api.pause(attempt)
        return
    after = error.retry_after_seconds if isinstance(error, ApiUnavailableError) else None
    log.warning("cannot be followed; listing anew", path=path, why=error.message)
    await api.pause(attempt + 1, after)


async def _list(
    api: Api, path: str, params: Mapping[str, str], page: int, accept: str
) -> AsyncGenerator[Event | str, None]:
    """A whole list, and the version that it is of as text, last."""
    LISTS.labels(path).inc()
    yield Began()

    def ask(more: str) -> "asyncio.Task[bytes]":
        asked = {**params, "limit": str(page), **({"continue": more} if more else {})}
        return asyncio.create_task(api.request("GET", path, params=asked, accept=accept))

    ahead = ask("")
    try:
        while True:
            found = _decoded(await ahead, path)
            items, version = found.items, found.metadata.resource_version
            more = found.metadata.more
            # The server can make the next page while this one is worked on.
            if more:
                ahead = ask(more)
            if items:
                yield Page(items)
            # No page must live on beside the next two.
            del found, items
            if not more:
                break
    finally:
        await cancel_tasks(ahead)
    yield Complete()
    yield version


def _decoded(body: bytes, path: str) -> _List:
    try:
        return _lists.decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiUnavailableError(f"GET {path}: no list: {error}") from error


async def _watch(
    api: Api, path: str, params: Mapping[str, str], version: str, accept: str
) -> AsyncGenerator[Event | str, None]:
    """Changes since `version`, and after each the version that it leads to as text; ends when the
    server ends it. Raises `GoneError` if it lies too far back, or cannot be gone on from."""
    asked = {
        **params,
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(_WATCH_SECONDS + api.rng.randrange(_WATCH_SECONDS)),
    }
    attempt = 0
    while True:
        try:
            async with api.stream(path, asked, accept) as pieces:
                async for line in _lines(pieces):
                    event, asked["resourceVersion"] = _event(path, line)
                    attempt = 0
                    if event is not None:
                        yield event
                    yield asked["resourceVersion"]
            return
        except ApiUnavailableError as error:
            # What was told so far was handed on: go on from there, if the server still can.
            log.info("watch was cut off", path=path, why=error.message)
            attempt = min(attempt + 1, _SLOWEST)
            if attempt > _ATTEMPTS_FROM_A_VERSION:
                # It may be this version from which nothing comes that can be read.
                raise GoneError(f"GET {path}: nothing since {asked['resourceVersion']}") from error
            await api.pause(attempt, error.retry_after_seconds)


def _event(path: str, line: bytes) -> tuple[Event | None, str]:
    try:
        told = _told.decode(line)
        of = _versions.decode(told.object)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiUnavailableError(f"GET {path}: no event: {error}") from error
    EVENTS.labels(path, told.type).inc()
    if told.type == "ERROR":
        # Mostly 410. Whatever else is wrong with a watch would be again, from the same version.
        raise GoneError(f"GET {path}: {of.code} {of.message}")
    version = of.metadata.resource_version
    if told.type == "BOOKMARK":
        return Alive(), version
    return Changed(told.object, told.type == "DELETED"), version


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; what a cut-off answer leaves behind is none."""
    rest: Any = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            continue
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
