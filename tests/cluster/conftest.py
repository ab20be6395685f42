"""A broker for the tests of this folder, and topics of its own for each."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.kafka import LocalKafka, local_kafka
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.topics.admin import apply_topics

PARTITIONS = 3


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalKafka]:
    """A ready broker. Who stops it must start it again."""
    with local_kafka() as kafka:
        yield kafka


@pytest.fixture
async def settings(broker: LocalKafka, plane: ControlPlane) -> AsyncIterator[Settings]:
    """Topics and a ConfigMap of this test's own."""
    name = f"test-{uuid4().hex[:8]}"
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, topic_prefix=name, partitions=PARTITIONS
    )
    await apply_topics(kafka)
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig(), config_name=name)
    yield Settings(kafka=kafka, kubernetes=kubernetes)
    plane.kubectl("delete", "configmap", name, "-n", "koordinator-system", "--ignore-not-found")
