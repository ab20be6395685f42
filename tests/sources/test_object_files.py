"""Node and Pod objects in files: all formats of kubectl, and invalid files and objects."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.clock import ManualClock
from pipeline.errors import InvalidRecordError, SettingsError
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed
from pipeline.metrics import REGISTRY
from pipeline.processors.policy.nodeslo_spec import slo_spec
from pipeline.settings import KafkaSettings, Settings, WorkerSettings
from pipeline.sources import object_files
from pipeline.sources.object_files import (
    POLL_SECONDS,
    Kind,
    publish_files,
    read_at_start,
    read_objects,
    run_file_source,
)
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord

KAFKA = KafkaSettings(partitions=8)


def node(name: str, cpu: str = "4") -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu}}}


def pod(name: str, node: str = "n1", uid: str | None = None, cpu: str = "1") -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": uid or f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
    }


def listed(*items: Any, kind: str = "List") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "items": list(items), "metadata": {}}


def write(path: Path, tree: Any) -> Path:
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


# ---- formats


def without_kind(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != "kind"}


@pytest.mark.parametrize(
    "tree",
    [
        listed(node("n1"), node("n2")),
        listed(node("n1"), pod("a"), {"kind": "Service", "metadata": {}}, node("n2")),
        listed(without_kind(node("n1")), without_kind(node("n2")), kind="NodeList"),
        [node("n1"), node("n2")],
    ],
    ids=["List", "mixed List", "NodeList of the API", "array"],
)
def test_formats_of_nodes(tmp_path: Path, tree: Any) -> None:
    objects = read_objects(write(tmp_path / "f", tree), "Node")
    assert (list(objects.entries), objects.problems) == ([b"n1", b"n2"], ())


def test_single_object(tmp_path: Path) -> None:
    (entry,) = read_objects(write(tmp_path / "f", pod("a")), "Pod").entries.values()
    assert decode_json(PodRecord, entry.value or b"").requests.cpu_millicores == 1000
    assert (entry.key, entry.node) == (b"n1/uid-a", "n1")


def test_file_with_both_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "f", listed(node("n1"), pod("a"), pod("b", node="")))
    assert list(read_objects(path, "Node").entries) == [b"n1"]
    assert list(read_objects(path, "Pod").entries) == [b"n1/uid-a", b"/uid-b"]


@pytest.mark.parametrize("tree", [listed(), {"kind": "List", "items": None}, []])
def test_file_may_have_no_pods_but_must_have_a_node(tmp_path: Path, tree: Any) -> None:
    path = write(tmp_path / "f", tree)
    assert read_objects(path, "Pod").entries == {}
    with pytest.raises(InvalidRecordError, match="none of them a Node"):
        read_objects(path, "Node")


# ---- invalid files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"), ("apiVersion: v1\nkind: List\n", "not JSON.*YAML is not supported"),
        ('{"kind":"List","items":[{"kind":"Node"', "not JSON"),
        ('{"kind":"List","items":[]}garbage', "not JSON"), ("[" * 100_000, "not JSON"),
        ("{}", "no Kubernetes objects"), ("5", "no Kubernetes objects"),
        ('"x"', "no Kubernetes objects"), ('{"kind":"List","items":{}}', "no Kubernetes objects"),
        ('{"kind":5}', "no Kubernetes objects"),
        (json.dumps(listed(pod("a"), pod("b"))), "2 objects, none of them a Node"),
        (json.dumps(pod("a")), "none of them a Node"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        read_objects(write(tmp_path / "f", text), "Node")


def test_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b'{"kind":"\xff\xfe"}')
    for path, message in (
        ("none", r"cannot read .*No such file"), ("", "Is a directory"), ("b", "not JSON"),
    ):  # fmt: skip
        with pytest.raises(InvalidRecordError, match=message):
            read_objects(tmp_path / path, "Node")


# ---- invalid objects


def test_invalid_object_is_reported_and_others_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "f", listed(pod("a"), pod("bad", cpu="a lot"), pod("b")))
    objects = read_objects(path, "Pod")
    assert list(objects.entries) == [b"n1/uid-a", b"n1/uid-b"]
    (problem,) = objects.problems
    assert (problem.name, problem.identity, problem.file) == ("shop/bad", "uid-bad", path)
    assert "'a lot' is not a Kubernetes quantity" in problem.reason


@pytest.mark.parametrize(
    "item", [None, 5, "x", [], {"kind": "Pod"}, {"kind": "Pod", "metadata": 5}]
)
def test_unidentified_object_retains_all_records(tmp_path: Path, item: Any) -> None:
    objects = read_objects(write(tmp_path / "f", listed(pod("a"), item)), "Pod")
    assert [p.identity for p in objects.problems] == [""]
    # It may be any of the earlier pods, so none is removed.
    assert objects.retained_keys({b"n1/x": b"", b"n1/y": b""}) == {b"n1/x", b"n1/y"}


def test_duplicate_object_is_reported(tmp_path: Path) -> None:
    objects = read_objects(write(tmp_path / "f", listed(node("n1"), node("n1", cpu="8"))), "Node")
    assert [p.reason for p in objects.problems] == ["duplicate object"]
    record = decode_json(NodeRecord, objects.entries[b"n1"].value or b"")
    assert record.allocatable.cpu_millicores == 4000


# ---- publishing


class FakeProducer:
    """Stores the written records; delivers at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, bytes, bytes | None]] = []
        self.values: dict[tuple[str, bytes], bytes] = {}

    async def send_batches(
        self, topic: str, partition: int, records: list[Keyed], headers: Any
    ) -> list[Any]:
        assert headers == [("source", b"file")]
        for key, value in records:
            self.sent.append((topic, partition, key, value))
            if value is None:
                del self.values[topic, key]
            else:
                self.values[topic, key] = value
        return []


