"""Recommendations with a real broker: published by workers, shown by the command."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import yaml
from aiokafka import AIOKafkaProducer

from pipeline.agents.ownership import Ownership
from pipeline.agents.recommendation_agent import Places, publish_from_checkpoints
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import log_producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import SAMPLES, WINDOWS
from tests.agents.logs import window
from tests.integration.test_model_commands import NODE, owner, typed


async def put_windows(
    kafka: KafkaSettings, first: int, end: int, deployment: str, containers: Sequence[str] = ()
) -> None:
    """Write these windows of the node; every sixth has another pod of the Deployment."""
    samples, windows = (topic.full_name(kafka.topic_prefix) for topic in (SAMPLES, WINDOWS))
    place, key = partition_of(NODE, kafka.partitions), NODE.encode()
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        for step in range(first, end):
            await producer.send_and_wait(samples, b"a sample", key, partition=place)
            value = window(
                NODE, step + 1, sample_offset=step, deployment=deployment, containers=containers
            )
            await producer.send_and_wait(windows, value, key, partition=place)


async def publish(kafka: KafkaSettings) -> None:
    """Run a worker that loads the partition, writes a round and publishes, and stops."""
    places = Places(
        kafka.topic_prefix, kafka.partitions, partial(open_reader, client_options(kafka))
    )
    async with owner(kafka) as (_, rounds), log_producer(client_options(kafka)) as output:
        await rounds.write()
        await publish_from_checkpoints(places, output, Ownership(0, 0), {})


async def shown(kafka: KafkaSettings) -> dict[str, Any]:
    result = await typed(kafka, "recommend", "Deployment/shop/web", "-o", "json")
    assert result.exit_code == 0, result.output
    (item,) = json.loads(result.stdout)["items"]
    assert isinstance(item, dict)
    return item


async def test_recommendation_survives_restarts_rollouts_and_scale_to_zero(
    kafka: KafkaSettings,
) -> None:
    result = await typed(kafka, "recommend")
    assert result.exit_code == 3, result.output
    await apply_topics(kafka)
    result = await typed(kafka, "recommend")
    assert (result.exit_code, "there is no recommendation" in result.output) == (4, True)

    await put_windows(kafka, 0, 30, "web")
    await publish(kafka)
    before = await shown(kafka)
    assert (before["pods"], before["pods_seen"], before["samples"]) == (1, 6, 30)

    # A restart without new windows changes nothing.
    await publish(kafka)
    assert await shown(kafka) == before

    # Other pods, of another Deployment: `web` has none.
    await put_windows(kafka, 30, 36, "other")
    await publish(kafka)
    at_zero = await shown(kafka)
    nothing = {"cpu": "0m", "memory": "0"}
    assert at_zero == before | {
        "pods": 0, "replicas": 0, "requested": nothing, "saves": nothing,
    }  # fmt: skip

    await put_windows(kafka, 36, 42, "web")
    await publish(kafka)
    back = await shown(kafka)
    assert (back["pods"], back["samples"]) == (1, 36)
    (container,) = back["recommendation"]["containerRecommendations"]
    lower, target, upper = (
        int(container[name]["cpu"].removesuffix("m"))
        for name in ("lowerBound", "target", "upperBound")
    )
    assert lower <= target <= upper
    assert back["replicas"] == 1
    requested = int(back["requested"]["cpu"].removesuffix("m"))
    assert back["saves"]["cpu"] == f"{requested - target}m"

    result = await typed(kafka, "recommend", "Deployment/shop/web", "-o", "vpa")
    vpa = yaml.safe_load(result.stdout)
    assert vpa["spec"]["targetRef"]["name"] == "web"
    assert vpa["status"]["recommendation"] == back["recommendation"]

    result = await typed(kafka, "recommend")
    assert [line.split()[0] for line in result.output.splitlines()] == [
        "WORKLOAD", *["Deployment/shop/other"] * 2, *["Deployment/shop/web"] * 2,
    ]  # fmt: skip

    # A rollout adds a sidecar: from now on there is a recommendation for each container.
    await put_windows(kafka, 42, 54, "web", ("main", "mesh"))
    await publish(kafka)
    item = await shown(kafka)
    assert [each["containerName"] for each in item["containers"]] == ["main", "mesh"]
    result = await typed(kafka, "recommend", "Deployment/shop/web", "-o", "vpa")
    status = yaml.safe_load(result.stdout)["status"]
    assert status["recommendation"] == {"containerRecommendations": item["containers"]}
    result = await typed(kafka, "recommend", "Deployment/shop/web", "--containers")
    assert [line.split()[1] for line in result.output.splitlines()] == [
        "CONTAINER", "-", "-", "main", "main", "mesh", "mesh",
    ]  # fmt: skip

    result = await typed(kafka, "recommend", "ReplicaSet/shop/web-5d4")
    assert (result.exit_code, "Deployment/shop/web?" in result.output) == (4, True)
