"""List and watch: the events, and the requests after failures of server and network."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.errors import ForbiddenError, NotFoundError
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Page, follow
from tests.kube.fake_server import Answer, Fake, fake, status

PODS = "/api/v1/pods"


def page(version: str, *names: str, more: str = "") -> Answer:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    items: Any = [{"metadata": {"name": name}} for name in names] or None
    return Answer([json.dumps({"kind": "PodList", "metadata": metadata, "items": items}).encode()])


def line(kind: str, version: str, name: str = "") -> bytes:
    document = {"metadata": {"name": name, "resourceVersion": version}}
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def failed(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": {"code": code, "message": "so"}}).encode() + b"\n"


def name_of(raw: msgspec.Raw) -> str:
    name: str = msgspec.json.decode(raw)["metadata"]["name"]
    return name


async def event_words(server: Fake, count: int) -> list[str]:
    """The first `count` events, as words."""
    words: list[str] = []
    following = follow(server.api, PODS, {"fieldSelector": "x=y"}, page=2)
    async with asyncio.timeout(20):
        async for event in following:
            match event:
                case Began():
                    words.append("began")
                case Page(objects):
                    words.append("page " + " ".join(map(name_of, objects)))
                case Complete():
                    words.append("complete")
                case Changed(encoded, is_deleted):
                    words.append(f"{'deleted' if is_deleted else 'put'} {name_of(encoded)}")
                case Alive():
                    words.append("alive")
            if len(words) == count:
                break
    await following.aclose()
    return words


def watched_from(server: Fake) -> list[str]:
    """The version from which each watch started."""
    return [a.query["resourceVersion"] for a in server.requests if "watch" in a.query]


async def test_pages_and_then_changes_arrive_in_chunks_of_any_size(tmp_path: Path) -> None:
    lines = line("ADDED", "11", "c") + line("MODIFIED", "12", "a") + line("BOOKMARK", "20")
    lines += line("DELETED", "21", "b")
    bits = [lines[i : i + 7] for i in range(0, len(lines), 7)]
    async with fake(
        tmp_path, page("10", "a", "b", more="next"), page("10", "c"), Answer(bits, hangs=True)
    ) as server:
        assert await event_words(server, 8) == [
            "began", "page a b", "page c", "complete", "put c", "put a", "alive", "deleted b",
        ]  # fmt: skip
    first, second, watch = server.requests
    # Without a version the server does not answer from a cache.
    assert first.query == {"fieldSelector": "x=y", "limit": "2"}
    assert second.query == first.query | {"continue": "next"}
    names = ("fieldSelector", "resourceVersion", "allowWatchBookmarks")
    assert [watch.query[name] for name in names] == ["x=y", "10", "true"]


async def test_an_empty_list_is_complete(tmp_path: Path) -> None:
    async with fake(tmp_path, page("1")) as server:
        assert await event_words(server, 2) == ["began", "complete"]


async def test_an_interrupted_watch_continues_where_it_stopped(tmp_path: Path) -> None:
    half = line("ADDED", "14", "lost")[:-9]
    async with fake(
        tmp_path,
        page("10"),
        Answer([line("ADDED", "11", "a")]),
        Answer([line("BOOKMARK", "12"), line("ADDED", "13", "b"), half], cut=True),
        status(500),
        status(429),
        Answer([half]),
        Answer([line("ADDED", "14", "c")], hangs=True),
    ) as server:
        assert await event_words(server, 6) == [
            "began",
            "complete",
            "put a",
            "alive",
            "put b",
            "put c",
        ]
    assert watched_from(server) == ["10", "11", "13", "13", "13", "13"]
    assert len(server.requests) == 7


@pytest.mark.parametrize("answer", [Answer([failed(410)]), status(410), Answer([failed(500)])])
async def test_an_expired_version_is_listed_again(tmp_path: Path, answer: Answer) -> None:
    async with fake(
        tmp_path, page("10", "a"), answer, page("30", "b"), Answer([line("ADDED", "31", "c")])
    ) as server:
        assert await event_words(server, 7) == [
            "began", "page a", "complete", "began", "page b", "complete", "put c",
        ]  # fmt: skip
    assert server.clock.slept == []
    assert watched_from(server) == ["10", "30"]


async def test_an_expired_page_restarts_the_list(tmp_path: Path) -> None:
    async with fake(
        tmp_path, page("10", "a", "b", more="next"), status(410), page("20", "b")
    ) as server:
        assert await event_words(server, 5) == ["began", "page a b", "began", "page b", "complete"]
    assert "continue" not in server.requests[2].query


async def test_pauses_grow_while_every_version_expires(tmp_path: Path) -> None:
    lists = [answer for _ in range(6) for answer in (page("1"), status(410))]
    async with fake(tmp_path, *lists) as server:
        await event_words(server, 12)
        slept = server.clock.slept
    assert len(slept) == 4
    assert slept[-1] > 2 * slept[0]


async def test_a_change_resets_the_pauses(tmp_path: Path) -> None:
    expired = [page("1"), Answer([line("ADDED", "2", "a"), failed(410)])]
    async with fake(tmp_path, *(expired * 5)) as server:
        await event_words(server, 15)
    assert server.clock.slept == []


async def test_a_failed_list_starts_again(tmp_path: Path) -> None:
    short = Answer([b'{"metadata": {"resourceVersion": "1"}, "items": ['])
    async with fake(tmp_path, *[status(500)] * 5, short, page("3", "a")) as server:
        assert await event_words(server, 5) == ["began", "began", "began", "page a", "complete"]


async def test_a_refused_list_raises_at_first_and_is_retried_later(tmp_path: Path) -> None:
    async with fake(tmp_path, status(403)) as server:
        with pytest.raises(ForbiddenError):
            await event_words(server, 2)
    async with fake(tmp_path, page("1"), status(403), status(401), page("2", "a")) as server:
        words = await event_words(server, 6)
    assert words == ["began", "complete", "began", "began", "page a", "complete"]
    assert len(server.clock.slept) == 2


@pytest.mark.parametrize("code", [400, 404])
async def test_after_a_first_answer_refusals_are_retried(tmp_path: Path, code: int) -> None:
    """A server behind a balancer may not serve a group yet."""
    async with fake(tmp_path, page("1"), status(code), status(code), page("2", "a")) as server:
        words = await event_words(server, 6)
    assert words[-2:] == ["page a", "complete"]


async def test_a_version_with_unreadable_events_is_abandoned(tmp_path: Path) -> None:
    nonsense = [Answer([b"<html>\n"])] * 6
    async with fake(tmp_path, page("1"), *nonsense, page("2", "a")) as server:
        words = await event_words(server, 5)
    assert words == ["began", "complete", "began", "page a", "complete"]
    assert watched_from(server) == ["1"] * 6


async def test_a_missing_kind_raises(tmp_path: Path) -> None:
    async with fake(tmp_path, status(404)) as server:
        with pytest.raises(NotFoundError):
            await event_words(server, 2)


async def test_watches_that_end_at_once_are_repeated_after_a_pause(tmp_path: Path) -> None:
    async with fake(
        tmp_path, page("1"), Answer(), Answer(), Answer(), Answer([line("ADDED", "2", "a")])
    ) as server:
        await event_words(server, 3)
    assert len(server.clock.slept) == 3


async def test_an_invalid_event_interrupts_the_watch(tmp_path: Path) -> None:
    for nonsense in (b"{}\n", b"\xff\n", b'{"type": "ADDED", "object": 1}\n', b"<html>\n"):
        async with fake(
            tmp_path, page("1"), Answer([nonsense]), Answer([line("ADDED", "2", "a")])
        ) as server:
            assert await event_words(server, 3) == ["began", "complete", "put a"]
        assert watched_from(server) == ["1", "1"]


@pytest.mark.parametrize("lie", [
    {}, {"items": []}, {"kind": "PodList", "metadata": {}, "items": []},
    {"kind": "PodList", "metadata": {"resourceVersion": "9"}},
    {"kind": "Pod", "metadata": {"resourceVersion": "9"}, "items": []},
])  # fmt: skip
async def test_an_answer_of_a_fake_server_that_is_no_list_is_no_empty_list(
    tmp_path: Path, lie: Any
) -> None:
    lies = [Answer([json.dumps(lie).encode()])] * 2
    async with fake(tmp_path, *lies, page("3", "a")) as server:
        assert await event_words(server, 5) == ["began", "began", "began", "page a", "complete"]
