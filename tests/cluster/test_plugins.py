"""What the extender's plugins and their arguments come to where a real kube-scheduler asks it: who
is bound where, which pod is refused, and the reason in the Event.

The scheduler scores nothing by itself and places nothing without an answer: so every choice is the
extender's. One control plane and one watcher serve all tests, and each extender those that stand
together.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.error import HTTPError

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.settings import Settings
from pipeline.times import format_time
from tests.cluster import asking as asked
from tests.cluster.asking import ROOM, UNSCORED, Cluster, configured, join, state
from tests.cluster.objects import Object, apply, items, node, pod
from tests.cluster.watching import Role, worker
from tests.processes import eventually, until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL: dict[str, Any] = {"cpu": "1m", "memory": "1Mi"}
PROD, BATCH = ({"koordinator.sh/priority-class": f"koord-{of}"} for of in ("prod", "batch"))
LOWER = {ANNOTATION: json.dumps({"usageThresholds": {"cpu": 45}})}
# Each node is of one test, so that nothing that is known of it is of another.
NODES = [
    *(node(name, **ROOM) for name in (
        "at-64", "at-65", "at-66", "cpu-full", "memory-full", "none-full", "as-all", "heard",
        "unheard", "silent", "taken", "free", "of-batch", "of-prod", "prod-quiet", "prod-busy",
        "was-hot", "is-hot", "was-busy", "is-busy", "late", "in-time", "much-cpu", "much-memory",
        "fuller", "emptier", "no-pods", "old-pods", "bursty", "smooth", "hardly-fuller", "roomy",
        "promised", "full",
    )),
    node("own", annotations=LOWER, **ROOM),
    node("young-pods", **(ROOM | {"cpu": "128"})),
]  # fmt: skip


def plugin(name: str, **args: Any) -> Any:
    """For tests of an extender with this plugin alone, and these arguments."""
    plugins = {"multiPoint": {"enabled": [{"name": name}]}}
    config = {"plugins": plugins, "pluginConfig": [{"name": name, "args": args}]}
    return pytest.param(config, id=name)


def by(*configured: Any) -> Any:
    return pytest.mark.parametrize("extender", configured, indirect=True)


load_aware = partial(plugin, "LoadAwareScheduling")
DEFAULTS = by(load_aware())
EXPIRING = by(load_aware(nodeMetricExpirationSeconds=10))
BY_PROD = by(load_aware(prodUsageThresholds={"cpu": 55}, scoreAccordingProdUsage=True))
BY_PERCENTILE = by(
    load_aware(
        aggregated={
            "usageThresholds": {"cpu": 65},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "5m",
            "scoreAggregationType": "p95",
            "scoreAggregatedDuration": "10m",
        }
    )
)
LENIENT = by(load_aware(enableScheduleWhenNodeMetricsExpired=True, dominantResourceWeight=1))
PACKING = by(plugin("TargetLoadPacking", targetUtilization=40))
VARIATION = by(plugin("LoadVariationRiskBalancing"))
LIMITS = by(plugin("ResourceLimits"))


@pytest.fixture(scope="module")
def asking() -> Iterator[ControlPlane]:
    with local_control_plane(scheduler=configured(UNSCORED)) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        asyncio.run(join(plane, *NODES))
        yield plane


@pytest.fixture(scope="module")
def topics(asking: ControlPlane, broker: LocalKafka) -> Iterator[Settings]:
    """Topics of this file's own, on which a watcher says what the cluster is."""
    settings = asked.settings_of(asking, broker)
    asyncio.run(apply_topics(settings.kafka))
    with Role("watcher", settings) as watcher:
        assert eventually(lambda: "in step" in watcher.text(), 60), watcher.text()
        yield settings


