"""The mean cpu of a report by counters of a real Prometheus, some of which begin again or end."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pytest

from pipeline.clock import SystemClock
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.processors.report.prometheus_history import cluster_usage
from pipeline.sources import prometheus_history
from pipeline.sources.prometheus_access import PrometheusAccess
from pipeline.sources.prometheus_history import open_history
from pipeline.sources.prometheus_requests import Answer, get
from tests.provider.local_prometheus import local_prometheus

pytestmark = pytest.mark.xdist_group("prometheus")

END_SECONDS = 1_700_006_400
HOURS = 48
MINUTES = HOURS * 60
MIDDLE = MINUTES // 2 + 30


class Counter(NamedTuple):
    """A counter of a container that uses `cores` over some minutes, from `seconds` on, and begins
    again from 0 at `reset`. It is scraped while it is `seen`."""

    pod: str
    id: str
    first: int = 0
    end: int = MINUTES
    cores: float = 0.5
    reset: int | None = None
    cores_after: float = 0.5
    seconds: float = 0.0
    node: str = "a"
    seen: range = range(MINUTES + 1)


COUNTERS = (
    *(Counter(f"steady-{number}", "/a") for number in range(10)),
    # More than before: the difference of both ends is positive.
    Counter("without-id", "", reset=MIDDLE, cores_after=2.0),
    Counter("with-one-id", "/a", reset=MIDDLE, cores_after=0.25, seconds=1e6),
    Counter("restarted", "/a", end=MIDDLE),
    Counter("restarted", "/b", first=MIDDLE + 1, cores=1.0),
    Counter("new", "/a", first=MIDDLE, cores=1.0),
    Counter("ended", "/a", end=MIDDLE, cores=1.0),
    Counter("seen-between", "/a", cores=0.75, seen=range(600, MINUTES - 30)),
    # On the first day on node a between both ends only.
    Counter("returned", "/a", end=6 * 60, node="b"),
    Counter("returned", "/b", first=6 * 60, end=18 * 60, cores=1.0),
    Counter("returned", "/c", first=18 * 60, end=30 * 60, node="b"),
    Counter("returned", "/d", first=30 * 60, cores=0.25),
)
MEANS = {
    **{f"steady-{number}": 0.5 for number in range(10)},
    "without-id": (0.5 * MIDDLE + 2.0 * (MINUTES - MIDDLE)) / MINUTES,
    "with-one-id": (0.5 * MIDDLE + 0.25 * (MINUTES - MIDDLE)) / MINUTES,
    "restarted": (0.5 * MIDDLE + 1.0 * (MINUTES - MIDDLE)) / MINUTES,
    # In its first hour it runs for half an hour.
    "new": (23 + 0.5) / 24,
    # In its last hour it is seen for half an hour.
    "seen-between": 0.75 * (37 + 0.5) / 38,
    "returned": (12 * 1.0 + 18 * 0.25) / 30,
}
"""Cores, of the pods that run at the end."""


def _lines(every_minutes: int) -> Iterator[str]:
    begin = END_SECONDS - HOURS * 3600
    yield "# TYPE container_cpu_usage_seconds counter"
    for counter in COUNTERS:
        labels = f'namespace="shop",pod="{counter.pod}",node="{counter.node}",container="app"'
        labels += f',id="{counter.id}"' if counter.id else ""
        value = counter.seconds
        for minute in range(counter.first, counter.end + 1):
            if minute > counter.first:
                is_later = counter.reset is not None and minute > counter.reset
                value += 60 * (counter.cores_after if is_later else counter.cores)
            if minute == counter.reset:
                value = 0.0
            if (minute - 4) % every_minutes or minute not in counter.seen:
                continue
            seconds = begin + minute * 60
            yield f"container_cpu_usage_seconds_total{{{labels}}} {value} {seconds}"
    hours = range(begin, END_SECONDS + 1, 3600)
    ends = {(own.pod, own.node): begin + own.end * 60 for own in COUNTERS}
    pods = [{"namespace": "shop", "pod": pod, "node": node} for pod, node in ends]
    stated = {
        "kube_node_status_allocatable": [{"node": node, "resource": "cpu"} for node in "ab"],
        "kube_pod_info": pods,
        "kube_pod_status_phase": [{**pod, "phase": "Running"} for pod in pods],
        "kube_pod_container_resource_requests": [{**pod, "resource": "cpu"} for pod in pods],
    }
    for metric, series in stated.items():
        yield f"# TYPE {metric} gauge"
        for own in series:
            text = ",".join(f'{key}="{value}"' for key, value in own.items())
            end = ends.get((own.get("pod", ""), own["node"]), END_SECONDS)
            yield from (f"{metric}{{{text}}} 1.0 {at}" for at in hours if at <= end)
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


async def test_means_of_days_add_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_history, "MOST_QUERY_HOURS", 24)
    # The first hour of a pod counts as much as each later one.
    assert _means(await _usage(url)) == pytest.approx(MEANS, rel=0.05)


async def test_means_of_rare_scrapes_are_nearly_the_same(rarely: str) -> None:
    assert _means(await _usage(rarely)) == pytest.approx(MEANS, rel=2e-2)


Request = Callable[[dict[str, str]], Awaitable[Answer | None]]


def _intercept(monkeypatch: pytest.MonkeyPatch, request: Request) -> None:
    """Call `request` with the parameters of each request, which it may answer in place of the
    server."""

    async def intercepted(session: Any, url: str, params: dict[str, str], *rest: Any) -> Answer:
        return await request(params) or await get(session, url, params, *rest)

    monkeypatch.setattr(prometheus_history, "get", intercepted)


@pytest.fixture
def selections(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of pods by which each query of means selects samples, once for each selector."""
    selections: list[list[str]] = []

    async def record(params: dict[str, str]) -> None:
        query = params.get("query", "")
        if "rate" in query and "m:1h]" in query:
            selections.append(re.findall('pod=~"([^"]*)"', query))

    _intercept(monkeypatch, record)
    return selections


