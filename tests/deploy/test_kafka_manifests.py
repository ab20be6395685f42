"""The manifests of deploy/kafka agree with topics, rights and settings.

`test_operator_objects.py` lets a real API server check them.
"""

from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli.topics import command
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.access import ROLES, rights_of
from pipeline.topics.registry import MAX_RECORD_BYTES, SAMPLES, TOPICS
from tests.processes import ROOT

KAFKA = ROOT / "deploy/kafka"
RESOURCES = {"topic": "topic", "group": "group", "transactionalId": "transactional-id"}


def objects(name: str) -> list[Any]:
    return list(yaml.safe_load_all((KAFKA / name).read_text()))


def of_kind(name: str, kind: str) -> list[Any]:
    return [each for each in objects(name) if each["kind"] == kind]


def test_topics_and_users_are_as_the_command_prints_them() -> None:
    file = KAFKA / "strimzi/topics-and-users.yaml"
    comment, text = file.read_text().split("\n", 1)
    flags = comment.partition("springtide topics ")[2].partition("`")[0].split()
    assert CliRunner().invoke(command, flags).output == text


def test_every_topic_of_the_registry_is_an_object() -> None:
    topics = of_kind("strimzi/topics-and-users.yaml", "KafkaTopic")
    specs = {each["spec"]["topicName"]: each["spec"] for each in topics}
    assert [*specs] == [topic.full_name("springtide") for topic in TOPICS]
    for topic in TOPICS:
        spec = specs[topic.full_name("springtide")]
        assert spec["partitions"] == topic.partition_count(KafkaSettings().partitions)
        assert spec["config"] == topic.config(spec["replicas"])


def test_users_have_the_rights_of_roles_and_no_others() -> None:
    users = of_kind("strimzi/topics-and-users.yaml", "KafkaUser")
    granted = {
        (
            user["metadata"]["name"],
            RESOURCES[acl["resource"]["type"]],
            acl["resource"]["name"],
            each,
        )
        for user in users
        for acl in user["spec"]["authorization"]["acls"]
        for each in acl["operations"]
    }
    group = Settings().worker_group
    expected = {r for role in ROLES.values() for r in rights_of(role, "springtide", group)}
    assert granted == expected
    limited = {user["metadata"]["name"] for user in users if "quotas" in user["spec"]}
    assert limited == {"springtide-exporter", "springtide-node-actuator", "springtide-node-agent"}


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("East_1", "east-1.samples"), ("east_", "east.samples"), ("a..b-", "a.b.samples")],
)
def test_a_topic_whose_name_is_no_name_of_kubernetes_gets_another(prefix: str, name: str) -> None:
    printed = CliRunner().invoke(command, ["strimzi", "--topic-prefix", prefix]).output
    first = next(yaml.safe_load_all(printed))
    assert first["metadata"]["name"] == name
    assert first["spec"]["topicName"] == f"{prefix}.samples"


def test_the_cluster_suits_the_topics() -> None:
    (kafka,) = of_kind("strimzi/kafka.yaml", "Kafka")
    config = kafka["spec"]["kafka"]["config"]
    assert config["message.max.bytes"] == config["replica.fetch.max.bytes"] == MAX_RECORD_BYTES
    assert config["auto.create.topics.enable"] is False
    named = {each["metadata"]["labels"]["strimzi.io/cluster"]
             for name in ("strimzi/kafka.yaml", "strimzi/topics-and-users.yaml")
             for each in objects(name) if each["kind"] != "Kafka"}  # fmt: skip
    assert named == {kafka["metadata"]["name"]}
    brokers = [each["spec"] for each in of_kind("strimzi/kafka.yaml", "KafkaNodePool")
               if "broker" in each["spec"]["roles"]]  # fmt: skip
    replicas = {each["spec"]["replicas"]
                for each in of_kind("strimzi/topics-and-users.yaml", "KafkaTopic")}  # fmt: skip
    assert replicas == {3}
    assert sum(pool["replicas"] for pool in brokers) >= 3


def test_workers_are_scaled_by_the_lag_of_their_group_and_never_beyond_partitions() -> None:
    (scaled,) = of_kind("keda.yaml", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["consumerGroup"] == Settings().worker_group
    assert trigger["metadata"]["topic"] == SAMPLES.full_name(KafkaSettings().topic_prefix)
    assert scaled["spec"]["maxReplicaCount"] == KafkaSettings().partitions
    assert scaled["spec"]["minReplicaCount"] > 0
    (names,) = of_kind("keda.yaml", "ConfigMap")
    users = {each["metadata"]["name"]
             for each in of_kind("strimzi/topics-and-users.yaml", "KafkaUser")}  # fmt: skip
    assert names["data"]["username"] in users