async def test_records_are_in_the_partition_of_their_node(tmp_path: Path) -> None:
    path = write(tmp_path / "f", listed(node("n1"), pod("a", "n1"), pod("b", "")))
    producer = FakeProducer()
    known: dict[Kind, dict[bytes, bytes]] = {"Node": {}, "Pod": {}}
    objects = [read_objects(path, "Node"), read_objects(path, "Pod")]
    assert await publish_files(KAFKA, producer, objects, known) == 3  # type: ignore[arg-type]
    assert [(topic, partition, key) for topic, partition, key, _ in producer.sent] == [
        ("springtide.nodes", partition_of("n1", 8), b"n1"),
        ("springtide.pods", partition_of("n1", 8), b"n1/uid-a"),
        ("springtide.pods", partition_of("", 8), b"/uid-b"),
    ]
    assert await publish_files(KAFKA, producer, objects, known) == 0  # type: ignore[arg-type]


async def test_deleted_objects_are_removed_and_invalid_objects_stay(tmp_path: Path) -> None:
    path = tmp_path / "f"
    producer = FakeProducer()
    known: dict[Kind, dict[bytes, bytes]] = {"Pod": {}}

    async def publish(*items: Any) -> set[bytes]:
        objects = [read_objects(write(path, listed(*items)), "Pod")]
        await publish_files(KAFKA, producer, objects, known)  # type: ignore[arg-type]
        assert known["Pod"] == {key: value for (_, key), value in producer.values.items()}
        return set(known["Pod"])

    assert await publish(pod("a"), pod("b"), pod("c")) == {b"n1/uid-a", b"n1/uid-b", b"n1/uid-c"}
    assert await publish(pod("a"), pod("b", cpu="bad")) == {b"n1/uid-a", b"n1/uid-b"}
    # A pod that moved has another key.
    assert await publish(pod("a", "n2"), pod("b")) == {b"n2/uid-a", b"n1/uid-b"}
    assert await publish() == set()


# ---- watching


class Watch:
    """A file source with a fake broker and a manual clock."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes, self.pods = tmp_path / "nodes.json", tmp_path / "pods.json"
        self.policy = tmp_path / "policy.yaml"
        self.producer, self.clock = FakeProducer(), ManualClock()
        self.before: dict[bytes, bytes] = {}
        worker = WorkerSettings(nodes_file=self.nodes, pods_file=self.pods)
        self.settings = Settings(kafka=KAFKA, worker=worker)

        async def read_back(*_: Any) -> dict[bytes, bytes]:
            return dict(self.before)

        async def require_topics(*_: Any) -> None:
            return None

        monkeypatch.setattr(object_files, "read_back", read_back)
        monkeypatch.setattr(object_files, "require_topics", require_topics)

    @asynccontextmanager
    async def producers(self, kafka: KafkaSettings, client_id: str) -> AsyncIterator[Any]:
        yield self.producer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            run_file_source(self.settings, self.nodes, self.pods, self.clock, self.producers)
        )
        await self.polls(0)
        try:
            yield
        finally:
            assert not task.done() or task.result()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def polls(self, number: int) -> None:
        await self._until_idle()
        for _ in range(number):
            await self.clock.advance(POLL_SECONDS)
            await self._until_idle()

    async def _until_idle(self) -> None:
        """Wait until the thread that reads files has ended and the source sleeps."""
        async with asyncio.timeout(30):
            while all(wake.done() for *_, wake in self.clock.sleepers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def keys(self) -> set[bytes]:
        return {key for _, key in self.producer.values}


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A source with files of the node n1 and the pod a."""
    watch = Watch(tmp_path, monkeypatch)
    write(watch.nodes, listed(node("n1")))
    write(watch.pods, listed(pod("a")))
    return watch


