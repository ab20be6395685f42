"""Plugins of the extender with a real kube-scheduler: where pods are bound, which are refused, and
the reason in the Event.

The scheduler scores nothing and places nothing without an answer: every choice is the extender's.
All tests share one control plane and one watcher. Tests with the same arguments share an extender.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.settings import Settings
from pipeline.times import format_time
from tests.cluster import extender_cluster
from tests.cluster.extender_cluster import (
    ALLOCATABLE,
    UNSCORED,
    Cluster,
    add_nodes,
    get,
    scheduler_config,
    state,
)
from tests.cluster.objects import Object, apply, items, node, pod
from tests.cluster.roles import Role, worker
from tests.processes import eventually, until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL: dict[str, Any] = {"cpu": "1m", "memory": "1Mi"}
PROD, BATCH = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("prod", "batch"))
LOWER = {ANNOTATION: json.dumps({"usageThresholds": {"cpu": 45}})}
# Each test has nodes of its own, so that tests do not affect each other.
NODES = [
    *(node(name, **ALLOCATABLE) for name in (
        "at-64", "at-65", "at-66", "cpu-full", "memory-full", "none-full", "as-all", "fresh",
        "stale", "silent", "taken", "free", "of-batch", "of-prod", "prod-quiet", "prod-busy",
        "was-hot", "is-hot", "was-busy", "is-busy", "late", "in-time", "much-cpu", "much-memory",
        "fuller", "emptier", "no-pods", "old-pods", "bursty", "smooth", "hardly-fuller", "roomy",
        "promised", "full", "by-hour",
    )),
    node("own", annotations=LOWER, **ALLOCATABLE),
    node("young-pods", **(ALLOCATABLE | {"cpu": "128"})),
]  # fmt: skip


def plugin(name: str, **args: Any) -> Any:
    """A parameter of `extender`: this plugin alone, with arguments."""
    plugins = {"multiPoint": {"enabled": [{"name": name}]}}
    config = {"plugins": plugins, "pluginConfig": [{"name": name, "args": args}]}
    return pytest.param(config, id=name)


def by(*configured: Any) -> Any:
    return pytest.mark.parametrize("extender", configured, indirect=True)


load_aware = partial(plugin, "LoadAwareScheduling")
DEFAULTS = by(load_aware())
EXPIRES_SECONDS = 30
EXPIRING = by(load_aware(nodeMetricExpirationSeconds=EXPIRES_SECONDS))
BY_PROD = by(load_aware(prodUsageThresholds={"cpu": 55}, scoreAccordingProdUsage=True))
BY_PERCENTILE = by(
    load_aware(
        aggregated={
            "usageThresholds": {"cpu": 65}, "usageAggregationType": "p95",
            "usageAggregatedDuration": "5m", "scoreAggregationType": "p95",
            "scoreAggregatedDuration": "10m",
        }
    )
)  # fmt: skip
LENIENT = by(load_aware(enableScheduleWhenNodeMetricsExpired=True, dominantResourceWeight=1))
PACKING = by(plugin("TargetLoadPacking", targetUtilization=40))
VARIATION = by(plugin("LoadVariationRiskBalancing"))
LIMITS = by(plugin("ResourceLimits"))
HOUR = 3600
ZONE = "Etc/GMT+3"
BEHIND_HOURS = 3


def later_hours() -> Any:
    """LoadAware with a lower threshold of CPU in an hour of a time zone that begins in one to two
    hours: the clock of its extender is set ahead."""
    hour = int(time.time() // HOUR) + 2 - BEHIND_HOURS
    first, last = (f"{each % 24:02}:00" for each in (hour, hour + 1))
    hours = {"from": first, "to": last, "usageThresholds": {"cpu": 50}}
    names = ("LoadAwareScheduling", "TimeSharedThresholds")
    args = {"timeZone": ZONE, "windows": [hours]}
    return {
        "plugins": {"filter": {"enabled": [{"name": name} for name in names]}},
        "pluginConfig": [{"name": names[1], "args": args}],
    }


BY_HOUR = by(pytest.param(later_hours, id="TimeSharedThresholds"))


@pytest.fixture(scope="module")
def asking_plane() -> Iterator[ControlPlane]:
    with local_control_plane(scheduler=scheduler_config(UNSCORED)) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        asyncio.run(add_nodes(plane, *NODES))
        yield plane


@pytest.fixture(scope="module")
def topics(asking_plane: ControlPlane, broker: LocalKafka) -> Iterator[Settings]:
    """Topics for this file, to which a watcher writes."""
    settings = extender_cluster.settings_of(asking_plane, broker)
    asyncio.run(apply_topics(settings.kafka))
    with Role("watcher", settings) as watcher:
        assert eventually(lambda: "in step" in watcher.text(), 120), watcher.text()
        yield settings


@pytest.fixture(scope="module")
def extender(
    request: pytest.FixtureRequest, topics: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An extender with the plugins of the tests' mark, which knows all nodes. Its clock is ahead by
    the seconds in this file, if its configuration depends on the time of the day."""
    folder, config = tmp_path_factory.mktemp("scheduler"), request.param
    is_by_time, clock_file = callable(config), folder / "ahead"
    flags = extender_cluster.config_flags(folder, config() if is_by_time else config)
    names = {item["metadata"]["name"] for item in NODES}
    clock = clock_file if is_by_time else None
    with extender_cluster.extender(topics, *flags, clock_file=clock) as role:
        assert eventually(lambda: "table caught up" in role.text(), 120), role.text()
        assert eventually(lambda: extender_cluster.known_nodes() >= names, 120)
        yield clock_file
        # A graceful end takes three seconds.
        role.kill()


