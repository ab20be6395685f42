"""What doctor says of a policy in a file, and of nodes on a real broker that carry it or do not."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli.doctor_check import Check
from pipeline.cli.doctor_policy import Given, actuator, nodes, policy
from pipeline.cli.main import cli
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings, WorkerSettings
from pipeline.sources.compacted_writer import node_entry, open_producer, write
from pipeline.topics.nodes import NodeRecord

ON = {"colocation-config": json.dumps({"enable": True})}


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    found = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"doctor-{uuid4().hex[:8]}",
        partitions=2,
    )
    asyncio.run(apply_topics(found))
    return found


def settings(
    folder: Path, kafka: KafkaSettings | None = None, data: dict[str, Any] | None = None
) -> Settings:
    """With a file that says this policy; nodes are in another."""
    file = folder / "policy.yaml"
    metadata = {"name": "slo-controller-config"}
    file.write_text(
        yaml.safe_dump({"kind": "ConfigMap", "metadata": metadata, "data": ON if data is None
                        else data})
    )  # fmt: skip
    worker = WorkerSettings(nodes_file=folder / "nodes.json", policy_file=file)
    return Settings(kafka=kafka or KafkaSettings(), worker=worker)


def put(kafka: KafkaSettings, source: str, *records: NodeRecord) -> None:
    async def written() -> None:
        async with open_producer(kafka, "test") as producer:
            await write(producer, kafka, source, map(node_entry, records))

    asyncio.run(written())


def carrying(name: str, data: dict[str, str] | None = None) -> NodeRecord:
    policies, _ = load_policies(ON if data is None else data)
    return with_policy(NodeRecord(node=name), policies)[0]


def look(of: Settings) -> tuple[Check, Check]:
    check, given = policy(of)
    return check, nodes(of, given)


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (ON, "ok", "policy.yaml; colocation is on"),
        ({}, "ok", "colocation is off"),
        ({"colocation-config": "{"}, "fail", "1 not in force: colocation-config: not JSON"),
        ({"cpu-burst-config": "[]"}, "fail", "cpu-burst-config: a list, not an object"),
        ({"colocation-config": {}}, "fail", "is not an object of texts"),
        (
            {"resource-threshold-config": '{"clusterStrategy":{"enable":true}}'},
            "warn",
            "1 hardly meant: resource-threshold-config: memoryEvictThresholdPercent is 70, below",
        ),
    ],
)
def test_a_policy_in_a_file_is_looked_at(
    tmp_path: Path, data: dict[str, Any], status: str, says: str
) -> None:
    check, _ = policy(settings(tmp_path, data=data))
    assert (check.status, says in check.found) == (status, True), check
    assert check.todo or status == "ok"


def test_where_there_is_no_api_server_nothing_fails(tmp_path: Path) -> None:
    for kubeconfig in (tmp_path / "none", unreachable(tmp_path)):
        of = Settings(kubernetes=KubernetesSettings(kubeconfig=kubeconfig))
        check, given = policy(of)
        assert (check.status, given) == ("unknown", None)
        assert check.found.startswith("not looked at: ")


def unreachable(folder: Path) -> Path:
    """A kubeconfig of a server that is away."""
    file = folder / "kubeconfig"
    name = {"name": "a"}
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [name | {"cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [name | {"context": {"cluster": "a", "user": "a"}}],
        "users": [name | {"user": {}}],
    }
    file.write_text(yaml.safe_dump(tree))
    return file


def test_nodes_that_carry_the_policy_are_told_from_those_that_do_not(
    tmp_path: Path, kafka: KafkaSettings
) -> None:
    of = settings(tmp_path, kafka)
    assert look(of)[1].status == "warn"
    assert "start a worker with worker.nodes_file" in look(of)[1].todo
    put(kafka, "file", carrying("n1"), carrying("n2"))
    assert look(of)[1] == Check(
        "nodes", "ok", "0 from the cluster, 2 from a file; all carry the policy"
    )
    put(kafka, "file", NodeRecord(node="n2", labels={"a": "b"}))
    found = look(of)[1]
    assert (found.status, found.found) == ("fail", "1 of 2 do not carry the policy: n2")
    # What is not in force can be compared with nothing.
    found = look(settings(tmp_path, kafka, {"colocation-config": "{"}))[1]
    assert (found.status, "could not be compared" in found.found) == ("ok", True)
    put(kafka, "file", carrying("n2"))
    put(kafka, "cluster", NodeRecord(node="n3"))
    found = look(of)[1]
    assert found.status == "warn"
    assert "one source" in found.todo


def test_of_nobody_who_speaks_of_nodes_one_is_told(kafka: KafkaSettings) -> None:
    found = nodes(Settings(kafka=kafka), None)
    assert (found.status, found.found) == ("warn", "0 from the cluster, 0 from a file")
    assert "start springtide watcher" in found.todo


def test_the_command_ends_with_1_where_the_policy_is_broken(
    tmp_path: Path, kafka: KafkaSettings
) -> None:
    of = settings(tmp_path, kafka, {"colocation-config": "{"})
    config = tmp_path / "springtide.yaml"
    config.write_text(
        yaml.safe_dump({
            "kafka": {
                "bootstrap_servers": kafka.bootstrap_servers,
                "topic_prefix": kafka.topic_prefix,
                "partitions": 2,
            },
            "worker": {
                "nodes_file": str(of.worker.nodes_file),
                "policy_file": str(of.worker.policy_file),
            },
        })
    )  # fmt: skip
    result = CliRunner().invoke(cli, ["--config", str(config), "doctor", "--json"])
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert [name for name, check in checks.items() if check["status"] == "fail"] == ["policy"]
    assert checks["nodes"]["status"] == "warn"


@pytest.mark.parametrize(
    ("holder", "annotations", "status", "says"),
    [
        ("a-1", {"springtide/offered": "x"}, "ok", "a-1 leads; 1 Nodes offer"),
        ("", {}, "ok", "no Node offers anything"),
        ("", {"springtide/offered": "x"}, "fail", "1 Nodes offer Mid or Batch, and no actuator"),
    ],
)
def test_nobody_takes_back_what_nodes_offer(
    kafka: KafkaSettings,
    tmp_path: Path,
    holder: str,
    annotations: dict[str, str],
    status: str,
    says: str,
) -> None:
    put(kafka, "cluster", NodeRecord(node="n1", annotations=annotations), NodeRecord(node="n2"))
    check = actuator(settings(tmp_path, kafka), Given("cluster", None, "w-1", holder))
    assert check is not None
    assert (check.status, says in check.found) == (status, True)


def test_without_a_cluster_nothing_is_said_of_an_actuator(tmp_path: Path) -> None:
    assert actuator(settings(tmp_path), Given("file", None)) is None
