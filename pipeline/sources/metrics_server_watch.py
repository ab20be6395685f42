"""Watch the usage that metrics-server reports, then list Nodes and Pods, for a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from pipeline.clock import Clock
from pipeline.errors import ForbiddenError, InvalidRecordError, UnauthenticatedError
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.list_watch import list_pages
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.processors.kubernetes.object_records import read_node, read_pod
from pipeline.processors.report.watched_usage import WatchedCluster
from pipeline.settings import KubernetesSettings
from pipeline.sources.limits import OLDEST_READING_SECONDS, READING_SECONDS
from pipeline.sources.provider.metrics_server_source import MetricsServerSession

_KINDS: Final = ("nodes", "pods")
_T = TypeVar("_T")


async def watch_cluster(
    settings: KubernetesSettings, clock: Clock, seconds: int, report: Callable[[float], None]
) -> WatchedCluster:
    """Poll metrics-server for so many seconds; `report` gets the share that is done.

    Raises `SampleSourceError` if it never answers, `KubernetesError` without an API server, or if
    that refuses the lists of nodes and pods.
    """
    async with open_api(settings, clock, name="springtide-report") as api:
        await _check_rights(api)
        session = MetricsServerSession(api)
        began = clock.monotonic()
        await session.poll()
        while True:
            elapsed = clock.monotonic() - began
            # Readings are stamped in the cluster, whose clock may not be ours.
            now = api.server_now() or clock.now()
            window = TimeWindow(
                start_ms=round(1000 * (now - elapsed - OLDEST_READING_SECONDS)),
                end_ms=round(1000 * (now + OLDEST_READING_SECONDS)),
            )
            usage = await session.fetch(window)
            report(elapsed / seconds)
            if elapsed >= seconds:
                break
            await clock.sleep(min(READING_SECONDS, seconds - elapsed))
        refused: Counter[str] = Counter()
        nodes = await _records(api, "nodes", read_node, refused)
        pods = await _records(api, "pods", read_pod, refused)
    return WatchedCluster(round(now), seconds, usage, nodes, pods, refused)


async def _check_rights(api: Api) -> None:
    """Raise the error of a refused list before the watch, and not after it."""
    for kind in _KINDS:
        try:
            await api.request("GET", f"/api/v1/{kind}", params={"limit": "1"})
        except UnauthenticatedError:
            raise
        except ForbiddenError as error:
            error.hint = f"the user of the kubeconfig needs the right to list {kind}"
            raise


async def _records(
    api: Api, kind: str, read: Callable[[msgspec.Raw], _T], refused: Counter[str]
) -> list[_T]:
    """The objects of a kind; those that cannot be read are counted in `refused`."""
    records = []
    async for page in list_pages(api, f"/api/v1/{kind}"):
        for each in page:
            try:
                records.append(read(each))
            except InvalidRecordError:
                refused[f"{kind} that cannot be read"] += 1
    return records