@pytest.fixture(autouse=True)
def _extender(extender: Path) -> None:
    """Every test needs the extender."""


def daemon_set(*names: str) -> Object:
    """A DaemonSet with a pod on each of these nodes."""
    labels = {"app": "each"}
    spec = pod("each", among=names, **SMALL)["spec"]
    del spec["terminationGracePeriodSeconds"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "each"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


@asynccontextmanager
async def others_measured(
    cluster: Cluster, name: str, age_seconds: float = 0.0
) -> AsyncIterator[None]:
    """Usage of all nodes but one: if most lost their usage together, that would be an outage."""
    others = {item["metadata"]["name"] for item in NODES} - {name}
    more: dict[str, Any] = {"age_seconds": age_seconds, "window_seconds": 300}
    await cluster.publish_and_wait(*(state(other, 10.0, **more) for other in others))
    try:
        yield
    finally:
        # They are nodes of other tests.
        await cluster.withdraw(others)


def age_of(name: str) -> float:
    """The age of a node's usage by the extender's clock."""
    nodes = json.loads(get("/v1/nodes"))["items"]
    return float(next((n["age_seconds"] for n in nodes if n["node"] == name), 1e9))


# -- LoadAwareScheduling without arguments


@DEFAULTS
async def test_usage_may_reach_the_threshold_and_daemon_sets_may_exceed_it(
    cluster: Cluster,
) -> None:
    names = ("at-64", "at-65", "at-66")
    await cluster.publish_and_wait(*(state(name, int(name[-2:]) * 0.64) for name in names))
    assert await cluster.node_for(pod("to-64", among=["at-64"], **SMALL)) == "at-64"
    assert await cluster.node_for(pod("to-65", among=["at-65"], **SMALL)) == "at-65"
    reason = await cluster.refusal(pod("to-66", among=["at-66"], **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason
    apply(cluster.plane, daemon_set(*names))
    await until(lambda: sorted(cluster.nodes_of_pods("each").values()) == [*names], 60)


@DEFAULTS
async def test_each_resource_has_its_own_threshold(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("cpu-full", 45.0), state("memory-full", 8.0, memory_gib=247.0),
        state("none-full", 40.0, memory_gib=240.0),
    )  # fmt: skip
    reason = await cluster.refusal(pod("either", among=["cpu-full", "memory-full"], **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason
    assert "1 node(s) memory usage exceed threshold" in reason
    three = ("cpu-full", "memory-full", "none-full")
    assert await cluster.node_for(pod("any", among=three, **SMALL)) == "none-full"


@DEFAULTS
async def test_a_node_may_have_its_own_threshold(cluster: Cluster) -> None:
    await cluster.publish_and_wait(state("own", 32.0), state("as-all", 32.0))
    reason = await cluster.refusal(pod("to-own", among=["own"], **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason
    assert await cluster.node_for(pod("to-as-all", among=["as-all"], **SMALL)) == "as-all"


@DEFAULTS
async def test_a_node_with_stale_usage_is_refused(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("fresh", 20.0, age_seconds=60), state("stale", 1.0, age_seconds=190)
    )
    reason = await cluster.refusal(pod("to-stale", among=["stale"], **SMALL))
    assert "1 node(s) nodeMetric expired" in reason
    assert await cluster.node_for(pod("to-either", among=("fresh", "stale"), **SMALL)) == "fresh"


@DEFAULTS
async def test_batch_pods_in_flight_count(cluster: Cluster) -> None:
    """They request no resource that a scheduler counts as CPU."""
    await cluster.wait_for_pods(0)
    await cluster.publish_and_wait(state("taken", 30.0), state("free", 32.0))
    requests: dict[str, Any] = {"kubernetes.io/batch-cpu": "4000"}
    requests["kubernetes.io/batch-memory"] = "1Gi"
    apply(cluster.plane, pod("batch", on="taken", labels=BATCH, **requests))
    await cluster.wait_for_pods(1)
    # Of 4 cores 3.4 are expected to be used.
    assert await cluster.node_for(pod("one", among=["taken", "free"], **SMALL)) == "free"
    more = requests | {"kubernetes.io/batch-cpu": "12000"}
    apply(cluster.plane, pod("more-batch", on="taken", labels=BATCH, **more))
    await cluster.wait_for_pods(3)
    reason = await cluster.refusal(pod("another", among=["taken"], labels=PROD, **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason


# -- LoadAwareScheduling with arguments


@BY_HOUR
async def test_thresholds_of_another_hour_apply_from_their_time_on(
    cluster: Cluster, extender: Path
) -> None:
    await cluster.publish_and_wait(state("by-hour", 38.4))
    assert await cluster.node_for(pod("before", among=["by-hour"], **SMALL)) == "by-hour"
    ahead = 2.5 * HOUR - time.time() % HOUR
    async with others_measured(cluster, "by-hour", age_seconds=-ahead):
        await cluster.publish_and_wait(state("by-hour", 38.4, age_seconds=-ahead))
        await asyncio.to_thread(extender.write_text, str(ahead))
        await until(lambda: age_of("by-hour") > -60)
        reason = await cluster.refusal(pod("after", among=["by-hour"], **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason


@EXPIRING
async def test_a_node_gets_no_pod_while_its_exporter_does_not_run(
    cluster: Cluster, topics: Settings
) -> None:
    flags = ("--node-name", "silent", "--window-seconds", "1", "--metrics-port", "0")
    exporter = partial(Role, "exporter", topics, *flags)

    def bound(name: str) -> bool:
        # The scheduler retries when a Node changes.
        cluster.plane.kubectl("annotate", "node", "silent", f"now={time.time()}", "--overwrite")
        return cluster.nodes_of_pods(name)[name] == "silent"

    with worker(topics):
        with exporter() as running:
            await until(lambda: age_of("silent") < EXPIRES_SECONDS / 2, 120)
            apply(cluster.plane, pod("while-running", among=["silent"], **SMALL))
            await until(lambda: bound("while-running"), 120)
            running.kill()
        await until(lambda: age_of("silent") > EXPIRES_SECONDS, 120)
        async with others_measured(cluster, "silent"):
            reason = await cluster.refusal(pod("waits", among=["silent"], **SMALL))
            assert "1 node(s) nodeMetric expired" in reason
            with exporter():
                await until(lambda: bound("waits"), 120)


@BY_PROD
async def test_prod_is_refused_by_usage_of_prod_and_others_by_all_usage(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("of-batch", 60.0, classes={"prod": 5.0, "batch": 55.0}),
        state("of-prod", 40.0, classes={"prod": 39.0, "batch": 1.0}),
    )
    reason = await cluster.refusal(pod("p-refused", among=["of-prod"], labels=PROD, **SMALL))
    assert "1 node(s) cpu prod usage exceed threshold" in reason
    reason = await cluster.refusal(pod("b-refused", among=["of-batch"], labels=BATCH))
    assert "1 node(s) cpu usage exceed threshold" in reason
    both = ("of-batch", "of-prod")
    assert await cluster.node_for(pod("prod", among=both, labels=PROD, **SMALL)) == "of-batch"
    assert await cluster.node_for(pod("batch", among=both, labels=BATCH)) == "of-prod"


@BY_PROD
async def test_the_best_node_for_prod_has_the_least_usage_of_prod(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("prod-quiet", 36.0, classes={"prod": 5.0, "batch": 31.0}),
        state("prod-busy", 20.0, classes={"prod": 18.0, "batch": 2.0}),
    )
    both = ("prod-quiet", "prod-busy")
    assert await cluster.node_for(pod("prod", among=both, labels=PROD, **SMALL)) == "prod-quiet"
    assert await cluster.node_for(pod("batch", among=both, labels=BATCH)) == "prod-busy"


@BY_PERCENTILE
async def test_a_node_is_refused_by_the_percentile_of_its_usage(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("was-hot", 10.0, p95={"5m": 50.0}), state("is-hot", 60.0, p95={"5m": 20.0})
    )
    reason = await cluster.refusal(pod("to-was-hot", among=["was-hot"], **SMALL))
    assert "1 node(s) cpu aggregated usage exceed threshold" in reason
    assert await cluster.node_for(pod("to-is-hot", among=["is-hot"], **SMALL)) == "is-hot"


@BY_PERCENTILE
async def test_the_best_node_has_the_lowest_percentile(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("was-busy", 5.0, p95={"5m": 10.0, "10m": 30.0}),
        state("is-busy", 30.0, p95={"5m": 20.0, "10m": 10.0}),
    )
    both = ("was-busy", "is-busy")
    assert await cluster.node_for(pod("either", among=both, **SMALL)) == "is-busy"


@LENIENT
async def test_a_node_with_stale_usage_may_take_pods_where_arguments_allow_it(
    cluster: Cluster,
) -> None:
    await cluster.publish_and_wait(state("late", 60.0, age_seconds=190), state("in-time", 60.0))
    assert await cluster.node_for(pod("to-late", among=["late"], **SMALL)) == "late"
    reason = await cluster.refusal(pod("to-in-time", among=["in-time"], **SMALL))
    assert "1 node(s) cpu usage exceed threshold" in reason


@LENIENT
async def test_a_pod_gets_the_node_with_most_of_its_dominant_resource(cluster: Cluster) -> None:
    """By the mean of both resources `much-cpu` would get either pod."""
    await cluster.publish_and_wait(
        state("much-cpu", 25.0, memory_gib=13.0), state("much-memory", 3.2, memory_gib=128.0)
    )
    both = ("much-cpu", "much-memory")
    of_cpu = pod("of-cpu", among=both, cpu="12", memory="1Mi")
    assert await cluster.node_for(of_cpu) == "much-memory"
    of_memory = pod("of-memory", among=both, cpu="100m", memory="60Gi")
    assert await cluster.node_for(of_memory) == "much-cpu"


# -- other plugins


def phases(cluster: Cluster) -> set[str]:
    return {item["status"]["phase"] for item in items(cluster.plane, "pods")}


@PACKING
async def test_nodes_are_packed_up_to_the_target_with_unmeasured_pods(cluster: Cluster) -> None:
    """No window follows: by the last window alone `fuller` would be the best for all."""
    await cluster.wait_for_pods(0)
    await cluster.publish_and_wait(
        state("fuller", 19.2, mean=19.2), state("emptier", 6.4, mean=6.4)
    )
    nodes = []
    for number in range(5):
        wanted = pod(f"packed-{number}", among=["fuller", "emptier"], cpu="2")
        nodes.append(await cluster.node_for(wanted))
        await cluster.wait_for_pods(number + 1)
    # 30 percent, and 3.125 for each pod: the fourth would exceed 40.
    assert nodes == ["fuller"] * 3 + ["emptier"] * 2


@PACKING
async def test_a_node_without_usage_is_judged_by_its_pods(cluster: Cluster) -> None:
    """Without pods it uses nothing, with young pods their expected usage. With old pods its usage
    is unknown, and it is the last choice."""
    await cluster.wait_for_pods(0)
    young, old = pod("young", on="young-pods", cpu="16"), pod("old", on="old-pods", cpu="16")
    apply(cluster.plane, young, old)
    await until(lambda: "Pending" not in phases(cluster), 60)
    since = {"type": "PodScheduled", "status": "True"}
    since["lastTransitionTime"] = format_time(int(time.time()) - 600)
    conditions = json.dumps({"status": {"conditions": [since]}})
    patched = ("--subresource=status", "--type=strategic", "-p", conditions)
    cluster.plane.kubectl("patch", "pod", "old", *patched)
    # Records of one node are read in order: an extender that knows this pod knows that age.
    apply(cluster.plane, pod("then", on="old-pods", **SMALL))
    await cluster.wait_for_pods(3)
    small = partial(pod, cpu="2")
    chosen = await cluster.node_for(small("a", among=["old-pods", "no-pods"]))
    assert chosen == "no-pods", json.dumps(items(cluster.plane, "pods"))
    assert await cluster.node_for(small("b", among=["old-pods", "young-pods"])) == "young-pods"
    # Packed: 18 of 128 cores are more than 4 of 64, which are more than 2 of 128.
    await cluster.wait_for_pods(5)
    assert await cluster.node_for(small("c", among=["no-pods", "young-pods"])) == "young-pods"


@PACKING
async def test_the_extender_answers_as_a_load_watcher(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("fuller", 19.2, mean=19.2), state("emptier", 6.4, mean=6.4)
    )
    whole = json.loads(get("/watcher"))["data"]["NodeMetricsMap"]
    assert whole.keys() >= {"fuller", "emptier"}
    one = json.loads(get("/watcher/fuller"))["data"]["NodeMetricsMap"]
    assert one == {"fuller": whole["fuller"]}
    average = next(m for m in whole["fuller"]["metrics"] if m["operator"] == "AVG")
    assert (average["type"], average["rollup"], average["value"]) == ("CPU", "15m", 30.0)
    with pytest.raises(HTTPError) as error:
        get("/watcher/nobody")
    assert error.value.code == 404
    assert error.value.read() == b"No metrics found for host nobody"


@VARIATION
async def test_a_node_with_steady_usage_is_better_than_a_bursty_one(cluster: Cluster) -> None:
    await cluster.publish_and_wait(
        state("bursty", 20.0, mean=20.0, deviation=12.0),
        state("smooth", 20.0, mean=20.0, deviation=1.0),
        state("hardly-fuller", 24.0, mean=24.0, deviation=1.0),
    )
    for other in ("smooth", "hardly-fuller"):
        wanted = pod(f"not-on-bursty-{other}", among=["bursty", other], **SMALL)
        assert await cluster.node_for(wanted) == other


@LIMITS
async def test_limits_of_guaranteed_pods_count_like_those_of_others(cluster: Cluster) -> None:
    await cluster.wait_for_pods(0)
    burstable = pod("burstable", on="promised", cpu="30")
    burstable["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    guaranteed = {"full": "40", "roomy": "20"}
    apply(cluster.plane, burstable, *(
        pod(f"guaranteed-{name}", on=name, cpu=cpu, memory="1Gi")
        for name, cpu in guaranteed.items()
    ))  # fmt: skip
    await cluster.wait_for_pods(3)
    # By requests the burstable pod would be the smallest of the three.
    for among, expected in (
        (("roomy", "promised", "full"), "roomy"),
        (("promised", "full"), "promised"),
    ):
        wanted = pod(f"to-{expected}", among=among, cpu="1", memory="1Gi")
        assert await cluster.node_for(wanted) == expected