@pytest.fixture(scope="module")
def extender(
    request: pytest.FixtureRequest, topics: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """An extender with the plugins that the tests are marked with, which knows all nodes."""
    flags = asked.in_file(tmp_path_factory.mktemp("scheduler"), request.param)
    with asked.extender(topics, *flags) as role:
        assert eventually(lambda: "table caught up" in role.text(), 60), role.text()
        assert eventually(lambda: asked.known() >= {of["metadata"]["name"] for of in NODES}, 60)
        yield
        # It would say for three seconds that it leaves.
        role.kill()


@pytest.fixture(autouse=True)
def _asked(extender: None) -> None:
    """Every test here is one of an extender."""


def on_each(*names: str) -> Object:
    """A DaemonSet of these nodes."""
    labels = {"app": "on-each"}
    spec = pod("each", among=names, **SMALL)["spec"]
    del spec["terminationGracePeriodSeconds"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "each"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


# -- LoadAware, as it is without arguments


@DEFAULTS
async def test_the_threshold_itself_is_not_too_much_and_a_daemon_set_is_exempt(
    cluster: Cluster,
) -> None:
    names = ("at-64", "at-65", "at-66")
    await cluster.heard(*(state(name, int(name[-2:]) * 0.64) for name in names))
    assert await cluster.lands(pod("to-64", among=["at-64"], **SMALL)) == "at-64"
    assert await cluster.lands(pod("to-65", among=["at-65"], **SMALL)) == "at-65"
    said = await cluster.refused(pod("to-66", among=["at-66"], **SMALL))
    assert "at-66: cpu usage would be 66.0 percent of 64 cores, over the threshold of 65" in said
    apply(cluster.plane, on_each(*names))
    await until(lambda: sorted(cluster.landed("each").values()) == [*names], 60)


@DEFAULTS
async def test_each_resource_has_a_threshold_of_its_own(cluster: Cluster) -> None:
    await cluster.heard(
        state("cpu-full", 45.0), state("memory-full", 8.0, memory_gib=247.0),
        state("none-full", 40.0, memory_gib=240.0),
    )  # fmt: skip
    said = await cluster.refused(pod("either", among=["cpu-full", "memory-full"], **SMALL))
    assert "cpu-full: cpu usage would be 70.3 percent of 64 cores, over the threshold of 65" in said
    assert "memory-full: memory usage would be 96.5 percent of 256.0 GiB" in said
    assert "over the threshold of 95" in said
    three = ("cpu-full", "memory-full", "none-full")
    assert await cluster.lands(pod("any", among=three, **SMALL)) == "none-full"


@DEFAULTS
async def test_a_node_with_a_lower_threshold_of_its_own_alone_refuses(cluster: Cluster) -> None:
    await cluster.heard(state("own", 32.0), state("as-all", 32.0))
    said = await cluster.refused(pod("to-own", among=["own"], **SMALL))
    assert "cpu usage would be 50.0 percent of 64 cores, over the threshold of 45" in said
    assert await cluster.lands(pod("to-as-all", among=["as-all"], **SMALL)) == "as-all"


@DEFAULTS
async def test_a_node_that_is_not_heard_of_any_more_is_avoided(cluster: Cluster) -> None:
    await cluster.heard(
        state("heard", 20.0, age_seconds=60), state("unheard", 1.0, age_seconds=190)
    )
    said = await cluster.refused(pod("to-unheard", among=["unheard"], **SMALL))
    assert "usage is not known: its last window ended" in said
    assert "the limit is 180 s" in said
    both = ("heard", "unheard")
    assert await cluster.lands(pod("to-either", among=both, **SMALL)) == "heard"


@DEFAULTS
async def test_batch_that_is_on_its_way_counts(cluster: Cluster) -> None:
    """It asks for nothing that a scheduler counts as CPU."""
    await cluster.counts(pods=0)
    await cluster.heard(state("taken", 30.0), state("free", 32.0))
    asked_for: dict[str, Any] = {"kubernetes.io/batch-cpu": "4000"}
    asked_for["kubernetes.io/batch-memory"] = "1Gi"
    apply(cluster.plane, pod("batch", on="taken", labels=BATCH, **asked_for))
    await cluster.counts(pods=1)
    # Of 4 cores 3.4 are expected to be used.
    assert await cluster.lands(pod("one", among=["taken", "free"], **SMALL)) == "free"
    more = asked_for | {"kubernetes.io/batch-cpu": "12000"}
    apply(cluster.plane, pod("more-batch", on="taken", labels=BATCH, **more))
    await cluster.counts(pods=3)
    said = await cluster.refused(pod("another", among=["taken"], labels=PROD, **SMALL))
    assert "30 cores used" in said
    assert "13.6 cores on its way" in said


# -- LoadAware with arguments


@EXPIRING
async def test_where_the_exporter_was_killed_nothing_is_placed_until_it_is_back(
    cluster: Cluster, topics: Settings
) -> None:
    flags = ("--node-name", "silent", "--window-seconds", "1", "--metrics-port", "0")
    exporter = partial(Role, "exporter", topics, *flags)

    def age() -> float:
        found = json.loads(asked.read("/v1/nodes"))["items"]
        return float(next((of["age_seconds"] for of in found if of["node"] == "silent"), 1e9))

    def bound(name: str) -> bool:
        # A scheduler tries again when something happens, and nothing does.
        cluster.plane.kubectl("annotate", "node", "silent", f"now={time.time()}", "--overwrite")
        return cluster.landed(name)[name] == "silent"

    with worker(topics):
        with exporter() as running:
            await until(lambda: age() < 10, 60)
            apply(cluster.plane, pod("while-heard", among=["silent"], **SMALL))
            await until(lambda: bound("while-heard"), 60)
            running.kill()
        await until(lambda: age() > 10, 60)
        said = await cluster.refused(pod("waits", among=["silent"], **SMALL))
        assert "silent: usage is not known: its last window ended" in said
        assert "the limit is 10 s" in said
        with exporter():
            await until(lambda: bound("waits"), 60)


@BY_PROD
async def test_prod_is_held_to_what_prod_uses_and_others_to_the_whole(cluster: Cluster) -> None:
    await cluster.heard(
        state("of-batch", 60.0, of_classes={"prod": 5.0, "batch": 55.0}),
        state("of-prod", 40.0, of_classes={"prod": 39.0, "batch": 1.0}),
    )
    said = await cluster.refused(pod("p-refused", among=["of-prod"], labels=PROD, **SMALL))
    assert "cpu usage of Prod would be 60.9 percent of 64 cores, over the threshold of 55" in said
    said = await cluster.refused(pod("b-refused", among=["of-batch"], labels=BATCH))
    assert "cpu usage would be 94.1 percent of 64 cores, over the threshold of 65" in said
    both = ("of-batch", "of-prod")
    assert await cluster.lands(pod("prod", among=both, labels=PROD, **SMALL)) == "of-batch"
    assert await cluster.lands(pod("batch", among=both, labels=BATCH)) == "of-prod"


@BY_PROD
async def test_for_prod_the_best_node_is_that_with_the_least_prod(cluster: Cluster) -> None:
    await cluster.heard(
        state("prod-quiet", 36.0, of_classes={"prod": 5.0, "batch": 31.0}),
        state("prod-busy", 20.0, of_classes={"prod": 18.0, "batch": 2.0}),
    )
    both = ("prod-quiet", "prod-busy")
    assert await cluster.lands(pod("prod", among=both, labels=PROD, **SMALL)) == "prod-quiet"
    assert await cluster.lands(pod("batch", among=both, labels=BATCH)) == "prod-busy"


@BY_PERCENTILE
async def test_a_node_is_refused_by_the_percentile_of_its_usage(cluster: Cluster) -> None:
    await cluster.heard(
        state("was-hot", 10.0, p95={"5m": 50.0}), state("is-hot", 60.0, p95={"5m": 20.0})
    )
    said = await cluster.refused(pod("to-was-hot", among=["was-hot"], **SMALL))
    assert (
        "cpu aggregated usage would be 78.1 percent of 64 cores, over the threshold of 65" in said
    )
    assert await cluster.lands(pod("to-is-hot", among=["is-hot"], **SMALL)) == "is-hot"


@BY_PERCENTILE
async def test_the_best_node_is_that_with_the_lowest_percentile(cluster: Cluster) -> None:
    await cluster.heard(
        state("was-busy", 5.0, p95={"5m": 10.0, "10m": 30.0}),
        state("is-busy", 30.0, p95={"5m": 20.0, "10m": 10.0}),
    )
    both = ("was-busy", "is-busy")
    assert await cluster.lands(pod("either", among=both, **SMALL)) == "is-busy"


@LENIENT
async def test_a_node_that_is_not_heard_of_may_take_pods_where_that_is_allowed(
    cluster: Cluster,
) -> None:
    await cluster.heard(state("late", 60.0, age_seconds=190), state("in-time", 60.0))
    assert await cluster.lands(pod("to-late", among=["late"], **SMALL)) == "late"
    said = await cluster.refused(pod("to-in-time", among=["in-time"], **SMALL))
    assert "over the threshold of 65" in said


@LENIENT
async def test_pods_go_where_what_they_need_is_left(cluster: Cluster) -> None:
    """By the mean of both resources `much-cpu` would get either pod."""
    await cluster.heard(
        state("much-cpu", 25.0, memory_gib=13.0), state("much-memory", 3.2, memory_gib=128.0)
    )
    both = ("much-cpu", "much-memory")
    of_cpu = pod("of-cpu", among=both, cpu="12", memory="1Mi")
    assert await cluster.lands(of_cpu) == "much-memory"
    of_memory = pod("of-memory", among=both, cpu="100m", memory="60Gi")
    assert await cluster.lands(of_memory) == "much-cpu"


# -- other plugins


def phases(cluster: Cluster) -> set[str]:
    return {of["status"]["phase"] for of in items(cluster.plane, "pods")}


@PACKING
async def test_nodes_are_packed_up_to_the_target_with_pods_that_are_not_measured(
    cluster: Cluster,
) -> None:
    """No window comes while they do: by the last one alone `fuller` would be the best for all."""
    await cluster.counts(pods=0)
    await cluster.heard(state("fuller", 19.2, mean=19.2), state("emptier", 6.4, mean=6.4))
    landed = []
    for number in range(5):
        wanted = pod(f"packed-{number}", among=["fuller", "emptier"], cpu="2")
        landed.append(await cluster.lands(wanted))
        await cluster.counts(pods=number + 1)
    # 30 percent and 3.125 for each pod: the fourth would be beyond 40.
    assert landed == ["fuller"] * 3 + ["emptier"] * 2


@PACKING
async def test_a_node_that_was_never_heard_of_is_taken_by_what_is_known_of_its_pods(
    cluster: Cluster,
) -> None:
    """Without pods it uses nothing, with young ones what they are expected to use; of one whose
    pods run for long nothing is known, and it is the last to be taken."""
    await cluster.counts(pods=0)
    young, old = pod("young", on="young-pods", cpu="16"), pod("old", on="old-pods", cpu="16")
    apply(cluster.plane, young, old)
    await until(lambda: "Pending" not in phases(cluster), 60)
    since = {"type": "PodScheduled", "status": "True"}
    since["lastTransitionTime"] = format_time(int(time.time()) - 600)
    conditions = json.dumps({"status": {"conditions": [since]}})
    patched = ("--subresource=status", "--type=strategic", "-p", conditions)
    cluster.plane.kubectl("patch", "pod", "old", *patched)
    # What is said of one node is read in order: who knows of this pod knows how old that one is.
    apply(cluster.plane, pod("then", on="old-pods", **SMALL))
    await cluster.counts(pods=3)
    small = partial(pod, cpu="2")
    assert await cluster.lands(small("a", among=["old-pods", "no-pods"])) == "no-pods"
    assert await cluster.lands(small("b", among=["old-pods", "young-pods"])) == "young-pods"
    # Packed: 18 of 128 cores are more than 4 of 64, which are more than 2 of 128.
    await cluster.counts(pods=5)
    assert await cluster.lands(small("c", among=["no-pods", "young-pods"])) == "young-pods"


@PACKING
async def test_a_load_watcher_is_asked_over_http(cluster: Cluster) -> None:
    await cluster.heard(
        state("fuller", 19.2, mean=19.2, offset=2), state("emptier", 6.4, mean=6.4, offset=2)
    )
    whole = json.loads(asked.read("/watcher"))["data"]["NodeMetricsMap"]
    assert whole.keys() >= {"fuller", "emptier"}
    one = json.loads(asked.read("/watcher/fuller"))["data"]["NodeMetricsMap"]
    assert one == {"fuller": whole["fuller"]}
    average = next(of for of in whole["fuller"]["metrics"] if of["operator"] == "AVG")
    assert (average["type"], average["rollup"], average["value"]) == ("CPU", "15m", 30.0)
    with pytest.raises(HTTPError) as error:
        asked.read("/watcher/nobody")
    assert error.value.code == 404
    assert error.value.read() == b"No metrics found for host nobody"


@VARIATION
async def test_a_bursty_node_loses_against_a_smooth_one(cluster: Cluster) -> None:
    await cluster.heard(
        state("bursty", 20.0, mean=20.0, deviation=12.0),
        state("smooth", 20.0, mean=20.0, deviation=1.0),
        state("hardly-fuller", 24.0, mean=24.0, deviation=1.0),
    )
    for other in ("smooth", "hardly-fuller"):
        wanted = pod(f"not-on-bursty-{other}", among=["bursty", other], **SMALL)
        assert await cluster.lands(wanted) == other


@LIMITS
async def test_a_guaranteed_pod_counts_as_any_with_its_limit(cluster: Cluster) -> None:
    await cluster.counts(pods=0)
    burstable = pod("burstable", on="promised", cpu="30")
    burstable["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    guaranteed = {"full": "40", "roomy": "20"}
    apply(cluster.plane, burstable, *(
        pod(f"guaranteed-{name}", on=name, cpu=cpu, memory="1Gi")
        for name, cpu in guaranteed.items()
    ))  # fmt: skip
    await cluster.counts(pods=3)
    # By requests the burstable one would be the smallest of the three.
    for among, expected in (
        (("roomy", "promised", "full"), "roomy"),
        (("promised", "full"), "promised"),
    ):
        wanted = pod(f"to-{expected}", among=among, cpu="1", memory="1Gi")
        assert await cluster.lands(wanted) == expected
