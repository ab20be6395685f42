"""Doctor checks a policy file, and whether nodes on a real broker carry the policy."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli import doctor_feeds
from pipeline.cli.doctor_check import Check
from pipeline.cli.doctor_feeds import check_dead_letters, check_deleted_nodes
from pipeline.cli.doctor_policy import (
    PolicyState,
    check_actuator,
    check_node_usage,
    check_nodes,
    check_policy,
)
from pipeline.cli.doctor_relief import check_evictor, check_planner, check_relief
from pipeline.cli.main import cli
from pipeline.errors import UndecodableRecordError
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings, WorkerSettings
from pipeline.sources.compacted_writer import heartbeat_entry, node_entry, open_producer, write
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.dead_letters import dead_letter
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import (
    ACTIONS,
    DEAD_LETTERS,
    EVICTION_PLANS,
    NODE_STATE,
    NODES,
    SAMPLES,
)
from tests.broker import send
from tests.extender.relief_world import ALERT
from tests.processes import eventually
from tests.table.records import node_state

ON = {"colocation-config": json.dumps({"enable": True})}
NO_VALUES: Any = [("source", None), ("topic", None), ("error", None)]
"""Headers without a value, which Kafka allows."""


@pytest.fixture
def kafka(kafka: KafkaSettings) -> KafkaSettings:
    asyncio.run(apply_topics(kafka))
    return kafka


def settings(
    folder: Path, kafka: KafkaSettings | None = None, data: dict[str, Any] | None = None
) -> Settings:
    """Return settings with a policy file and a nodes file."""
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


def beat(kafka: KafkaSettings) -> None:
    """Write the heartbeat of a watcher."""

    async def written() -> None:
        async with open_producer(kafka, "test") as producer:
            await write(producer, kafka, "cluster", [heartbeat_entry(time.time())])

    asyncio.run(written())


def carrying(name: str, data: dict[str, str] | None = None) -> NodeRecord:
    policies, _ = load_policies(ON if data is None else data)
    return with_policy(NodeRecord(node=name), policies)[0]


def run_checks(configured: Settings) -> tuple[Check, Check]:
    check, state = check_policy(configured)
    return check, check_nodes(configured, state)


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (ON, "ok", "policy.yaml; colocation is on"),
        ({}, "ok", "colocation is off"),
        ({"colocation-config": "{"}, "fail", "1 not in force: colocation-config: not JSON"),
        ({"cpu-burst-config": "[]"}, "fail", "cpu-burst-config: a list, not an object"),
        ({"colocation-config": {}}, "fail", "is not an object of strings"),
        ({"resource-threshold-config": '{"clusterStrategy":{"enable":true}}'}, "warn",
         "1 suspicious values: resource-threshold-config: memoryEvictThresholdPercent is 70"),
    ],
)  # fmt: skip
def test_policy_file_is_checked(
    tmp_path: Path, data: dict[str, Any], status: str, says: str
) -> None:
    check, _ = check_policy(settings(tmp_path, data=data))
    assert (check.status, says in check.found) == (status, True), check
    assert check.todo or status == "ok"


def test_policy_is_unknown_without_an_api_server(tmp_path: Path) -> None:
    for kubeconfig in (tmp_path / "none", unreachable(tmp_path)):
        of = Settings(kubernetes=KubernetesSettings(kubeconfig=kubeconfig))
        check, state = check_policy(of)
        assert (check.status, state) == ("unknown", None)
        assert check.found.startswith("not checked: ")


def unreachable(folder: Path) -> Path:
    """Write a kubeconfig of an unreachable server."""
    file = folder / "kubeconfig"
    name = {"name": "a"}
    tree = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [name | {"cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [name | {"context": {"cluster": "a", "user": "a"}}],
        "users": [name | {"user": {}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(tree))
    return file


def test_nodes_without_the_policy_are_listed(tmp_path: Path, kafka: KafkaSettings) -> None:
    of = settings(tmp_path, kafka)
    assert run_checks(of)[1].status == "warn"
    assert "start a worker with worker.nodes_file" in run_checks(of)[1].todo
    put(kafka, "file", carrying("n1"), carrying("n2"))
    assert run_checks(of)[1] == Check(
        "nodes", "ok", "0 from the cluster, 2 from a file; all carry the policy"
    )
    put(kafka, "file", NodeRecord(node="n2", labels={"a": "b"}))
    found = run_checks(of)[1]
    assert (found.status, found.found) == ("fail", "1 of 2 do not carry the policy: n2")
    # A policy that is not in force cannot be compared.
    found = run_checks(settings(tmp_path, kafka, {"colocation-config": "{"}))[1]
    assert (found.status, "could not be compared" in found.found) == ("ok", True)
    put(kafka, "file", carrying("n2"))
    put(kafka, "cluster", NodeRecord(node="n3"))
    found = run_checks(of)[1]
    assert (found.status, "one source" in found.todo) == ("warn", True)


def test_missing_node_records_are_a_warning(kafka: KafkaSettings) -> None:
    found = check_nodes(Settings(kafka=kafka), None)
    assert (found.status, found.found) == ("warn", "0 from the cluster, 0 from a file")
    assert "start springtide watcher" in found.todo


LED = PolicyState("cluster", None, leader="watcher-1")


def test_a_record_that_somebody_else_wrote_over_a_node_is_named(kafka: KafkaSettings) -> None:
    beat(kafka)
    put(kafka, "cluster", carrying("n1"), carrying("n2"))
    put(kafka, "fleet", carrying("simulated"))
    asyncio.run(send(kafka, NODES, ("n1", b"\xff{"), headers=NO_VALUES))
    check = check_nodes(Settings(kafka=kafka), LED)
    assert (check.status, check.found) == (
        "warn", "1 record(s) of springtide.nodes are of no watcher or worker: n1",
    )  # fmt: skip
    assert check.todo.startswith("restart the watcher: it writes those of its Nodes again; ")
    put(kafka, "cluster", carrying("n1"))
    assert check_nodes(Settings(kafka=kafka), LED).status == "ok"


def test_records_that_workers_refused_are_counted(kafka: KafkaSettings) -> None:
    assert check_dead_letters(kafka) is None
    refused = UndecodableRecordError("NodeRecord cannot be decoded: \x1b[2J")
    for count in range(3):
        letter = dead_letter("nodes", 0, count, b"n1", b"\xff{", refused)
        asyncio.run(send(kafka, DEAD_LETTERS, ("n1", letter.value), headers=letter.headers))
    check = check_dead_letters(kafka)
    assert check is not None
    assert (check.status, check.found) == (
        "warn", "workers and extenders refused 3 records in the last hour, lately of nodes: "
        "NodeRecord cannot be decoded: \\x1b[2J",
    )  # fmt: skip
    assert "SpringtideDeadLetters" in check.todo
    asyncio.run(send(kafka, DEAD_LETTERS, ("n1", b"x"), headers=NO_VALUES))
    check = check_dead_letters(kafka)
    assert check is not None
    assert "4 records in the last hour, lately of an unknown topic" in check.found


def test_a_watcher_of_a_cluster_without_nodes_is_ok(kafka: KafkaSettings) -> None:
    beat(kafka)
    assert check_nodes(Settings(kafka=kafka), LED) == Check(
        "nodes", "ok", "a watcher follows a cluster without Nodes; watcher-1 leads"
    )


def test_a_leading_watcher_of_another_prefix_is_reported(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_feeds, "HEARTBEAT_SECONDS", -1.0)
    put(kafka, "cluster", carrying("n1"))
    found = check_nodes(Settings(kafka=kafka), LED)
    assert (found.status, "compare kafka.topic_prefix" in found.todo) == ("warn", True)


def test_a_watcher_of_fresh_topics_gets_time_for_its_first_heartbeat(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = SimpleNamespace(sleep=lambda _: beat(kafka), time=time.time)
    monkeypatch.setattr(doctor_feeds, "time", paused)
    put(kafka, "cluster", carrying("n1"))
    found = check_nodes(Settings(kafka=kafka), LED)
    assert (found.status, "watcher-1 leads" in found.found) == ("ok", True)


def test_nodes_without_an_exporter_are_named(kafka: KafkaSettings) -> None:
    assert check_node_usage(Settings(kafka=kafka)) is None
    put(kafka, "cluster", carrying("n1"), carrying("n2"), carrying("n3"))
    states = [
        ("n1", f'{{"as_of": "{format_time(time.time() - 40)}", "window_seconds": 30}}'),
        ("n2", f'{{"as_of": "{format_time(time.time() - 900)}", "window_seconds": 30}}'),
    ]
    asyncio.run(send(kafka, NODE_STATE, *((node, text.encode()) for node, text in states)))
    found = check_node_usage(Settings(kafka=kafka))
    assert found is not None
    assert (found.status, found.found) == ("warn", "2 of 3 nodes have none: n2, n3")
    assert "start springtide exporter" in found.todo
    stray = f'{{"as_of": "{format_time(time.time())}", "window_seconds": 30}}'
    asyncio.run(send(kafka, NODE_STATE, ("vm", stray.encode())))
    found = check_node_usage(Settings(kafka=kafka))
    assert found is not None
    assert found.found.endswith("no node has the name under which usage arrives: vm")
    assert "exporter.node_name" in found.todo


def test_deleted_nodes_that_still_send_samples_are_named(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kafka, "cluster", carrying("n1"), carrying("n2"), carrying("n3"))
    asyncio.run(send(kafka, SAMPLES, *((node, b"window") for node in ("n1", "n2", "n3"))))
    assert check_deleted_nodes(kafka) is None
    asyncio.run(send(kafka, NODES, ("n1", None), ("n2", None)))
    assert check_deleted_nodes(kafka) is None  # their last windows
    monkeypatch.setattr(doctor_feeds, "_DEAD_SECONDS", 0)
    time.sleep(0.01)
    asyncio.run(send(kafka, SAMPLES, ("n2", b"window")))
    # The broker may still be ending the transaction of `put`: tombstones are read after that.
    assert eventually(lambda: check_deleted_nodes(kafka))
    found = check_deleted_nodes(kafka)
    assert found is not None
    assert (found.status, "drop the samples of n2: deleted" in found.found) == ("warn", True)


def test_doctor_exits_with_1_for_an_invalid_policy(tmp_path: Path, kafka: KafkaSettings) -> None:
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
    result = CliRunner().invoke(cli, ["--config", str(config), "doctor", "-o", "json"])
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
def test_missing_actuator_fails_while_nodes_offer(
    kafka: KafkaSettings,
    tmp_path: Path,
    holder: str,
    annotations: dict[str, str],
    status: str,
    says: str,
) -> None:
    put(kafka, "cluster", NodeRecord(node="n1", annotations=annotations), NodeRecord(node="n2"))
    check = check_actuator(settings(tmp_path, kafka), PolicyState("cluster", None, "w-1", holder))
    assert check is not None
    assert (check.status, says in check.found) == (status, True)


@pytest.mark.parametrize(
    ("holder", "hot", "status", "says"),
    [
        ("p-1", 1, "ok", "p-1 leads; 1 nodes are hot"),
        ("", 0, "ok", "no planner leads; 0 nodes are hot"),
        ("", 4, "warn", "4 nodes are hot, and no planner leads to relieve them: h0, h1, h2, ..."),
    ],
)
def test_hot_nodes_need_a_planner(
    kafka: KafkaSettings, holder: str, hot: int, status: str, says: str
) -> None:
    state = node_state("cool")
    states = [("cool", encode_json(state)), ("gone", None), ("bad", b"{")]
    for number in range(hot):
        hot_state = msgspec.structs.replace(state, node=f"h{number}", alerts=(ALERT,))
        states.append((f"h{number}", encode_json(hot_state)))
    asyncio.run(send(kafka, NODE_STATE, *states))
    check = check_planner(kafka, holder)
    assert (check.status, check.found) == (status, says)


@pytest.mark.parametrize(
    ("holder", "answered", "status", "says"),
    [
        ("e-1", ["old", "new"], "ok", "e-1 leads; 2 plans ended in the last hour"),
        ("", ["old", "new"], "ok", "no evictor leads; 2 plans ended in the last hour"),
        ("e-1", ["new"], "warn", "e-1 leads; 1 of 2 plans of the last hour have no action: old"),
        ("", [], "warn", "no evictor leads; 2 of 2 plans of the last hour have no action: new"),
    ],
)
def test_plans_need_an_evictor(
    kafka: KafkaSettings, holder: str, answered: list[str], status: str, says: str
) -> None:
    """Plans that have not ended may still get their answer."""
    now = time.time()
    plans = [("n", None), ("n", b"{")]
    for name, left in (("old", -900.0), ("new", -60.0), ("valid", 60.0)):
        plan = EvictionPlanRecord(
            node="n", id=name, at=format_time(now + left - 300),
            valid_until=format_time(now + left), planner="planner", why="hot", pods=(),
        )  # fmt: skip
        plans.append(("n", encode_json(plan)))
    actions = [("n", None), ("n", b'{"actuator": "evictor", "plan": 7}')]
    for name in answered:
        action = ActionRecord(
            node="n", at=format_time(now), actuator="evictor", action="evict",
            outcome="observed", why="", plan=name,
        )  # fmt: skip
        actions.append(("n", encode_json(action)))
    asyncio.run(send(kafka, EVICTION_PLANS, *plans))
    asyncio.run(send(kafka, ACTIONS, *actions))
    check = check_evictor(kafka, holder, now)
    assert (check.status, check.found) == (status, says)


def test_planner_and_evictor_are_not_checked_without_a_cluster() -> None:
    assert [*check_relief(KafkaSettings(), None, None, time.time())] == []


def test_actuator_is_not_checked_without_a_cluster(tmp_path: Path) -> None:
    assert check_actuator(settings(tmp_path), PolicyState("file", None)) is None
