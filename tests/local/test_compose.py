"""deploy/kafka/compose.yaml against the settings of the local broker. No container is started:
this reads the file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.local.broker_properties import ClusterNode, server_properties
from pipeline.local.kafka_jars import KAFKA_VERSION
from pipeline.local.local_kafka import CLUSTER_ID
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import TOPICS

COMPOSE = Path(__file__).parents[2] / "deploy" / "kafka" / "compose.yaml"

# What must differ: addresses inside a container, where its data lie; and nobody has to tell one
# broker of a container from another on its port.
DIFFERENT = {"listeners", "log.dirs", "broker.rack"}


@pytest.fixture
def kafka() -> Any:
    return yaml.safe_load(COMPOSE.read_text())["services"]["kafka"]


def as_variable(setting: str) -> str:
    return "KAFKA_" + setting.upper().replace(".", "_")


def test_compose_file_has_every_setting_of_the_local_broker(kafka: Any) -> None:
    node = ClusterNode(1, {1: 9093})
    local = server_properties(port=9092, node=node, log_dir=Path("/"), identity="")
    expected = {as_variable(key): value for key, value in local.items() if key not in DIFFERENT}
    environment = kafka["environment"]
    assert {key: environment.get(key) for key in expected} == expected
    known = {*expected, *map(as_variable, DIFFERENT), "CLUSTER_ID", "KAFKA_HEAP_OPTS"}
    assert set(environment) <= known


def test_every_environment_value_is_text(kafka: Any) -> None:
    # Compose refuses booleans, and prints numbers in its own way.
    assert {type(value) for value in kafka["environment"].values()} == {str}


def test_compose_file_has_the_same_kafka_and_cluster_id(kafka: Any) -> None:
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert kafka["environment"]["CLUSTER_ID"] == CLUSTER_ID


def test_compose_file_publishes_ports_on_loopback_only(kafka: Any) -> None:
    assert kafka["ports"] == ["127.0.0.1:9092:9092"]
    assert kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:9092"
    assert "network_mode" not in kafka


def test_compose_file_keeps_data_in_a_volume(kafka: Any) -> None:
    assert kafka["environment"]["KAFKA_LOG_DIRS"] == "/var/lib/kafka/data"
    assert kafka["volumes"] == ["data:/var/lib/kafka/data"]
    assert "data" in yaml.safe_load(COMPOSE.read_text())["volumes"]


def test_topics_need_nothing_that_the_broker_of_the_compose_file_lacks(kafka: Any) -> None:
    broker, client = kafka["environment"], KafkaSettings()
    assert int(broker["KAFKA_NUM_PARTITIONS"]) == client.partitions
    replicas = int(broker["KAFKA_DEFAULT_REPLICATION_FACTOR"])
    assert replicas == client.replication_factor
    configs = [topic.config(replicas) for topic in TOPICS]
    assert {config["min.insync.replicas"] for config in configs} == {
        broker["KAFKA_MIN_INSYNC_REPLICAS"]
    }
    largest = max(int(config["max.message.bytes"]) for config in configs)
    assert int(broker["KAFKA_MESSAGE_MAX_BYTES"]) == largest
    assert int(broker["KAFKA_REPLICA_FETCH_MAX_BYTES"]) >= largest
