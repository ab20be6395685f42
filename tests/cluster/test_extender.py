"""A real kube-scheduler asks the extender: where pods are bound, and why others are refused."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.extender_cluster import ALLOCATABLE, Cluster, add_nodes, scheduler_config
from tests.cluster.objects import (
    RUNNING,
    apply,
    assert_forbidden,
    delete_pods,
    event_text,
    items,
    node,
    pod,
    service_account,
)
from tests.cluster.roles import Role
from tests.plane import NAMESPACES
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES = [f"e{number}" for number in range(20)]
PAIR = {name: {"pair": "yes"} for name in NODES[:2]}
PRIORITIES = {"urgent": 9500, "mid": 7500, "batch": 5500}


@pytest.fixture(scope="module")
def asking_plane() -> Iterator[ControlPlane]:
    """A control plane whose scheduler packs by requests, and asks an extender. One step of the
    extender's score outweighs the packing, so that pods in flight would attract a burst."""
    packing = {"scoringStrategy": {"type": "MostAllocated"}}
    profile = {
        "plugins": {
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}
        },
        "pluginConfig": [{"name": "NodeResourcesFit", "args": packing}],
    }
    # Without an extender the scheduler continues at once.
    scheduler = scheduler_config(profile, weight=10, ignorable=True)
    with local_control_plane(scheduler=scheduler) as plane:
        for name in NAMESPACES:
            plane.kubectl("create", "namespace", name)
        nodes = [node(name, labels=PAIR.get(name), **ALLOCATABLE) for name in NODES]
        asyncio.run(add_nodes(plane, *nodes))
        apply(plane, *(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
             "metadata": {"name": name}} for name, value in PRIORITIES.items()
        ))  # fmt: skip
        yield plane


async def test_a_burst_is_spread_because_pods_in_flight_count(cluster: Cluster) -> None:
    most = {}
    for in_flight in ("none", "all"):
        await cluster.use(dict.fromkeys(NODES, 4.0))
        async with cluster.watched_extender("--fine-scores", "--in-flight", in_flight):
            nodes = await cluster.place(in_flight, 200, 300, cpu="1", memory="1Gi")
        most[in_flight] = max(Counter(nodes).values())
        delete_pods(cluster.plane)
        await until(lambda: not items(cluster.plane, "pods"), 120)
    assert most["none"] > 50
    # An even share is 10. Between a bind and its record the extender counts a pod where it expected
    # it: the scheduler may have chosen another node, the more often the later records arrive.
    assert most["all"] <= 25


async def test_a_hot_node_gets_no_pod_and_the_event_has_the_reason(cluster: Cluster) -> None:
    await cluster.use(dict.fromkeys(NODES[1:], 44.0) | {NODES[0]: 4.0})
    async with cluster.extender():
        assert {*await cluster.place("cool", 5, cpu="1", memory="1Gi")} == {NODES[0]}
        await cluster.use_and_wait({NODES[0]: 44.0})
        cluster.create("waits", 1, cpu="1", memory="1Gi")
        reason = "node(s) cpu usage exceed threshold"
        await until(lambda: reason in event_text(cluster.plane, "waits-0"), 120)
        assert cluster.nodes_of_pods("waits") == {"waits-0": ""}
        # Preemption skips these nodes; on a node that is refused and curable it finds no victim.
        assert "victim pod on node" not in event_text(cluster.plane, "waits-0")


async def test_the_scheduler_continues_without_an_extender_and_asks_it_again(
    cluster: Cluster,
) -> None:
    await cluster.use(dict.fromkeys(NODES[1:], 60.0) | {NODES[0]: 4.0})
    async with cluster.extender() as extender:
        assert {*await cluster.place("asked", 3, cpu="1")} == {NODES[0]}
        extender.kill()
    assert {*await cluster.place("alone", 30, cpu="4")} - {NODES[0]}
    async with cluster.extender():
        assert {*await cluster.place("again", 3, cpu="100m")} == {NODES[0]}


@pytest.mark.parametrize("batch", [0, 1])
async def test_batch_is_preempted_before_mid_of_the_same_priority(
    cluster: Cluster, batch: int
) -> None:
    await cluster.use(dict.fromkeys(NODES, 4.0))
    async with cluster.watched_extender():
        for index, name in enumerate(NODES[:2]):
            label = "koord-batch" if index == batch else "koord-mid"
            labels = {"koordinator.sh/priority-class": label}
            apply(cluster.plane, pod(f"full-{name}", on=name, labels=labels, cpu="63"))
        # The scheduler hears of them from the API server, the extender later, by the watcher.
        await cluster.wait_for_pods(2)
        urgent = pod("urgent", priority_class="urgent", cpu="10")
        urgent["spec"]["nodeSelector"] = {"pair": "yes"}
        assert await cluster.node_for(urgent) == NODES[batch]
    assert list(cluster.nodes_of_pods("full")) == [f"full-{NODES[1 - batch]}"]


