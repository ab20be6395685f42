"""The command `recommend` with a real broker."""

import json
import uuid

import pytest

from pipeline.kafka.partition import partition_of
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.registry import PODS
from tests.integration.test_model_commands import NODE, filled, producing, typed


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    """Return settings with topics of two partitions for this test alone."""
    return KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid.uuid4().hex[:8]}",
        partitions=2,
    )


async def test_recommended_requests_are_printed(kafka: KafkaSettings) -> None:
    shown = await typed(kafka, "recommend")
    assert shown.exit_code == 3, shown.output
    await filled(kafka)
    shown = await typed(kafka, "recommend")
    assert (shown.exit_code, "there are no pods" in shown.output) == (4, True)

    # The pods that have run on the node: pod-0, pod-1 and pod-2.
    async with producing(kafka) as producer:
        for node, uid in ((NODE, "pod-0"), (NODE, "pod-1"), ("other", "pod-9")):
            owner = Owner(kind="ReplicaSet", name="web-5d4")
            pod = PodRecord(
                node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=uid, owner=owner
            )
            await producer.send_and_wait(
                PODS.full_name(kafka.topic_prefix), encode_json(pod), pod_key(node, uid),
                partition=partition_of(node, kafka.partitions),
            )  # fmt: skip

    shown = await typed(kafka, "recommend")
    assert shown.exit_code == 0, shown.output
    assert "skipped 1 pods with models" in shown.output
    (cpu,) = (line.split() for line in shown.output.splitlines() if " cpu " in line)
    assert (cpu[0], cpu[6]) == ("ReplicaSet/shop/web-5d4", "2/3")
    assert int(cpu[2][:-1]) <= int(cpu[3][:-1]) <= int(cpu[4][:-1])

    shown = await typed(kafka, "recommend", "shop/web-5d4", "--json")
    (web,) = json.loads(shown.stdout)["items"]
    (found,) = web["recommendation"]["containerRecommendations"]
    assert found["target"]["cpu"] == cpu[3]
    shown = await typed(kafka, "recommend", "Deployment/shop/web")
    assert (shown.exit_code, "ReplicaSet/shop/web-5d4?" in shown.output) == (4, True)
