"""Topics and users of Strimzi and the ScaledObject of KEDA, as the chart renders them.

`test_operator_objects.py` lets a real API server check them.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.topics.strimzi import API_VERSION, strimzi_objects
from tests.deploy import kafka_files
from tests.deploy.helm import (
    CHART,
    DEFAULT_ROLES,
    helm,
    object_of,
    pods_of,
    rendered,
    with_values,
)
from tests.deploy.test_chart import settings_of
from tests.processes import ROOT

# Helm is built once, with the control plane.
pytestmark = [pytest.mark.plane, pytest.mark.timeout(1200)]

KEDA = ROOT / "deploy/kafka/keda.yaml"
STRIMZI = (
    "kafka.strimzi.enabled=true", "settings.kafka.replication_factor=3",
    "settings.kafka.bootstrap_servers=springtide-kafka-bootstrap.kafka.svc:9093",
)  # fmt: skip


def test_the_file_of_topics_and_users_is_as_it_is_written() -> None:
    assert kafka_files.PATH.read_text() == kafka_files.text(), "run make docs"


@pytest.mark.parametrize(
    ("cluster", "prefix", "worker", "partitions", "replicas"),
    [
        ("springtide", "springtide", "springtide-worker", 16, 3),
        ("events", "East_1", "w", 32, 1),
        ("1e3", "a..b-", "springtide", 1, 5),
    ],
)
def test_topics_and_users_are_those_of_the_command(
    cluster: str, prefix: str, worker: str, partitions: int, replicas: int
) -> None:
    objects = rendered(
        "kafka.strimzi.enabled=true", f"kafka.strimzi.cluster={cluster}",
        f"settings.kafka.topic_prefix={prefix}", f"settings.worker.id={worker}",
        f"settings.kafka.partitions={partitions}", f"settings.kafka.replication_factor={replicas}",
    )  # fmt: skip
    found = [bare(each) for each in objects if each["apiVersion"] == API_VERSION]
    expected = strimzi_objects(
        cluster=cluster, prefix=prefix, group=f"{prefix}.{worker}", partitions=partitions,
        replicas=replicas,
    )  # fmt: skip
    assert sorted(found, key=place) == sorted(map(bare, expected), key=place)


def place(given: Any) -> tuple[str, str]:
    return given["kind"], given["name"]


def bare(given: Any) -> Any:
    """The object without what the chart adds."""
    metadata = given["metadata"]
    cluster = metadata["labels"]["strimzi.io/cluster"]
    return {
        "kind": given["kind"],
        "name": metadata["name"],
        "cluster": cluster,
        "spec": given["spec"],
    }


def test_topics_outlive_the_release() -> None:
    """Strimzi deletes a topic with its KafkaTopic."""
    for each in rendered(*STRIMZI):
        if each["kind"] == "KafkaTopic":
            assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_roles_connect_by_the_secrets_that_strimzi_makes(tmp_path: Path) -> None:
    objects = rendered(*STRIMZI)
    users = {each["metadata"]["name"] for each in objects if each["kind"] == "KafkaUser"}
    # Strimzi's operator creates the topics.
    assert {*pods_of(objects)} == {*DEFAULT_ROLES}
    for role, pod in pods_of(objects).items():
        (container,) = pod["containers"]
        (secret,) = [
            each["valueFrom"]["secretKeyRef"]
            for each in container["env"]
            if each["name"] == "SPRINGTIDE_KAFKA_SASL_PASSWORD"
        ]
        kafka = settings_of(objects, role, tmp_path).kafka
        assert secret == {"name": kafka.sasl_username, "key": "password"}
        assert kafka.sasl_username in users
        assert (kafka.security_protocol, kafka.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
        authority = {"name": "kafka-ca", "secret": {"secretName": "springtide-cluster-ca-cert"}}
        assert authority in pod["volumes"]


def test_users_are_those_of_strimzi_whatever_their_secrets_are_called(tmp_path: Path) -> None:
    objects = rendered(
        *STRIMZI, "kafka.userSecret=copied-ROLE", "settings.kafka.sasl_username=other",
        "worker.keda.enabled=true",
    )  # fmt: skip
    kafka = settings_of(objects, "worker", tmp_path).kafka
    assert kafka.sasl_username == "springtide-worker"
    secrets = [each for each in objects if each["kind"] == "TriggerAuthentication"]
    assert secrets[0]["spec"]["secretTargetRef"][0]["name"] == "copied-worker"
    user = object_of(objects, "ConfigMap", "springtide-worker-kafka")["data"]
    assert user == {"username": "springtide-worker"}


def test_nothing_of_operators_comes_by_default() -> None:
    groups = ("kafka.strimzi.io/", "keda.sh/")
    assert not [each for each in rendered() if each["apiVersion"].startswith(groups)]


def test_workers_are_scaled_as_by_the_manifest() -> None:
    objects = rendered(*STRIMZI, "worker.keda.enabled=true", "worker.replicas=4")
    # Each upgrade would undo it, if the chart set a number.
    assert "replicas" not in object_of(objects, "StatefulSet", "springtide-worker")["spec"]
    for manifest in yaml.safe_load_all(KEDA.read_text()):
        found = object_of(objects, manifest["kind"], manifest["metadata"]["name"])
        for part in ("spec", "data"):
            assert found.get(part) == manifest.get(part)


def test_few_partitions_have_as_few_workers() -> None:
    """KEDA refuses a ScaledObject whose least is more than its most."""
    objects = rendered("worker.keda.enabled=true", "settings.kafka.partitions=1")
    spec = object_of(objects, "ScaledObject", "springtide-worker")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["fallback"]["replicas"]) == (
        1, 1, 1,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["minReplicas", "lagThreshold"])
def test_numbers_of_keda_are_not_null(name: str) -> None:
    """Templates write null as no value or as 0: KEDA would scale workers to 0, or at any lag."""
    refused = helm(
        "template", "springtide", str(CHART),
        *with_values(("worker.keda.enabled=true", f"worker.keda.{name}=null")),
    )  # fmt: skip
    assert (refused.returncode, f"missing property '{name}'" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("values", "sasl", "tls", "parameters"),
    [
        ((), "none", "disable", []),
        (("settings.kafka.security_protocol=SSL", "kafka.caSecret=ca", "kafka.userSecret=ROLE"),
         "none", "enable", ["cert", "key", "ca"]),
        (("settings.kafka.security_protocol=SASL_PLAINTEXT", "kafka.userSecret=ROLE",
          "settings.kafka.sasl_mechanism=PLAIN"), "plaintext", "disable", ["password"]),
    ],
)  # fmt: skip
def test_keda_connects_as_a_worker_does(
    values: tuple[str, ...], sasl: str, tls: str, parameters: list[str]
) -> None:
    objects = rendered("worker.keda.enabled=true", "worker.keda.minReplicas=3", *values)
    spec = object_of(objects, "ScaledObject", "springtide-worker")["spec"]
    (trigger,) = spec["triggers"]
    assert (trigger["metadata"]["sasl"], trigger["metadata"]["tls"]) == (sasl, tls)
    assert (spec["minReplicaCount"], spec["fallback"]["replicas"]) == (3, 3)
    known = [each["spec"] for each in objects if each["kind"] == "TriggerAuthentication"]
    targets = [target for each in known for target in each["secretTargetRef"]]
    assert [target["parameter"] for target in targets] == parameters
    assert ("authenticationRef" in trigger) == bool(parameters)
