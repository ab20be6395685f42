"""A real kube-scheduler that asks the extender: where pods land, and what is said of the others."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.asking import ROOM, Cluster, all_bound, configured
from tests.cluster.objects import apply, items, node, pod, remove_pods
from tests.cluster.watching import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES = [f"e{number}" for number in range(20)]
PAIR = {name: {"pair": "yes"} for name in NODES[:2]}


def priority(name: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
        "metadata": {"name": name},
    }  # fmt: skip


PRIORITIES = [priority("urgent", 9500), priority("mid", 7500), priority("batch", 5500)]


@pytest.fixture(scope="module")
def asking() -> Iterator[ControlPlane]:
    """A control plane whose scheduler packs by requests, and asks an extender. A step of its score
    outvotes the packing, so that a pod goes to the node on which it is said to be in flight."""
    packing = {"scoringStrategy": {"type": "MostAllocated"}}
    profile = {
        "plugins": {
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}
        },
        "pluginConfig": [{"name": "NodeResourcesFit", "args": packing}],
    }
    # Where nobody listens it goes on alone at once; an answer is waited for.
    scheduler = configured(profile, weight=10, ignorable=True)
    with local_control_plane(scheduler=scheduler) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        apply(plane, *(node(name, labels=PAIR.get(name), **ROOM) for name in NODES))
        apply(plane, *PRIORITIES)
        yield plane


async def test_a_burst_is_spread_because_pods_in_flight_count(cluster: Cluster) -> None:
    await cluster.uses(dict.fromkeys(NODES, 4.0))
    most = {}
    for in_flight in ("none", "all"):
        with (
            Role("watcher", cluster.settings) as watcher,
            cluster.extender("--fine-scores", "--in-flight", in_flight) as extender,
        ):
            await until(lambda watcher=watcher: "in step" in watcher.text(), 60)
            await until(lambda extender=extender: "table caught up" in extender.text(), 60)
            cluster.create(in_flight, 200, cpu="1", memory="1Gi")
            await until(all_bound(cluster, in_flight, 200), 120)
        most[in_flight] = max(Counter(cluster.landed(in_flight).values()).values())
        remove_pods(cluster.plane)
        await until(lambda: not items(cluster.plane, "pods"), 120)
    assert most["none"] > 50
    assert most["all"] <= 13


async def test_a_hot_node_gets_none_and_the_waiting_pod_says_why(cluster: Cluster) -> None:
    hot = dict.fromkeys(NODES[1:], 44.0)
    await cluster.uses(hot | {NODES[0]: 4.0})
    with cluster.extender() as extender:
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("cool", 5, cpu="1", memory="1Gi")
        await until(all_bound(cluster, "cool", 5), 60)
        assert set(cluster.landed("cool").values()) == {NODES[0]}
        await cluster.uses({NODES[0]: 44.0}, offset=2)
        await asyncio.sleep(1.0)
        cluster.create("waits", 1, cpu="1", memory="1Gi")

        def events() -> str:
            found = items(cluster.plane, "events")
            about = (e for e in found if e["involvedObject"]["name"] == "waits-0")
            return " ".join(e["message"] for e in about)

        await until(lambda: "over the threshold of 65" in events(), 60)
        assert cluster.landed("waits") == {"waits-0": ""}
        assert "cpu usage would be 70.1 percent of 64 cores" in events()


async def test_the_scheduler_goes_on_without_us_and_asks_again_when_we_are_back(
    cluster: Cluster,
) -> None:
    hot = dict.fromkeys(NODES[1:], 60.0)
    await cluster.uses(hot | {NODES[0]: 4.0})
    with cluster.extender() as extender:
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("asked", 3, cpu="1")
        await until(all_bound(cluster, "asked", 3), 60)
        assert set(cluster.landed("asked").values()) == {NODES[0]}
        extender.kill()
    cluster.create("alone", 30, cpu="4")
    await until(all_bound(cluster, "alone", 30), 60)
    assert set(cluster.landed("alone").values()) - {NODES[0]}
    with cluster.extender() as extender:
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("again", 3, cpu="100m")
        await until(all_bound(cluster, "again", 3), 60)
        assert set(cluster.landed("again").values()) == {NODES[0]}


@pytest.mark.parametrize("batch", [0, 1])
async def test_batch_is_pushed_out_before_mid(cluster: Cluster, batch: int) -> None:
    """Of two nodes that are full, by priorities that are the same."""
    await cluster.uses(dict.fromkeys(NODES, 4.0))
    with Role("watcher", cluster.settings) as watcher, cluster.extender() as extender:
        await until(lambda: "in step" in watcher.text(), 60)
        await until(lambda: "table caught up" in extender.text(), 60)
        for at, name in enumerate(NODES[:2]):
            label = "koord-batch" if at == batch else "koord-mid"
            of_class = {"koordinator.sh/priority-class": label}
            apply(cluster.plane, pod(f"full-{name}", on=name, labels=of_class, cpu="63"))
        await until(lambda: "full-e1" in str(cluster.landed("full")), 30)
        await asyncio.sleep(2.0)
        asking = pod("urgent", priority_class="urgent", cpu="10")
        asking["spec"]["nodeSelector"] = {"pair": "yes"}
        apply(cluster.plane, asking)
        await until(lambda: cluster.landed("urgent") == {"urgent": NODES[batch]}, 60)
    assert list(cluster.landed("full")) == [f"full-{NODES[1 - batch]}"]


async def test_a_storm_of_pods_takes_no_node_over_its_threshold(cluster: Cluster) -> None:
    """One cold node, four warm ones: neither is the cold one buried, nor any threshold passed."""
    usage = dict.fromkeys(NODES, 60.0) | dict.fromkeys(NODES[1:5], 30.0) | {NODES[0]: 2.0}
    await cluster.uses(usage)
    with (
        Role("watcher", cluster.settings) as watcher,
        cluster.extender("--fine-scores") as extender,
    ):
        await until(lambda: "in step" in watcher.text(), 60)
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("storm", 80, cpu="1", memory="1Gi")
        await until(all_bound(cluster, "storm", 80), 120)
    landed = Counter(cluster.landed("storm").values())
    assert set(landed) <= set(NODES[:5])
    for name, pods in landed.items():
        # Each is expected to use 0.85 cores; 65.5 percent of 64 cores are still 65.
        assert usage[name] + 0.85 * pods < 0.655 * 64


async def test_the_node_that_will_stay_idle_gets_the_pod(cluster: Cluster, tmp_path: Path) -> None:
    """Both use as much now; one is predicted to be busy."""
    config = tmp_path / "scheduler.yaml"
    config.write_text(
        "plugins: {multiPoint: {enabled: [{name: LoadAwareScheduling},"
        " {name: PredictedHeadroom, weight: 5}]}}"
    )
    usage = dict.fromkeys(NODES, 60.0) | dict.fromkeys(NODES[:2], 8.0)
    await cluster.uses(usage, peaks={NODES[0]: 50.0, NODES[1]: 10.0})
    with cluster.extender("--scheduler-config-file", str(config)) as extender:
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("long", 5, cpu="500m", memory="1Gi")
        await until(all_bound(cluster, "long", 5), 60)
    assert set(cluster.landed("long").values()) == {NODES[1]}


def lesser(name: str, pod_class: str, on: str, cores: int) -> dict[str, Any]:
    """A pod of Batch or Mid, which asks for what its class has."""
    labels = {"koordinator.sh/priority-class": f"koord-{pod_class}", "app": name}
    asked = {f"kubernetes.io/{pod_class}-cpu": str(cores * 1000)}
    return pod(name, on=on, labels=labels, priority_class=pod_class, **asked)


def waiting(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"koordinator.sh/priority-class": "koord-prod"}
    found = pod(name, labels=labels, priority_class="urgent", cpu="8")
    found["spec"].update(spec)
    return found


def evictor_account(plane: ControlPlane, project: Path) -> Path:
    plane.kubectl("apply", "-f", str(project / "deploy" / "rbac" / "evictor.yaml"))
    return plane.kubeconfig(
        "system:serviceaccount:springtide-system:springtide-evictor",
        ["system:serviceaccounts", "system:serviceaccounts:springtide-system"],
    )


async def test_prod_pushes_out_mid_where_only_our_filter_refused(
    cluster: Cluster, project: Path
) -> None:
    """Nodes have room for what is asked for, none by what is used: on one of them Mid uses it. The
    evictor is a service account with what deploy/rbac allows, and no more."""
    plane = cluster.plane
    account = evictor_account(plane, project)
    own = Settings(kafka=cluster.settings.kafka, kubernetes=KubernetesSettings(kubeconfig=account))
    await cluster.uses(dict.fromkeys(NODES, 60.0))
    on, off = NODES[5], NODES[6]
    await cluster.uses({on: 46.0}, offset=2, prod=25.0, mid=20.0, batch=1.0)
    await cluster.uses({off: 46.0}, offset=2, prod=44.0, mid=2.0)
    evicting = ("evictor", own, "--mode", "act", "--metrics-port", "0")
    with (
        Role("watcher", cluster.settings) as watcher,
        cluster.extender("--push-out") as extender,
        Role(*evicting) as evictor,
        Role("actuator", cluster.settings, "--mode", "act", "--metrics-port", "0") as actuator,
    ):
        for role, says in (
            (watcher, "in step"), (extender, "table caught up"), (evictor, "ready"),
            (actuator, "ready"),
        ):  # fmt: skip
            await until(lambda role=role, says=says: says in role.text(), 60)
        apply(
            plane,
            lesser("mid-large", "mid", on, 20),
            lesser("mid-small", "mid", on, 2),
            lesser("batch", "batch", on, 1),
            lesser("mid-elsewhere", "mid", off, 2),
            pod("prod", on=on, priority_class="urgent", cpu="20"),
        )
        for name in ("mid-large", "mid-small", "batch", "mid-elsewhere", "prod"):
            running = (
                "--subresource=status",
                "--type=merge",
                "-p",
                '{"status":{"phase":"Running"}}',
            )
            plane.kubectl("patch", "pod", name, *running)
        # A window that began when they were there: they are in flight no more.
        await asyncio.sleep(3.0)
        used: dict[str, Any] = {"prod": 25.0, "mid": 20.0, "batch": 1.0}
        await cluster.uses({on: 46.0}, offset=3, window_seconds=1.0, **used)
        await cluster.uses({off: 46.0}, offset=3, window_seconds=1.0, prod=44.0, mid=2.0)
        await asyncio.sleep(1.0)
        apply(plane, waiting("urgent"))
        # A plan is made when the scheduler asks; it asks again when a Node changes.
        for attempt in range(10):
            plane.kubectl("annotate", "node", on, f"asked={attempt}", "--overwrite")
            with suppress(AssertionError):
                await until(lambda: "mid-large" not in cluster.landed("mid"), 12)
                break
        assert "mid-large" not in cluster.landed("mid")
        # Who was not in the way is still there, and nothing happens until the node is measured.
        left = {"mid-small": on, "mid-elsewhere": off}
        assert cluster.landed("mid") == left
        assert cluster.landed("urgent") == {"urgent": ""}
        assert cluster.landed("prod") == {"prod": on}
        await asyncio.sleep(2.0)
        assert cluster.landed("urgent") == {"urgent": ""}
        await cluster.uses({on: 26.0}, offset=4, window_seconds=1.0, prod=25.0, mid=1.0)
        await until(lambda: cluster.landed("urgent") == {"urgent": on}, 30)
        assert cluster.landed("mid") == left
    for denied in (
        ["delete", "pod", "prod"], ["label", "pod", "prod", "a=b"], ["get", "nodes"],
        ["get", "configmap", "other", "-n", "springtide-system"],
        ["get", "configmap", "springtide-stop-evictions"], ["get", "events"],
    ):  # fmt: skip
        with pytest.raises(Exception, match="orbidden"):
            plane.kubectl(*denied, user=account)