async def test_samples_are_read_of_pods_that_are_not_steady(
    url: str, selections: list[list[str]]
) -> None:
    await _usage(url)
    assert selections == [["new|restarted|returned|seen-between|with-one-id|without-id"] * 3]


async def test_all_names_of_a_query_fit_into_a_url(
    url: str, selections: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_history, "MOST_MATCHER_CHARACTERS", 90)
    assert _means(await _usage(url)) == pytest.approx(MEANS, rel=2e-3)
    lengths = [sum(len(quote(names)) for names in own) for own in selections]
    assert len(lengths) > 1
    assert max(lengths) <= 90


async def test_a_refused_query_cancels_the_others_of_its_part(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[str] = []

    async def refuse_one(params: dict[str, str]) -> Answer | None:
        query = params.get("query", "")
        if f"[{MINUTES - 1}m:1h]" not in query or "pod=~" not in query:
            return None
        if outcomes:
            outcomes.append("waits")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                outcomes[outcomes.index("waits")] = "cancelled"
                raise
        outcomes.append("refused")
        await asyncio.sleep(0.1)
        return Answer(422, b'{"status":"error","error":"too many samples"}', "")

    _intercept(monkeypatch, refuse_one)
    monkeypatch.setattr(prometheus_history, "MOST_MATCHER_CHARACTERS", 90)
    assert _means(await _usage(url)) == pytest.approx(MEANS, rel=0.05)
    assert set(outcomes) == {"refused", "cancelled"}


async def test_all_samples_are_read_if_most_pods_changed(url: str) -> None:
    """The history begins before the first sample."""
    longer, usage = await _usage(url, HOURS + 1), await _usage(url)
    assert longer.pods == usage.pods
    runs = usage.runs
    np.testing.assert_allclose(longer.mean[runs], usage.mean[runs], rtol=1e-3)


async def test_a_mean_of_running_pods_may_be_unknown() -> None:
    """Only a pod that ended has cpu."""
    only_ended = [
        line for line in _lines(1) if "container_cpu" not in line or 'pod="ended"' in line
    ]
    with local_prometheus([], recorded=only_ended) as prometheus:
        usage = await _usage(prometheus.url)
    assert np.isnan(usage.mean[usage.runs, 0]).all()
    assert usage.runs.sum() == len(MEANS)