async def test_a_storm_of_pods_takes_no_node_over_its_threshold(cluster: Cluster) -> None:
    """One cold node and four warm ones."""
    usage = dict.fromkeys(NODES, 60.0) | dict.fromkeys(NODES[1:5], 30.0) | {NODES[0]: 2.0}
    await cluster.use(usage)
    async with cluster.watched_extender("--fine-scores"):
        counts = Counter(await cluster.place("storm", 60, 300, cpu="1", memory="1Gi"))
    assert {*counts} <= {*NODES[:5]}
    for name, count in counts.items():
        # A pod is expected to use 0.85 cores; 65.5 percent of 64 cores are shown as 65.
        assert usage[name] + 0.85 * count < 0.655 * 64


async def test_by_default_the_node_with_the_lower_predicted_peak_gets_the_pod(
    cluster: Cluster,
) -> None:
    """Both nodes have the same usage now."""
    usage = dict.fromkeys(NODES, 60.0) | dict.fromkeys(NODES[:2], 8.0)
    await cluster.use(usage, peaks={NODES[0]: 50.0, NODES[1]: 10.0})
    async with cluster.extender():
        assert {*await cluster.place("long", 5, cpu="500m", memory="1Gi")} == {NODES[1]}


def lower_pod(name: str, pod_class: str, on: str, cores: int) -> dict[str, Any]:
    """A Batch or Mid pod, which requests the extended resource of its class."""
    labels = {"koordinator.sh/priority-class": f"koord-{pod_class}", "app": name}
    requests = {f"kubernetes.io/{pod_class}-cpu": str(cores * 1000)}
    return pod(name, on=on, labels=labels, priority_class=pod_class, **requests)


async def test_mid_is_evicted_for_prod_where_only_our_filter_refused(
    cluster: Cluster, project: Path
) -> None:
    """Nodes have room by requests, and none by usage: on one of them Mid uses it. The evictor runs
    as the service account of deploy/chart/rbac."""
    plane = cluster.plane
    account = service_account(plane, "evictor", project)
    own = Settings(kafka=cluster.settings.kafka, kubernetes=KubernetesSettings(kubeconfig=account))
    await cluster.use(dict.fromkeys(NODES, 60.0))
    target, other = NODES[5], NODES[6]
    await cluster.use({target: 46.0}, prod=25.0, mid=20.0, batch=1.0)
    await cluster.use({other: 46.0}, prod=44.0, mid=2.0)
    async with cluster.watched_extender("--push-out"):
        with (
            Role("evictor", own, "--mode", "act") as evictor,
            Role("actuator", cluster.settings, "--mode", "act") as actuator,
        ):
            await evictor.logs("ready")
            await actuator.logs("ready")
            apply(
                plane, lower_pod("mid-large", "mid", target, 20),
                lower_pod("mid-small", "mid", target, 2), lower_pod("batch", "batch", target, 1),
                lower_pod("mid-elsewhere", "mid", other, 2),
                pod("prod", on=target, priority_class="urgent", cpu="20"),
            )  # fmt: skip
            for name in ("mid-large", "mid-small", "batch", "mid-elsewhere", "prod"):
                plane.kubectl("patch", "pod", name, *RUNNING)
            await cluster.wait_for_pods(5)
            # A window that began after they started measures them: they are not in flight.
            await asyncio.sleep(3.0)
            short: dict[str, Any] = {"window_seconds": 1.0}
            await cluster.use_and_wait({target: 46.0}, **short, prod=25.0, mid=20.0, batch=1.0)
            await cluster.use_and_wait({other: 46.0}, **short, prod=44.0, mid=2.0)
            labels = {"koordinator.sh/priority-class": "koord-prod"}
            apply(plane, pod("urgent", labels=labels, priority_class="urgent", cpu="8"))
            # The extender plans when the scheduler asks, which it does when a Node changes.
            for attempt in range(10):
                plane.kubectl("annotate", "node", target, f"asked={attempt}", "--overwrite")
                with suppress(AssertionError):
                    await until(lambda: "mid-large" not in cluster.nodes_of_pods("mid"), 12)
                    break
            # Other pods stay, and the pod waits until the node is measured again.
            left = {"mid-small": target, "mid-elsewhere": other}
            assert cluster.nodes_of_pods("mid") == left
            assert cluster.nodes_of_pods("urgent") == {"urgent": ""}
            assert cluster.nodes_of_pods("prod") == {"prod": target}
            await asyncio.sleep(2.0)
            assert cluster.nodes_of_pods("urgent") == {"urgent": ""}
            await cluster.use({target: 26.0}, window_seconds=1.0, prod=25.0, mid=1.0)
            await until(lambda: cluster.nodes_of_pods("urgent") == {"urgent": target}, 120)
            assert cluster.nodes_of_pods("mid") == left
    assert_forbidden(
        plane, account, "delete pod prod", "label pod prod a=b", f"get node {target}", "get events",
        "get configmap other -n springtide-system", "get configmap springtide-stop-evictions",
    )  # fmt: skip
