"""A real Prometheus that scrapes simulated machines."""

import time
from collections.abc import Iterator

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.imported_usage.fetched_usage import TimeWindow, window_before
from pipeline.settings import ProviderSettings, Settings
from tests.broker import own_topics
from tests.processes import eventually
from tests.provider.local_prometheus import LocalPrometheus, local_prometheus
from tests.provider.machines import Container, machines

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
HASH = "a1b2c3d4e5f60718293a4b5c6d7e8f90"
_SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice"

PODS = {
    # Two containers of one pod with cgroup names of systemd, and a static pod with its hash.
    "n1": [
        Container("web", "shop-0", _SLICE.format(UID.replace("-", "_"))),
        Container("web", "shop-0", _SLICE.format(UID.replace("-", "_")), "sidecar", cores=0.5),
        Container("kube-system", "etcd-n1", f"/kubepods/burstable/pod{HASH}"),
    ],
    # Pods without a cgroup path.
    "n2": [Container("web", "shop-1", ""), Container("web", "stranger", "")],
}
WINDOW_SECONDS = 6
DELAY_SECONDS = 5
TOLERANCE = 0.25
"""Of a rate: where a busy machine missed a reading, Prometheus extrapolates by less."""
# The recording rules of load-watcher, from the node mixin.
RULES = {
    "instance:node_cpu:ratio": 'sum by (instance) (rate(node_cpu_seconds_total{mode!~"idle|iowait|'
    'steal"}[6s])) / count by (instance) (node_cpu_seconds_total{mode="idle"})',
    "instance:node_memory_utilisation:ratio": "1 - node_memory_MemAvailable_bytes / "
    "node_memory_MemTotal_bytes",
}


def last_window() -> TimeWindow:
    """The last window that ended so long ago that its last readings were stored."""
    return window_before(round((time.time() - DELAY_SECONDS) * 1000), WINDOW_SECONDS * 1000)


@pytest.fixture(scope="session")
def prometheus() -> Iterator[LocalPrometheus]:
    """A Prometheus with more than one complete window of the machines."""
    with (
        machines(PODS) as pages,
        local_prometheus(pages.jobs("ghost", "10.0.0.7"), rules=RULES) as running,
    ):
        assert eventually(lambda: len(running.query("up == 1")) == 6)
        time.sleep(2 * WINDOW_SECONDS + DELAY_SECONDS + 6)
        yield running


@pytest.fixture
def provider(prometheus: LocalPrometheus) -> ProviderSettings:
    return ProviderSettings(
        kind="prometheus", url=prometheus.url, window_seconds=WINDOW_SECONDS,
        delay_seconds=DELAY_SECONDS, step_seconds=2, rate_seconds=6, lease=False,
        host="127.0.0.1", port=0,
    )  # fmt: skip


@pytest.fixture
async def settings(broker: LocalKafka, provider: ProviderSettings) -> Settings:
    """Settings with topics for a single test."""
    kafka = own_topics(broker, 3)
    await apply_topics(kafka)
    return Settings(kafka=kafka, provider=provider)
