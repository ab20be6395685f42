"""The mean cpu of a report by counters of a real Prometheus, some of which begin again or end."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.clock import SystemClock
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.processors.report.prometheus_history import cluster_usage
from pipeline.sources import prometheus_history
from pipeline.sources.prometheus_access import PrometheusAccess
from pipeline.sources.prometheus_history import open_history
from pipeline.sources.prometheus_requests import get
from tests.provider.local_prometheus import local_prometheus

pytestmark = pytest.mark.xdist_group("prometheus")

END_SECONDS = 1_700_006_400
HOURS = 48
MINUTES = HOURS * 60
MIDDLE = MINUTES // 2 + 30


class Counter(NamedTuple):
    """A counter of a container that uses `cores` over some minutes, from `seconds` on, and begins
    again from 0 at `reset`."""

    pod: str
    id: str
    first: int = 0
    end: int = MINUTES
    cores: float = 0.5
    reset: int | None = None
    cores_after: float = 0.5
    seconds: float = 0.0


COUNTERS = (
    *(Counter(f"steady-{number}", "/a") for number in range(5)),
    # More than before: the difference of both ends is positive.
    Counter("without-id", "", reset=MIDDLE, cores_after=2.0),
    Counter("with-one-id", "/a", reset=MIDDLE, cores_after=0.25, seconds=1e6),
    Counter("restarted", "/a", end=MIDDLE),
    Counter("restarted", "/b", first=MIDDLE + 1, cores=1.0),
    Counter("new", "/a", first=MIDDLE, cores=1.0),
    Counter("ended", "/a", end=MIDDLE, cores=1.0),
)
MEANS = {
    **{f"steady-{number}": 0.5 for number in range(5)},
    "without-id": (0.5 * MIDDLE + 2.0 * (MINUTES - MIDDLE)) / MINUTES,
    "with-one-id": (0.5 * MIDDLE + 0.25 * (MINUTES - MIDDLE)) / MINUTES,
    "restarted": (0.5 * MIDDLE + 1.0 * (MINUTES - MIDDLE)) / MINUTES,
    # In its first hour it runs for half an hour.
    "new": (23 + 0.5) / 24,
}
"""Cores, of the pods that run at the end."""


def _lines(every_minutes: int) -> Iterator[str]:
    begin = END_SECONDS - HOURS * 3600
    pods = sorted({counter.pod for counter in COUNTERS})
    yield "# TYPE container_cpu_usage_seconds counter"
    for counter in COUNTERS:
        labels = f'namespace="shop",pod="{counter.pod}",container="app",node="a"'
        labels += f',id="{counter.id}"' if counter.id else ""
        value = counter.seconds
        for minute in range(counter.first, counter.end + 1):
            if minute > counter.first:
                is_later = counter.reset is not None and minute > counter.reset
                value += 60 * (counter.cores_after if is_later else counter.cores)
            if minute == counter.reset:
                value = 0.0
            if (minute - 4) % every_minutes:
                continue
            seconds = begin + minute * 60
            yield f"container_cpu_usage_seconds_total{{{labels}}} {value} {seconds}"
    hours = range(begin, END_SECONDS + 1, 3600)
    ends = {counter.pod: begin + counter.end * 60 for counter in COUNTERS}
    stated = {
        "kube_node_status_allocatable": [({"node": "a", "resource": "cpu"}, 36.0)],
        "kube_pod_info": [({"namespace": "shop", "pod": pod, "node": "a"}, 1.0) for pod in pods],
        "kube_pod_status_phase": [
            ({"namespace": "shop", "pod": pod, "phase": "Running"}, 1.0) for pod in pods
        ],
        "kube_pod_container_resource_requests": [
            ({"namespace": "shop", "pod": pod, "node": "a", "resource": "cpu"}, 1.0) for pod in pods
        ],
    }  # fmt: skip
    for metric, series in stated.items():
        yield f"# TYPE {metric} gauge"
        for own, amount in series:
            text = ",".join(f'{key}="{value}"' for key, value in own.items())
            end = ends.get(str(own.get("pod")), END_SECONDS)
            yield from (f"{metric}{{{text}}} {amount} {at}" for at in hours if at <= end)
    yield "# EOF"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_prometheus([], recorded=_lines(1)) as prometheus:
        yield prometheus.url


@pytest.fixture(scope="module")
def rarely() -> Iterator[str]:
    """A Prometheus that scrapes every 15 minutes, the last time eleven minutes before the end of an
    hour: an instant vector at its end is empty."""
    with local_prometheus([], recorded=_lines(15)) as prometheus:
        yield prometheus.url


async def _usage(url: str, hours: int = HOURS) -> ClusterUsage:
    async with open_history(PrometheusAccess(url), SystemClock(), print) as session:
        history = await session.read(END_SECONDS, hours, (), lambda _: None)
    return cluster_usage(history)


def _means(usage: ClusterUsage) -> dict[str, float]:
    return {
        pod.removeprefix("shop/"): cores / 1000
        for pod, cores, runs in zip(usage.pods, usage.mean[:, 0].tolist(), usage.runs, strict=True)
        if runs
    }


async def test_means_are_those_of_all_hours(url: str) -> None:
    assert _means(await _usage(url)) == pytest.approx(MEANS, rel=2e-3)


async def test_means_of_rare_scrapes_are_nearly_the_same(rarely: str) -> None:
    assert _means(await _usage(rarely)) == pytest.approx(MEANS, rel=2e-2)


async def test_samples_are_read_of_the_pods_that_changed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[str] = []

    async def recorded(session: Any, address: str, params: dict[str, str], *rest: Any) -> Any:
        queries.append(params.get("query", ""))
        return await get(session, address, params, *rest)

    monkeypatch.setattr(prometheus_history, "get", recorded)
    await _usage(url)
    (read,) = (query for query in queries if "rate" in query and "m:1h]" in query)
    assert 'pod=~"new|restarted|with-one-id|without-id"' in read


async def test_all_samples_are_read_if_most_pods_changed(url: str) -> None:
    """The history begins before the first sample."""
    longer, usage = await _usage(url, HOURS + 1), await _usage(url)
    assert longer.pods == usage.pods
    runs = usage.runs
    np.testing.assert_allclose(longer.mean[runs], usage.mean[runs], rtol=1e-3)
