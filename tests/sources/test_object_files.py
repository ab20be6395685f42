"""Node and Pod objects in files: every form that kubectl prints, every way a file can be bad."""

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
from pipeline.topics.overcommit_terms import Overcommit
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


# ---- forms


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
def test_forms_of_nodes(tmp_path: Path, tree: Any) -> None:
    objects = read_objects(write(tmp_path / "f", tree), "Node")
    assert list(objects.entries) == [b"n1", b"n2"]
    assert not objects.problems


def test_a_single_object(tmp_path: Path) -> None:
    objects = read_objects(write(tmp_path / "f", pod("a")), "Pod")
    (entry,) = objects.entries.values()
    assert entry.value is not None
    assert decode_json(PodRecord, entry.value).requests.cpu_millicores == 1000
    assert (entry.key, entry.node) == (b"n1/uid-a", "n1")


def test_one_file_for_both_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "f", listed(node("n1"), pod("a"), pod("b", node="")))
    assert list(read_objects(path, "Node").entries) == [b"n1"]
    assert list(read_objects(path, "Pod").entries) == [b"n1/uid-a", b"/uid-b"]


@pytest.mark.parametrize("tree", [listed(), {"kind": "List", "items": None}, []])
def test_a_cluster_may_have_no_pods_but_not_no_nodes(tmp_path: Path, tree: Any) -> None:
    path = write(tmp_path / "f", tree)
    assert read_objects(path, "Pod").entries == {}
    with pytest.raises(InvalidRecordError, match="none of them a Node"):
        read_objects(path, "Node")


# ---- bad files


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("apiVersion: v1\nkind: List\n", "no JSON.*YAML is not read"),
        ('{"kind":"List","items":[{"kind":"Node"', "no JSON"),
        ('{"kind":"List","items":[]}garbage', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "no Kubernetes objects"),
        ("5", "no Kubernetes objects"),
        ('"x"', "no Kubernetes objects"),
        ('{"kind":"List","items":{}}', "no Kubernetes objects"),
        ('{"kind":5}', "no Kubernetes objects"),
        (json.dumps(listed(pod("a"), pod("b"))), "2 objects, none of them a Node"),
        (json.dumps(pod("a")), "none of them a Node"),
    ],
)
def test_a_file_that_cannot_be_used_as_a_whole(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        read_objects(write(tmp_path / "f", text), "Node")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecordError, match=r"cannot read .*No such file"):
        read_objects(tmp_path / "none", "Node")
    with pytest.raises(InvalidRecordError, match="Is a directory"):
        read_objects(tmp_path, "Node")
    (tmp_path / "b").write_bytes(b'{"kind":"\xff\xfe"}')
    with pytest.raises(InvalidRecordError):
        read_objects(tmp_path / "b", "Node")


# ---- bad objects


def test_one_bad_object_costs_itself(tmp_path: Path) -> None:
    bad = pod("bad", cpu="a lot")
    path = write(tmp_path / "f", listed(pod("a"), bad, pod("b")))
    objects = read_objects(path, "Pod")
    assert list(objects.entries) == [b"n1/uid-a", b"n1/uid-b"]
    (problem,) = objects.problems
    assert (problem.name, problem.identity, problem.file) == ("shop/bad", "uid-bad", path)
    assert "'a lot' is not a Kubernetes quantity" in problem.reason


@pytest.mark.parametrize(
    "item", [None, 5, "x", [], {"kind": "Pod"}, {"kind": "Pod", "metadata": 5}]
)
def test_an_object_of_which_nothing_is_known(tmp_path: Path, item: Any) -> None:
    objects = read_objects(write(tmp_path / "f", listed(pod("a"), item)), "Pod")
    assert [p.identity for p in objects.problems] == [""]
    # It may be any of the pods that were there before: none of them is removed.
    assert objects.keep({b"n1/x": b"", b"n1/y": b""}) == {b"n1/x", b"n1/y"}


def test_the_same_object_twice_is_told(tmp_path: Path) -> None:
    objects = read_objects(write(tmp_path / "f", listed(node("n1"), node("n1", cpu="8"))), "Node")
    assert [p.reason for p in objects.problems] == ["it is there twice"]
    value = objects.entries[b"n1"].value
    assert value is not None
    assert decode_json(NodeRecord, value).allocatable.cpu_millicores == 4000


# ---- publishing


