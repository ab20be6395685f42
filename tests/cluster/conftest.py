"""A broker for the tests of this folder, topics of its own for each, and nothing left behind."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from tests.cluster.asking import Cluster, settings_of
from tests.cluster.objects import PARTITIONS, There, only, there
from tests.processes import until


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalKafka]:
    """A ready broker. Who stops it must start it again."""
    with local_kafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def untouched(plane: ControlPlane) -> There:
    """What is in the plane that all tests share before the first of them begins."""
    return there(plane)


@pytest.fixture
async def settings(
    broker: LocalKafka, plane: ControlPlane, untouched: There
) -> AsyncIterator[Settings]:
    """Topics and a ConfigMap of this test's own. What it leaves in the plane goes with it, so that
    one test that fails takes no other with it."""
    name = f"test-{uuid4().hex[:8]}"
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, topic_prefix=name, partitions=PARTITIONS
    )
    await apply_topics(kafka)
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig(), config_name=name)
    yield Settings(kafka=kafka, kubernetes=kubernetes)
    await until(lambda: only(plane, untouched), 120)


@pytest.fixture
async def topics(asking: ControlPlane, broker: LocalKafka) -> Settings:
    """Topics of this test's own, for the file's cluster whose scheduler asks an extender."""
    settings = settings_of(asking, broker)
    await apply_topics(settings.kafka)
    return settings


@pytest.fixture
async def cluster(asking: ControlPlane, topics: Settings) -> AsyncIterator[Cluster]:
    """That cluster, without a pod."""
    producer = AIOKafkaProducer(**client_options(topics.kafka))
    await producer.start()
    untouched = there(asking)
    yield Cluster(asking, topics, producer)
    await producer.stop()
    await until(lambda: only(asking, untouched), 120)
