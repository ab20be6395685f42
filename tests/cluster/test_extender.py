"""A real kube-scheduler that asks the extender: where pods land, and what is said of the others."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.kafka import LocalKafka
from pipeline.local.probe import free_port
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.admin import apply_topics
from pipeline.topics.client import client_options
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.partition import partition_of
from pipeline.topics.registry import NODE_STATE
from pipeline.topics.resources import Usage
from tests.cluster.conftest import PARTITIONS
from tests.cluster.objects import apply, items, node, pod, until
from tests.cluster.watching import Role

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

PORT = free_port()
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
    extender = {
        "urlPrefix": f"http://127.0.0.1:{PORT}", "filterVerb": "filter",
        "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 10,
        "enableHTTPS": False, "nodeCacheCapable": True, "ignorable": True, "httpTimeout": "1s",
    }  # fmt: skip
    packing = {"scoringStrategy": {"type": "MostAllocated"}}
    profile = {
        "plugins": {
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}
        },
        "pluginConfig": [{"name": "NodeResourcesFit", "args": packing}],
    }
    scheduler = {
        "extenders": [extender], "profiles": [profile], "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2,
    }  # fmt: skip
    with local_control_plane(scheduler=scheduler) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        apply(plane, *(node(name, labels=PAIR.get(name), **room) for name in NODES))
        apply(plane, *PRIORITIES)
        yield plane


@dataclass
class Cluster:
    """The scheduler's cluster with topics of this test's own."""

    plane: ControlPlane
    settings: Settings
    producer: AIOKafkaProducer

    async def uses(
        self,
        cores: dict[str, float],
        offset: int = 1,
        peaks: dict[str, float] | None = None,
        window_seconds: float = 30.0,
        **of_classes: float,
    ) -> None:
        """Each of these nodes uses so many cores in a window that ends now, and is predicted to use
        so many; these classes use so much of it."""
        topic = NODE_STATE.full_name(self.settings.kafka.topic_prefix)
        for name, used in cores.items():
            await self.producer.send_and_wait(
                topic,
                key=name.encode(),
                value=state(
                    name, used, offset, (peaks or {}).get(name, used), window_seconds, of_classes
                ),
                partition=partition_of(name, PARTITIONS),
            )

    def extender(self, *flags: str) -> Role:
        address = ("--port", str(PORT), "--host", "127.0.0.1")
        return Role("extender", self.settings, "--mode", "act", *address, *flags)

    def landed(self, prefix: str) -> dict[str, str]:
        """On which node each of these pods is; the empty one while it waits."""
        found = (one for one in items(self.plane, "pods"))
        named = {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}
        return {name: where for name, where in named.items() if name.startswith(prefix)}

    def create(self, prefix: str, count: int, **more: Any) -> None:
        apply(self.plane, *(pod(f"{prefix}-{number}", **more) for number in range(count)))


def state(
    name: str, cores: float, offset: int, peak: float, window_seconds: float,
    of_classes: dict[str, float],
) -> bytes:  # fmt: skip
    predicted = Usage(cpu_cores=peak, memory_bytes=8 * 2.0**30)
    used = {
        pod_class: Usage(cpu_cores=cpu, memory_bytes=2.0**30)
        for pod_class, cpu in of_classes.items()
    }
    return encode_json(
        NodeStateRecord(
            node=name, as_of=format_time(int(time.time())), generation=1, offset=offset, epoch=1,
            window_seconds=window_seconds, coverage=1.0, node_known=True,
            usage=Usage(cpu_cores=cores, memory_bytes=8 * 2.0**30),
            allocatable=Usage(cpu_cores=64.0, memory_bytes=256 * 2.0**30),
            predictor="percentile", peaks={"percentile": predicted}, class_usage=used,
        )
    )  # fmt: skip


@pytest.fixture
async def cluster(asking: ControlPlane, broker: LocalKafka) -> Any:
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid4().hex[:8]}",
        partitions=PARTITIONS,
    )
    await apply_topics(kafka)
    settings = Settings(kafka=kafka, kubernetes=KubernetesSettings(kubeconfig=asking.kubeconfig()))
    producer = AIOKafkaProducer(**client_options(kafka))
    await producer.start()
    yield Cluster(asking, settings, producer)
    await producer.stop()
    asking.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    await until(lambda: not items(asking, "pods"), 120)


def all_bound(cluster: Cluster, prefix: str, count: int) -> Callable[[], bool]:
    return lambda: sum(map(bool, cluster.landed(prefix).values())) == count


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
        cluster.plane.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
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
        used = {"prod": 25.0, "mid": 20.0, "batch": 1.0}
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