class FakeProducer:
    """Records what is written; delivery is at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, bytes, bytes | None]] = []
        self.values: dict[tuple[str, bytes], bytes] = {}

    async def send(self, topic: str, *, value: Any, key: Any, partition: int, headers: Any) -> Any:
        assert headers == [("source", b"file")]
        self.sent.append((topic, partition, key, value))
        if value is None:
            del self.values[topic, key]
        else:
            self.values[topic, key] = value
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_records_lie_in_the_partition_of_their_node(tmp_path: Path) -> None:
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


async def test_what_vanished_is_removed_but_not_what_went_bad(tmp_path: Path) -> None:
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
    """A running source over a fake broker and a clock of the test."""

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
        await self._rests()
        for _ in range(number):
            await self.clock.advance(POLL_SECONDS)
            await self._rests()

    async def _rests(self) -> None:
        """Files are read in a thread: until it has come back, nobody waits for the next poll."""
        async with asyncio.timeout(30):
            while all(wake.done() for *_, wake in self.clock._sleepers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def keys(self) -> set[bytes]:
        return {key for _, key in self.producer.values}


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(tmp_path, monkeypatch)


async def test_changed_files_are_read_again_once_they_stand_still(watch: Watch) -> None:
    write(watch.nodes, listed(node("n1")))
    write(watch.pods, listed(pod("a")))
    async with watch.running():
        assert watch.keys() == {b"n1", b"n1/uid-a"}
        await watch.polls(3)
        assert len(watch.producer.sent) == 2, "nothing changed, nothing is written"

        write(watch.pods, listed(pod("b")))
        await watch.polls(1)
        assert watch.keys() == {b"n1", b"n1/uid-a"}, "may still be written to"
        await watch.polls(1)
        assert watch.keys() == {b"n1", b"n1/uid-b"}


async def test_a_file_that_breaks_later_changes_nothing_until_it_is_whole(watch: Watch) -> None:
    write(watch.nodes, listed(node("n1")))
    write(watch.pods, listed(pod("a")))
    async with watch.running():
        whole = json.dumps(listed(pod("a"), pod("b")))
        write(watch.pods, whole[: len(whole) // 2])
        await watch.polls(4)
        write(watch.pods, "")
        await watch.polls(4)
        watch.pods.unlink()
        await watch.polls(4)
        assert watch.keys() == {b"n1", b"n1/uid-a"}
        write(watch.pods, whole)
        await watch.polls(2)
        assert watch.keys() == {b"n1", b"n1/uid-a", b"n1/uid-b"}


async def test_a_file_replaced_by_another_of_the_same_size_and_time_is_seen(watch: Watch) -> None:
    write(watch.nodes, listed(node("n1")))
    write(watch.pods, listed(pod("a")))
    async with watch.running():
        was = watch.pods.stat()
        other = write(watch.pods.with_name("other"), listed(pod("b")))
        os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
        other.rename(watch.pods)
        await watch.polls(2)
        assert watch.keys() == {b"n1", b"n1/uid-b"}


async def test_what_vanished_while_nobody_ran_is_removed(watch: Watch) -> None:
    watch.before = {b"n0": b"old"}
    watch.producer.values = {("springtide.nodes", b"n0"): b"old"}
    watch.pods = None  # type: ignore[assignment]
    write(watch.nodes, listed(node("n1")))
    async with watch.running():
        assert watch.keys() == {b"n1"}
        assert watch.producer.sent[0][2:] == (b"n0", None)


async def test_a_file_that_is_bad_at_the_start_is_a_wrong_setting(watch: Watch) -> None:
    write(watch.nodes, listed(node("n1")))
    arguments = (watch.settings, watch.nodes, watch.pods, watch.clock, watch.producers)
    with pytest.raises(SettingsError, match=r"worker\.pods_file: cannot read") as caught:
        await run_file_source(*arguments)
    assert caught.value.key == "worker.pods_file"
    assert "kubectl get pods -A -o json" in str(caught.value.hint)
    write(watch.pods, "kind: List")
    with pytest.raises(SettingsError, match="YAML is not read"):
        await run_file_source(*arguments)
    assert watch.producer.sent == []


# ---- the policy beside them


def config_map(**sections: Any) -> str:
    data = {
        key.replace("_", "-"): of if isinstance(of, str) else json.dumps(of)
        for key, of in sections.items()
    }
    name = {"name": "slo-controller-config"}
    return yaml.safe_dump({"kind": "ConfigMap", "metadata": name, "data": data})


@pytest.fixture
def ruled(watch: Watch) -> Watch:
    """A source with one node and a policy file."""
    worker = WorkerSettings(nodes_file=watch.nodes, policy_file=watch.policy)
    watch.settings = Settings(kafka=KAFKA, worker=worker)
    watch.pods = None  # type: ignore[assignment]
    write(watch.nodes, listed(node("n1")))
    return watch


def in_force(watch: Watch, name: bytes = b"n1") -> NodeRecord:
    return decode_json(NodeRecord, watch.producer.values["springtide.nodes", name])


def problems_by_what_counts() -> tuple[float | None, float | None]:
    found = [
        REGISTRY.get_sample_value("springtide_policy_problems", {"in_force": of})
        for of in ("true", "false")
    ]
    return found[0], found[1]


async def test_nodes_carry_the_policy_of_a_file_and_follow_its_edits(ruled: Watch) -> None:
    ruled.policy.write_text(config_map(colocation_config={"enable": True}))
    async with ruled.running():
        assert in_force(ruled).overcommit == Overcommit()
        assert slo_spec(in_force(ruled)) is not None
        written = len(ruled.producer.sent)
        edited = {"enable": True, "midUnallocatedPercent": 20}
        ruled.policy.write_text(config_map(colocation_config=edited))
        await ruled.polls(2)
        assert in_force(ruled).overcommit == Overcommit(mid_unallocated_percent=20)
        # Nodes that come later have it, and nothing is written twice.
        write(ruled.nodes, listed(node("n1"), node("n2")))
        await ruled.polls(3)
        assert in_force(ruled, b"n2").overcommit == Overcommit(mid_unallocated_percent=20)
        assert len(ruled.producer.sent) == written + 2


@pytest.mark.parametrize(
    "broken", ["kind: [", "", config_map(colocation_config="{"), "a: b", "a: 2024-02-30", None],
    ids=["no YAML", "empty", "no JSON in it", "no ConfigMap", "no such day", "gone"],
)  # fmt: skip
async def test_a_broken_edit_keeps_the_last_good_policy_and_is_told(
    ruled: Watch, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ruled.policy.write_text(config_map(colocation_config={"enable": True}))
    async with ruled.running():
        assert problems_by_what_counts() == (0, 0)
        good = in_force(ruled)
        if broken is None:
            ruled.policy.unlink()
        else:
            ruled.policy.write_text(broken)
        await ruled.polls(2)
        assert in_force(ruled) == good
        assert problems_by_what_counts() == (0, 1)
        # A node that comes meanwhile has what is in force.
        write(ruled.nodes, listed(node("n1"), node("n2")))
        await ruled.polls(2)
        assert in_force(ruled, b"n2").overcommit == good.overcommit
        ruled.policy.write_text(config_map(colocation_config={"enable": False}))
        await ruled.polls(2)
        assert in_force(ruled).overcommit is None
        assert problems_by_what_counts() == (0, 0)


async def test_the_policy_is_followed_while_the_nodes_cannot_be_read(ruled: Watch) -> None:
    ruled.policy.write_text(config_map(colocation_config={"enable": True}))
    async with ruled.running():
        write(ruled.nodes, "{")
        await ruled.polls(3)
        assert in_force(ruled).overcommit is not None
        ruled.policy.write_text(config_map(colocation_config={"enable": False}))
        await ruled.polls(3)
        assert in_force(ruled).overcommit is None


async def test_a_start_with_a_broken_policy_keeps_what_was_published(ruled: Watch) -> None:
    ruled.policy.write_text(config_map(colocation_config={"enable": True}))
    async with ruled.running():
        before = in_force(ruled)
    ruled.before = {b"n1": encode_json(before)}
    ruled.policy.write_text(config_map(colocation_config="{"))
    async with ruled.running():
        assert in_force(ruled) == before
    # What lies there may be from another release.
    ruled.before = {b"n1": b'{"version":2}'}
    async with ruled.running():
        assert in_force(ruled).overcommit is None


async def test_what_contradicts_the_extender_is_counted(ruled: Watch) -> None:
    rules = {"clusterStrategy": {"enable": True}}
    ruled.policy.write_text(config_map(resource_threshold_config=rules))
    async with ruled.running():
        assert problems_by_what_counts() == (1, 0)


def test_a_policy_file_without_the_object_ends_the_first_start(tmp_path: Path) -> None:
    for text in ("a: b", "kind: ["):
        (tmp_path / "policy").write_text(text)
        with pytest.raises(SettingsError, match=r"worker\.policy_file") as caught:
            read_at_start({}, tmp_path / "policy")
        assert caught.value.key == "worker.policy_file"
    with pytest.raises(SettingsError, match="cannot read"):
        read_at_start({}, tmp_path / "none")
    (tmp_path / "policy").write_text(config_map(colocation_config="{"))
    assert read_at_start({}, tmp_path / "policy") == []
