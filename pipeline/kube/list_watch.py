"""Follow one kind of object: list all of them page by page, then watch each change.

The latest state of every object is delivered. Changes between a broken watch and the next list are
merged into that list: `Began` and `Complete` surround each list, between them comes every object,
and objects that were deleted meanwhile are absent. Only the resource version is stored here;
objects are passed on as the bytes that they came in.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import ApiRefusedError, ApiUnavailableError, GoneError, KubernetesError
from pipeline.kube import limits
from pipeline.kube.api_client import (
    JSON,
    METADATA,
    METADATA_OF_ONE,
    Api,
    decode_answer,
    decode_list,
)
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

LISTS = counter("kubernetes_lists", "Lists started.", ["path"])
EVENTS = counter("kubernetes_watch_events", "Changes received by watches.", ["path", "type"])


class Began(NamedTuple):
    """A list starts; an unfinished list before it is void."""


class Page(NamedTuple):
    """Objects of a list."""

    objects: list[msgspec.Raw]


class Complete(NamedTuple):
    """The list is complete: an object that was not in it does not exist."""


class Changed(NamedTuple):
    """An object was created, changed or deleted; a deleted object is in its last state."""

    object: msgspec.Raw
    is_deleted: bool


class Alive(NamedTuple):
    """A bookmark of the server: nothing has changed."""


Event = Began | Page | Complete | Changed | Alive


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Versioned(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    code: int = 0
    message: str = ""


_watch_events: Final = msgspec.json.Decoder(_WatchEvent)
_versions: Final = msgspec.json.Decoder(_Versioned)


async def follow(
    api: Api,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    page: int = limits.PAGE_OBJECTS,
    only_metadata: bool = False,
    was_allowed: bool = False,
) -> AsyncGenerator[Event, None]:
    """Events of the objects at `path`, for ever; `only_metadata` requests their metadata alone.

    While the server does not answer, it waits and tries again. Raises `ApiRefusedError` if the
    first request is refused, unless earlier ones `was_allowed`; later refusals are retried, since a
    server that has just started may not have loaded its access rules yet.
    """
    accept = (METADATA, METADATA_OF_ONE) if only_metadata else (JSON, JSON)
    attempt = 0
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
                async with aclosing(_watch(api, path, params or {}, version, accept[1])) as changes:
                    async for event in changes:
                        if isinstance(event, str):
                            version, attempt = event, 0
                        else:
                            yield event
                if api.clock.monotonic() - began < 1.0:
                    # Pause, in case the server ends each watch at once.
                    await api.pause(1)
        except (ApiUnavailableError, ApiRefusedError) as error:
            if not isinstance(error, (GoneError, ApiUnavailableError)) and not was_allowed:
                raise
            await _pause_before_list(api, path, error, attempt)
            attempt = min(attempt + 1, limits.SLOWEST_ATTEMPT)


async def list_pages(
    api: Api, path: str, page: int = limits.PAGE_OBJECTS
) -> AsyncGenerator[list[msgspec.Raw], None]:
    """The objects at `path` now, page by page. Raises the errors of `Api.request`."""
    async with aclosing(_list(api, path, {}, page, JSON)) as listed:
        async for event in listed:
            if isinstance(event, Page):
                yield event.objects


async def _pause_before_list(api: Api, path: str, error: KubernetesError, attempt: int) -> None:
    """Log the reason, and pause. No pause if a version has expired for the first time since a
    change, which is normal."""
    if isinstance(error, GoneError):
        log.info("listing again", path=path, why=error.message)
        if attempt > 0:
            await api.pause(attempt)
        return
    after = error.retry_after_seconds if isinstance(error, ApiUnavailableError) else None
    log.warning("watch failed; listing again", path=path, why=error.message)
    await api.pause(attempt + 1, after)


async def _list(
    api: Api, path: str, params: Mapping[str, str], page: int, accept: str
) -> AsyncGenerator[Event | str, None]:
    """Yield the list page by page, then its resource version as text."""
    LISTS.labels(path).inc()
    yield Began()

    def request_page(more: str) -> "asyncio.Task[bytes]":
        page_params = {**params, "limit": str(page), **({"continue": more} if more else {})}
        return asyncio.create_task(api.request("GET", path, params=page_params, accept=accept))

    ahead = request_page("")
    try:
        while True:
            listed = decode_list(await ahead, f"GET {path}")
            items, version = listed.items, listed.metadata.resource_version
            more = listed.metadata.more
            # The server makes the next page while this one is processed.
            if more:
                ahead = request_page(more)
            if items:
                yield Page(items)
            # Free this page before the next two are in memory.
            del listed, items
            if not more:
                break
    finally:
        await cancel_tasks(ahead)
    yield Complete()
    yield version


async def _watch(
    api: Api, path: str, params: Mapping[str, str], version: str, accept: str
) -> AsyncGenerator[Event | str, None]:
    """Yield changes since `version`, each followed by its resource version as text.

    Ends when the server ends the watch. Raises `GoneError` if the version has expired, or no watch
    from it works.
    """
    watch_params = {
        **params,
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(limits.WATCH_SECONDS + api.rng.randrange(limits.WATCH_SECONDS)),
    }
    attempt = 0
    while True:
        try:
            async with api.stream(path, watch_params, accept) as pieces:
                async for line in _lines(pieces):
                    event, watch_params["resourceVersion"] = _event(path, line)
                    attempt = 0
                    yield event
                    yield watch_params["resourceVersion"]
            return
        except ApiUnavailableError as error:
            # Events so far were passed on: continue after them, if the server still can.
            log.info("watch interrupted", path=path, why=error.message)
            attempt = min(attempt + 1, limits.SLOWEST_ATTEMPT)
            if attempt > limits.WATCH_ATTEMPTS:
                since = watch_params["resourceVersion"]
                # The events after this version may be unreadable.
                raise GoneError(f"GET {path}: nothing since {since}") from error
            await api.pause(attempt, error.retry_after_seconds)


def _event(path: str, line: bytes) -> tuple[Event, str]:
    watched = decode_answer(_watch_events, line, f"watch of {path}")
    head = decode_answer(_versions, watched.object, f"watch of {path}")
    EVENTS.labels(path, watched.type).inc()
    if watched.type == "ERROR":
        # Mostly 410. Any other error would come again from the same version.
        raise GoneError(f"GET {path}: {head.code} {head.message}")
    version = head.metadata.resource_version
    if watched.type == "BOOKMARK":
        return Alive(), version
    return Changed(watched.object, watched.type == "DELETED"), version


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; an incomplete last line is dropped."""
    rest: Any = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            continue
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
