"""The API `metrics.k8s.io` as a provider, mostly metrics-server's.

It tells the last reading of each node and pod and forgets the one before. So it is asked more than
once a window, and a window is what was read in it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import KubernetesError, ProviderError
from pipeline.kube.api_client import Api, open_api
from pipeline.logs import get_logger
from pipeline.processors.provided.fetched_usage import FetchedUsage, PodName, TimeWindow
from pipeline.processors.provided.metrics_api import Readings, gather, read_list
from pipeline.settings import Settings
from pipeline.sources.providers.protocol import SampleSource
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

_PATH: Final = "/apis/metrics.k8s.io/v1beta1"
_KINDS: Final = ("nodes", "pods")


class MetricsServer:
    """The readings that were told lately; made by `open_metrics_server`, which keeps asking."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes: Readings[str] = Readings()
        self._pods: Readings[PodName] = Readings()
        self._failures: dict[str, str] = {}
        self._left_out: Counter[str] = Counter()
        self._bad_values: Counter[str] = Counter()

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """What was read in `window`. Raises `ProviderError` if the list of nodes cannot be had and
        nothing was read before."""
        await self.ask()
        found = await asyncio.to_thread(gather, self._nodes, self._pods, window)
        found.knows_pods = bool(found.pods) or "pods" not in self._failures
        for readings in (self._nodes, self._pods):
            readings.forget(window.start_ms)
        found.left_out += self._left_out
        found.bad_values += self._bad_values
        self._left_out.clear()
        self._bad_values.clear()
        found.failed = dict(self._failures)
        if not found.nodes and "nodes" in self._failures:
            raise ProviderError(
                self._failures["nodes"],
                may_pass=True,
                hint="`kubectl top nodes` asks the same: does it work?",
            )
        return found

    async def keep_asking(self, every_seconds: float) -> None:
        """Ask for ever."""
        while True:
            await self.ask()
            await self._api.clock.sleep(every_seconds)

    async def ask(self) -> None:
        """Take the readings that are told now. What fails is told by the next `fetch`."""
        for kind in _KINDS:
            path = f"{_PATH}/{kind}"
            try:
                body = await self._api.request("GET", path)
                listed = await asyncio.to_thread(read_list, body)
            except (KubernetesError, ProviderError) as error:
                if kind not in self._failures:
                    log.warning("metrics-server", asked=path, why=error.message)
                self._failures[kind] = error.message
                continue
            self._failures.pop(kind, None)
            self._nodes.put(listed.nodes)
            self._pods.put(listed.pods)
            self._left_out += listed.left_out
            self._bad_values += listed.bad_values


@asynccontextmanager
async def open_metrics_server(
    settings: Settings, clock: Clock, api: Api | None
) -> AsyncIterator[MetricsServer]:
    """Poll metrics-server in the background; without `api`, by an API session of its own."""
    async with AsyncExitStack() as stack:
        if api is None:
            api = await stack.enter_async_context(open_api(settings.kubernetes, clock))
        server = MetricsServer(api)
        polling = asyncio.create_task(server.keep_asking(settings.provider.poll_seconds))
        try:
            yield server
        finally:
            await cancel_tasks(polling)


SOURCE: Final = SampleSource(
    name="metrics-server",
    text="the API metrics.k8s.io of the section kubernetes",
    open=open_metrics_server,
    hint="check that `kubectl top nodes` works",
    has_history=False,
    needs_cluster=True,
)
