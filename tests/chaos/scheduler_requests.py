"""Requests of a scheduler to extenders behind a Service of Kubernetes.

The Service sends connections to replicas that are ready, by probes of /readyz. A refused connection
is tried at another replica. Whatever else fails is a failure: what a replica accepted, it answers.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp

PROBE_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.1
_ANSWER: Final = aiohttp.ClientTimeout(total=30.0)


class SchedulerRequests:
    """`answers` counts the answers of each replica, `failures` has what else came."""

    def __init__(self, urls: Sequence[str], node_names: Sequence[str]) -> None:
        self.ready: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._urls = urls
        self._nodes = [*node_names]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask while the context lasts: on connections that are kept open, and on new ones."""
        async with (
            aiohttp.ClientSession(timeout=_ANSWER) as kept,
            aiohttp.ClientSession(
                timeout=_ANSWER, connector=aiohttp.TCPConnector(force_close=True)
            ) as new,
        ):
            tasks = [
                asyncio.create_task(work)
                for work in (self._probe(), self._ask_on(kept), self._ask_on(new))
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
            while True:
                for url in self._urls:
                    status = 0
                    with suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"{url}/readyz") as answer:
                            status = answer.status
                    (self.ready.add if status == 200 else self.ready.discard)(url)
                await asyncio.sleep(PROBE_SECONDS)

    async def _ask_on(self, session: aiohttp.ClientSession) -> None:
        number = 0
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            if replicas := sorted(self.ready):
                number += 1
                first = number % len(replicas)
                others = [url for url in self._urls if url != replicas[first]]
                verb = ("filter", "prioritize")[number // 2 % 2]
                await self._ask(session, verb, [replicas[first], *others])

    async def _ask(self, session: aiohttp.ClientSession, verb: str, urls: Sequence[str]) -> None:
        """Ask the first of `urls` that does not refuse the connection."""
        question = {"Pod": {}, "NodeNames": self._nodes}
        for url in urls:
            try:
                async with session.post(f"{url}/{verb}", json=question) as answer:
                    self._judge(url, verb, answer.status, await answer.json())
                    return
            except aiohttp.ClientConnectorError:
                continue
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(f"{verb} of {url}: {error!r}")
                return
        self.failures.append(f"{verb}: each replica refused the connection")

    def _judge(self, url: str, verb: str, status: int, body: Any) -> None:
        if verb == "filter":
            names = ("NodeNames", "FailedNodes", "FailedAndUnresolvableNodes")
            answered = {node for name in names for node in body[name] or ()}
        else:
            answered = {score["Host"] for score in body}
        if status == 200 and answered == {*self._nodes}:
            self.answers[url] += 1
        else:
            self.failures.append(f"{verb} of {url}: {status} {body!s:.300}")
