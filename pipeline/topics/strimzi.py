"""Topics and users as custom resources of Strimzi, the Kafka operator for Kubernetes.

`springtide topics strimzi` prints them. Schema: `kafka.strimzi.io/v1`, of Strimzi 0.49 or later.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pipeline.topics.access import (
    ROLES,
    Resource,
    Role,
    operations_by_resource,
    rights_of,
    user_of,
)
from pipeline.topics.registry import TOPICS, Topic

API_VERSION: Final = "kafka.strimzi.io/v1"
_RESOURCES: Final[Mapping[Resource, str]] = {
    "topic": "topic", "group": "group", "transactional-id": "transactionalId",
}  # fmt: skip

Object = dict[str, Any]


def kafka_topic(topic: Topic, cluster: str, prefix: str, partitions: int, replicas: int) -> Object:
    """Return the KafkaTopic of a topic in the Kafka cluster of this name."""
    full_name = topic.full_name(prefix)
    return {
        "apiVersion": API_VERSION,
        "kind": "KafkaTopic",
        "metadata": _metadata(_object_name(full_name), cluster),
        "spec": {
            "topicName": full_name,
            "partitions": topic.partition_count(partitions),
            "replicas": replicas,
            "config": dict(topic.config(replicas)),
        },
    }


def kafka_user(role: Role, cluster: str, prefix: str, group: str) -> Object:
    """Return the KafkaUser of a role, with its rights and no others, and a password (SCRAM) that
    the operator makes."""
    rights = operations_by_resource(rights_of(role, prefix, group))
    acls = [
        {
            "resource": {"type": _RESOURCES[resource], "name": name, "patternType": "literal"},
            "operations": list(operations),
        }
        for (_, resource, name), operations in rights.items()
    ]
    spec: Object = {
        "authentication": {"type": "scram-sha-512"},
        "authorization": {"type": "simple", "acls": acls},
    }
    if role.bytes_per_second is not None:
        spec["quotas"] = {"producerByteRate": role.bytes_per_second}
    return {
        "apiVersion": API_VERSION,
        "kind": "KafkaUser",
        "metadata": _metadata(user_of(role.name), cluster),
        "spec": spec,
    }


def strimzi_objects(
    *, cluster: str, prefix: str, group: str, partitions: int, replicas: int
) -> Iterator[Object]:
    """Yield the custom resources of all topics, then of the users of all roles."""
    for topic in TOPICS:
        yield kafka_topic(topic, cluster, prefix, partitions, replicas)
    for role in ROLES.values():
        yield kafka_user(role, cluster, prefix, group)


def _metadata(name: str, cluster: str) -> Object:
    return {"name": name, "labels": {"strimzi.io/cluster": cluster}}


def _object_name(full_name: str) -> str:
    """A name that Kubernetes accepts: topics may have capitals, `_`, and parts that end in `-`."""
    parts = re.sub(r"[^a-z0-9.-]", "-", full_name.lower()).split(".")
    return ".".join(filter(None, (part.strip("-") for part in parts)))
