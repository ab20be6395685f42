"""The command `recommend` with a real broker."""

import json

from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.registry import PODS
from tests.integration.test_model_commands import NODE, filled, typed


async def test_recommended_requests_are_printed(kafka: KafkaSettings) -> None:
    shown = await typed(kafka, "recommend")
    assert shown.exit_code == 3, shown.output
    await filled(kafka)
    shown = await typed(kafka, "recommend")
    assert (shown.exit_code, "there are no pods" in shown.output) == (4, True)

    # The pods that have run on the node: pod-0, pod-1 and pod-2.
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
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
