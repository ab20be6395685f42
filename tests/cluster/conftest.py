"""Topics for each test, and a clean-up of the control plane."""

from collections.abc import AsyncIterator, Generator

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KubernetesSettings, Settings
from tests.broker import own_topics
from tests.cluster.extender_cluster import Cluster, settings_of
from tests.cluster.objects import PARTITIONS, Existing, delete_others, existing
from tests.cluster.roles import recent_logs
from tests.processes import until


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test failed, show what its roles logged: another machine may fail it only once."""
    report = yield
    if report.failed:
        report.sections.extend((f"log {name}", text) for name, text in recent_logs())
    return report


@pytest.fixture(scope="session")
def permanent(plane: ControlPlane) -> Existing:
    """The objects of the shared control plane before the first test."""
    return existing(plane)


@pytest.fixture
async def settings(
    broker: LocalKafka, plane: ControlPlane, permanent: Existing
) -> AsyncIterator[Settings]:
    """Topics and the name of a ConfigMap for this test. All objects that it created are deleted
    afterwards, so that a failed test fails no other."""
    kafka = own_topics(broker, PARTITIONS)
    await apply_topics(kafka)
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig(), config_name=kafka.topic_prefix)
    yield Settings(kafka=kafka, kubernetes=kubernetes)
    await until(lambda: delete_others(plane, permanent), 120)


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(**client_options(settings.kafka)) as producer:
        yield producer


@pytest.fixture
async def topics(asking_plane: ControlPlane, broker: LocalKafka) -> Settings:
    """Topics for this test, for the control plane whose scheduler asks an extender."""
    settings = settings_of(asking_plane, broker)
    await apply_topics(settings.kafka)
    return settings


@pytest.fixture
async def cluster(asking_plane: ControlPlane, topics: Settings) -> AsyncIterator[Cluster]:
    """That control plane, without a pod."""
    permanent = existing(asking_plane)
    async with AIOKafkaProducer(**client_options(topics.kafka)) as producer:
        yield Cluster(asking_plane, topics, producer)
    await until(lambda: delete_others(asking_plane, permanent), 120)
