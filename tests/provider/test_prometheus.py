"""Queries to a real Prometheus return the usage of the simulated machines."""

import pytest
from msgspec.structs import replace

from pipeline.clock import SystemClock
from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.provider.prometheus_source import open_prometheus
from tests.provider import machines
from tests.provider.conftest import HASH, TOLERANCE, UID, last_window
from tests.provider.local_prometheus import LocalPrometheus
from tests.provider.machines import MIB

# Prometheus may have to be built first.
pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


async def fetch(provider: ProviderSettings) -> FetchedUsage:
    async with open_prometheus(Settings(provider=provider), SystemClock(), None) as prometheus:
        return await prometheus.fetch(last_window())


async def test_default_queries_return_the_usage(provider: ProviderSettings) -> None:
    usage = await fetch(provider)
    assert (usage.failed, set(usage.nodes)) == ({}, {"n1", "n2", "ghost", "10.0.0.7"})
    node = usage.nodes["n1"]
    for statistic in ("avg", "p90", "p95", "max", "last"):
        assert node[f"cpu_cores_{statistic}"] == pytest.approx(machines.BUSY_CORES, rel=TOLERANCE)
        used = machines.TOTAL_BYTES - machines.AVAILABLE_BYTES
        assert node[f"memory_bytes_{statistic}"] == used
    with_cache = machines.TOTAL_BYTES - machines.FREE_BYTES
    assert node["memory_with_page_cache_bytes_avg"] == with_cache
    assert node["capacity_cpu_cores"] == machines.CPUS
    assert (node["capacity_memory_bytes"], node["coverage"]) == (machines.TOTAL_BYTES, 1)
    assert node["points_offset_seconds"] == [2, 4, 6]


async def test_usage_of_pod_is_the_sum_of_its_containers(provider: ProviderSettings) -> None:
    usage = await fetch(provider)
    assert usage.pods.keys() == {
        PodName("web", "shop-0", UID, "n1"), PodName("kube-system", "etcd-n1", HASH, "n1"),
        PodName("web", "shop-1", "", "n2"), PodName("web", "stranger", "", "n2"),
    }  # fmt: skip
    pod = usage.pods[PodName("web", "shop-0", UID, "n1")]
    assert pod["cpu_cores_avg"] == pytest.approx(0.75, rel=TOLERANCE)
    assert pod["memory_bytes_max"] == 200 * MIB
    assert pod["memory_with_hot_page_cache_bytes_avg"] == 300 * MIB


async def test_recording_rules_of_load_watcher_work(provider: ProviderSettings) -> None:
    """The queries of docs/reference/provider.md: shares of a node, times its capacity."""
    queries = {
        "node.cpu_cores": "instance:node_cpu:ratio * "
        'on ($node) count by ($node) (node_cpu_seconds_total{mode="idle"})',
        "node.memory_bytes": "instance:node_memory_utilisation:ratio * "
        "on ($node) max by ($node) (node_memory_MemTotal_bytes)",
    }
    node = (await fetch(replace(provider, queries=queries))).nodes["n1"]
    assert node["cpu_cores_avg"] == pytest.approx(machines.BUSY_CORES, rel=TOLERANCE)
    used = machines.TOTAL_BYTES - machines.AVAILABLE_BYTES
    assert node["memory_bytes_avg"] == pytest.approx(used)


async def test_refused_query_omits_its_column(provider: ProviderSettings) -> None:
    queries = {"node.memory_bytes": "sum by (", "pod.memory_bytes": "nothing_of_this_name"}
    usage = await fetch(replace(provider, queries=queries))
    assert usage.failed.keys() == {"node.memory_bytes"}
    assert "parse error" in usage.failed["node.memory_bytes"]
    assert "memory_bytes_avg" not in usage.nodes["n1"]
    assert usage.nodes["n1"]["cpu_cores_avg"] > 1
    assert all("memory_bytes_avg" not in columns for columns in usage.pods.values())


async def test_invalid_values_are_null(provider: ProviderSettings) -> None:
    queries = {
        "node.cpu_cores": "node_memory_MemTotal_bytes / 0",
        "node.memory_bytes": "-node_memory_MemTotal_bytes",
        "node.capacity_memory_bytes": "node_memory_MemTotal_bytes * NaN",
    }
    usage = await fetch(replace(provider, queries=queries))
    assert usage.bad_values == dict.fromkeys(queries, 4 * 3)
    assert usage.nodes["n1"].keys().isdisjoint({"cpu_cores_avg", "capacity_memory_bytes"})


async def test_unreachable_prometheus_is_an_error(
    provider: ProviderSettings, prometheus: LocalPrometheus
) -> None:
    with pytest.raises(SampleSourceError):
        await fetch(replace(provider, url="http://127.0.0.1:1"))
    assert prometheus.query("up")