async def test_changed_files_are_read_when_unchanged_for_a_poll(watch: Watch) -> None:
    async with watch.running():
        assert watch.keys() == {b"n1", b"n1/uid-a"}
        await watch.polls(3)
        assert len(watch.producer.sent) == 2, "unchanged files cause no writes"

        write(watch.pods, listed(pod("b")))
        await watch.polls(1)
        assert watch.keys() == {b"n1", b"n1/uid-a"}, "the file may be incomplete"
        await watch.polls(1)
        assert watch.keys() == {b"n1", b"n1/uid-b"}


async def test_unreadable_file_changes_nothing_until_it_is_complete(watch: Watch) -> None:
    async with watch.running():
        complete = json.dumps(listed(pod("a"), pod("b")))
        for text in (complete[: len(complete) // 2], ""):
            write(watch.pods, text)
            await watch.polls(4)
        watch.pods.unlink()
        await watch.polls(4)
        assert watch.keys() == {b"n1", b"n1/uid-a"}
        write(watch.pods, complete)
        await watch.polls(2)
        assert watch.keys() == {b"n1", b"n1/uid-a", b"n1/uid-b"}


async def test_replacement_with_equal_size_and_time_is_noticed(watch: Watch) -> None:
    async with watch.running():
        before = watch.pods.stat()
        other = write(watch.pods.with_name("other"), listed(pod("b")))
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.rename(watch.pods)
        await watch.polls(2)
        assert watch.keys() == {b"n1", b"n1/uid-b"}


async def test_objects_deleted_before_the_start_are_removed(watch: Watch) -> None:
    watch.before = {b"n0": b"old"}
    watch.producer.values = {("springtide.nodes", b"n0"): b"old"}
    watch.pods = None  # type: ignore[assignment]
    async with watch.running():
        assert (watch.keys(), watch.producer.sent[0][2:]) == ({b"n1"}, (b"n0", None))


async def test_unreadable_file_at_start_is_a_settings_error(watch: Watch) -> None:
    watch.pods.unlink()
    arguments = (watch.settings, watch.nodes, watch.pods, watch.clock, watch.producers)
    with pytest.raises(SettingsError, match=r"worker\.pods_file: cannot read") as caught:
        await run_file_source(*arguments)
    assert caught.value.key == "worker.pods_file"
    assert "kubectl get pods -A -o json" in str(caught.value.hint)
    write(watch.pods, "kind: List")
    with pytest.raises(SettingsError, match="YAML is not supported"):
        await run_file_source(*arguments)
    assert watch.producer.sent == []


# ---- policy


def config_map(**sections: Any) -> str:
    data = {
        key.replace("_", "-"): part if isinstance(part, str) else json.dumps(part)
        for key, part in sections.items()
    }
    name = {"name": "slo-controller-config"}
    return yaml.safe_dump({"kind": "ConfigMap", "metadata": name, "data": data})


@pytest.fixture
def policy_watch(watch: Watch) -> Watch:
    """A source with one node and a policy file that enables colocation."""
    worker = WorkerSettings(nodes_file=watch.nodes, policy_file=watch.policy)
    watch.settings = Settings(kafka=KAFKA, worker=worker)
    watch.pods = None  # type: ignore[assignment]
    watch.policy.write_text(config_map(colocation_config={"enable": True}))
    return watch


def in_force(watch: Watch, name: bytes = b"n1") -> NodeRecord:
    return decode_json(NodeRecord, watch.producer.values["springtide.nodes", name])


def policy_problems() -> tuple[float | None, float | None]:
    """Problems whose value is in force, and the others."""
    in_force, ignored = (
        REGISTRY.get_sample_value("springtide_policy_problems", {"in_force": value})
        for value in ("true", "false")
    )
    return in_force, ignored


async def test_nodes_carry_the_policy_and_follow_its_edits(policy_watch: Watch) -> None:
    async with policy_watch.running():
        assert in_force(policy_watch).overcommit == Overcommit(buffer_percent=10)
        assert slo_spec(in_force(policy_watch)) is not None
        written = len(policy_watch.producer.sent)
        edited = {"enable": True, "midUnallocatedPercent": 20}
        policy_watch.policy.write_text(config_map(colocation_config=edited))
        await policy_watch.polls(2)
        assert in_force(policy_watch).overcommit == Overcommit(
            mid_unallocated_percent=20, buffer_percent=10
        )
        # Later nodes have it, and nothing is written twice.
        write(policy_watch.nodes, listed(node("n1"), node("n2")))
        await policy_watch.polls(3)
        assert in_force(policy_watch, b"n2").overcommit == Overcommit(
            mid_unallocated_percent=20, buffer_percent=10
        )
        assert len(policy_watch.producer.sent) == written + 2


@pytest.mark.parametrize(
    "invalid", ["kind: [", "", config_map(colocation_config="{"), "a: b", "a: 2024-02-30", None],
    ids=["invalid YAML", "empty", "invalid JSON", "no ConfigMap", "invalid date", "deleted"],
)  # fmt: skip
async def test_invalid_edit_keeps_the_last_valid_policy_and_is_counted(
    policy_watch: Watch, invalid: str | None
) -> None:
    async with policy_watch.running():
        assert policy_problems() == (0, 0)
        valid = in_force(policy_watch)
        if invalid is None:
            policy_watch.policy.unlink()
        else:
            policy_watch.policy.write_text(invalid)
        await policy_watch.polls(2)
        assert (in_force(policy_watch), policy_problems()) == (valid, (0, 1))
        # A new node has the policy in force.
        write(policy_watch.nodes, listed(node("n1"), node("n2")))
        await policy_watch.polls(2)
        assert in_force(policy_watch, b"n2").overcommit == valid.overcommit
        policy_watch.policy.write_text(config_map(colocation_config={"enable": False}))
        await policy_watch.polls(2)
        assert (in_force(policy_watch).overcommit, policy_problems()) == (None, (0, 0))


async def test_policy_is_followed_while_nodes_are_unreadable(policy_watch: Watch) -> None:
    async with policy_watch.running():
        write(policy_watch.nodes, "{")
        await policy_watch.polls(3)
        assert in_force(policy_watch).overcommit is not None
        policy_watch.policy.write_text(config_map(colocation_config={"enable": False}))
        await policy_watch.polls(3)
        assert in_force(policy_watch).overcommit is None


async def test_invalid_policy_at_start_keeps_published_policy(policy_watch: Watch) -> None:
    async with policy_watch.running():
        before = in_force(policy_watch)
    policy_watch.before = {b"n1": encode_json(before)}
    policy_watch.policy.write_text(config_map(colocation_config="{"))
    async with policy_watch.running():
        assert in_force(policy_watch) == before
    # The record on the topic may be from another release.
    policy_watch.before = {b"n1": b'{"version":2}'}
    async with policy_watch.running():
        assert in_force(policy_watch).overcommit is None


async def test_nodes_carry_the_thresholds_of_a_descheduler_configuration(
    policy_watch: Watch,
) -> None:
    def write_policy(thresholds: Any) -> None:
        config = [{"name": "LowNodeLoad", "args": {"highThresholds": thresholds}}]
        tree = {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [{"pluginConfig": config}],
        }  # fmt: skip
        policy = config_map(colocation_config={"enable": True})
        policy_watch.policy.write_text(f"{policy}---\n{json.dumps(tree)}")

    def high() -> Any:
        policy = in_force(policy_watch).hot_nodes
        return policy and policy.high_percent

    async with policy_watch.running():
        assert high() is None
        write_policy({"cpu": 75})
        await policy_watch.polls(2)
        assert high() == {"cpu": 75}
        write_policy({"cpu": -1})
        await policy_watch.polls(2)
        assert (high(), policy_problems()) == ({"cpu": 75}, (2, 1))
        policy_watch.policy.write_text(config_map(colocation_config={"enable": True}))
        await policy_watch.polls(2)
        assert (high(), policy_problems()) == ({"cpu": 75}, (0, 0))
        write_policy({})
        await policy_watch.polls(2)
        assert high() is None
        assert in_force(policy_watch).overcommit is not None


async def test_contradiction_with_extender_is_counted(policy_watch: Watch) -> None:
    rules = {"clusterStrategy": {"enable": True}}
    policy_watch.policy.write_text(config_map(resource_threshold_config=rules))
    async with policy_watch.running():
        assert policy_problems() == (1, 0)


def test_policy_file_without_config_map_is_a_settings_error(tmp_path: Path) -> None:
    for text in ("a: b", "kind: ["):
        (tmp_path / "policy").write_text(text)
        with pytest.raises(SettingsError, match=r"worker\.policy_file") as caught:
            read_at_start({}, tmp_path / "policy")
        assert caught.value.key == "worker.policy_file"
    with pytest.raises(SettingsError, match="cannot read"):
        read_at_start({}, tmp_path / "none")
    (tmp_path / "policy").write_text(config_map(colocation_config="{"))
    assert read_at_start({}, tmp_path / "policy") == []
