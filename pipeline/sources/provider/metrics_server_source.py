"""Usage from the API `metrics.k8s.io`, usually served by metrics-server.

The API returns only the last reading of each node and pod. The provider polls it several times per
window and aggregates the readings of a window.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import KubernetesError, SampleSourceError
from pipeline.kube.api_client import Api, open_api
from pipeline.logs import get_logger
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, TimeWindow
from pipeline.processors.imported_usage.metrics_api import Readings, gather, read_list
from pipeline.settings import Settings
from pipeline.sources.provider.sample_source import SampleSource
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

_PATH: Final = "/apis/metrics.k8s.io/v1beta1"
_KINDS: Final = ("nodes", "pods")


class MetricsServerSession:
    """The recent readings; created by `open_metrics_server`, which polls in the background."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes: Readings[str] = Readings()
        self._pods: Readings[PodName] = Readings()
        self._failures: dict[str, str] = {}
        self._left_out: Counter[str] = Counter()
        self._bad_values: Counter[str] = Counter()

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Poll once more and return the usage in `window`.

        Raises `SampleSourceError` if there are no readings and the list of nodes is unavailable.
        """
        await self.poll()
        usage = await asyncio.to_thread(gather, self._nodes, self._pods, window)
        usage.knows_pods = bool(usage.pods) or "pods" not in self._failures
        for readings in (self._nodes, self._pods):
            readings.forget(window.start_ms)
        usage.left_out += self._left_out
        usage.bad_values += self._bad_values
        self._left_out.clear()
        self._bad_values.clear()
        usage.failed = dict(self._failures)
        if not usage.nodes and "nodes" in self._failures:
            raise SampleSourceError(
                self._failures["nodes"],
                may_pass=True,
                hint="`kubectl top nodes` sends the same request: check that it works",
            )
        return usage

    async def poll_forever(self, interval_seconds: float) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await self._api.clock.sleep(interval_seconds)

    async def poll(self) -> None:
        """Store the present readings. The next `fetch` reports failures."""
        for kind in _KINDS:
            path = f"{_PATH}/{kind}"
            try:
                body = await self._api.request("GET", path)
                listed = await asyncio.to_thread(read_list, body)
            except (KubernetesError, SampleSourceError) as error:
                if kind not in self._failures:
                    log.warning("metrics-server request failed", path=path, why=error.message)
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
) -> AsyncIterator[MetricsServerSession]:
    """Poll metrics-server in the background; open an API session if `api` is None."""
    async with AsyncExitStack() as stack:
        if api is None:
            opened = open_api(settings.kubernetes, clock, name="springtide-provider")
            api = await stack.enter_async_context(opened)
        session = MetricsServerSession(api)
        polling = asyncio.create_task(session.poll_forever(settings.provider.poll_seconds))
        try:
            yield session
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
