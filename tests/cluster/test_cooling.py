"""A pod that was refused because its node was hot is bound as soon as the node has cooled."""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.registry import NODE_STATE
from pipeline.topics.resource_amounts import Usage
from tests.cluster.objects import PARTITIONS, apply, items, node, pod
from tests.cluster.watching import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

PORT = free_port()


@pytest.fixture
def asking() -> Iterator[ControlPlane]:
    """A control plane whose scheduler asks an extender."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{PORT}", "filterVerb": "filter",
        "prioritizeVerb": "prioritize", "weight": 1, "enableHTTPS": False,
        "nodeCacheCapable": True, "ignorable": False,
    }  # fmt: skip
    with local_control_plane(scheduler={"extenders": [extender]}) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        yield plane


def state(cores: float, offset: int) -> bytes:
    return encode_json(
        NodeStateRecord(
            node="h1", as_of=format_time(int(time.time())), generation=1, offset=offset, epoch=1,
            window_seconds=30, coverage=1.0, node_known=True,
            usage=Usage(cpu_cores=cores, memory_bytes=2.0**30),
            allocatable=Usage(cpu_cores=8.0, memory_bytes=32 * 2.0**30),
        )
    )  # fmt: skip


async def test_a_cooled_node_gets_the_waiting_pod(asking: ControlPlane, broker: LocalKafka) -> None:
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid4().hex[:8]}",
        partitions=PARTITIONS,
    )
    await apply_topics(kafka)
    settings = Settings(kafka=kafka, kubernetes=KubernetesSettings(kubeconfig=asking.kubeconfig()))
    producer = AIOKafkaProducer(**client_options(kafka))
    await producer.start()

    async def say(cores: float, offset: int) -> None:
        topic, partition = NODE_STATE.full_name(kafka.topic_prefix), partition_of("h1", PARTITIONS)
        value = state(cores, offset)
        await producer.send_and_wait(topic, key=b"h1", value=value, partition=partition)

    def condition() -> str:
        (found,) = items(asking, "pods")
        return str(found["status"].get("conditions", [{}])[0].get("message", ""))

    apply(asking, node("h1"))
    await say(7.5, 1)
    with (
        Role("extender", settings, "--mode", "act", "--port", str(PORT), "--host", "127.0.0.1"),
        Role("actuator", settings, "--mode", "act") as actuator,
    ):
        await until(lambda: "ready" in actuator.text())
        apply(asking, pod("waits", cpu="100m"))
        await until(lambda: "over the threshold of 65" in condition(), 60)
        # What the scheduler would do by itself is to try again after five minutes.
        await say(1.0, 2)
        await until(lambda: items(asking, "pods")[0]["spec"].get("nodeName") == "h1", 30)
    await producer.stop()
    (found,) = items(asking, "nodes")
    assert "springtide/cooled" in found["metadata"]["annotations"]
