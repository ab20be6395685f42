"""Inputs of recommendations are read from all partitions; nothing is written."""

from typing import Any

from msgspec.structs import replace

from pipeline.agents.recommendation_inputs import Wanted, add_nodes
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.recommendation import PodOwner as Workload
from pipeline.processors.recommendation import Recommendation, WorkloadSums
from pipeline.topics.checkpoints import NodeCheckpoint, node_key
from pipeline.topics.codec import decode_pack, encode_json, encode_pack
from pipeline.topics.pods import Owner as PodOwner
from pipeline.topics.pods import PodRecord, pod_key
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import CONFIG, make_log
from tests.agents.owners import Owner

WEB = Workload("ReplicaSet", "shop", "web-5d4")
BARE = Workload("Pod", "shop", "pod-1 of b")


def put_pod(
    broker: MemoryBroker, node: str, uid: str, owner: str | None = "web-5d4", cgroup: str = ""
) -> None:
    pod = PodRecord(
        node=node, uid=uid, cgroup_uid=cgroup or uid, namespace="shop", name=f"{uid} of {node}",
        owner=PodOwner(kind="ReplicaSet", name=owner) if owner else None,
    )  # fmt: skip
    broker.put("t.pods", 0, pod_key(node, uid), encode_json(pod))


async def filled() -> MemoryBroker:
    """Write ten windows of nodes a and b, with pod-0 and then pod-1 on each, and a round."""
    broker, _ = make_log(10, "a", "b")
    owner = await Owner(broker, "x").load()
    await owner.round()
    owner.die()
    return broker


async def read(
    broker: MemoryBroker, wanted: Wanted | None = None, config: ModelConfig = CONFIG
) -> tuple[dict[Workload, Recommendation], dict[str, Any], WorkloadSums]:
    before = {place: len(log) for place, log in broker.logs.items()}
    workloads = WorkloadSums(config)
    failed = await add_nodes(
        workloads, wanted, prefix="t", partitions=2, open_reader=broker.open_reader
    )
    assert {place: len(log) for place, log in broker.logs.items()} == before
    return (
        {workload.owner: workload for workload in workloads.recommendations()},
        dict(failed),
        workloads,
    )


async def test_pods_of_an_owner_are_loaded_from_all_nodes() -> None:
    broker = await filled()
    put_pod(broker, "a", "pod-0")
    put_pod(broker, "b", "static", cgroup="pod-0")
    put_pod(broker, "b", "pod-1", owner=None)
    put_pod(broker, "", "pending")
    recommended, failed, workloads = await read(broker)
    assert [(owner, r.pods, r.cpu.pods, r.cpu.samples) for owner, r in recommended.items()] == [
        (BARE, 1, 1, 5), (WEB, 3, 2, 10),
    ]  # fmt: skip
    assert (failed, workloads.unrecorded_pods) == ({}, 1)


async def test_only_wanted_owners_are_added() -> None:
    broker = await filled()
    put_pod(broker, "a", "pod-0")
    put_pod(broker, "b", "pod-1", owner=None)
    everything, *_ = await read(broker)
    recommended, _, _ = await read(broker, WEB.__eq__)
    assert recommended == {WEB: everything[WEB]}
    assert (await read(broker, lambda owner: False))[0] == {}


async def test_deleted_pods_and_invalid_records_are_skipped() -> None:
    broker = await filled()
    for uid in ("pod-0", "pod-1"):
        put_pod(broker, "a", uid)
    broker.put("t.pods", 0, pod_key("a", "pod-0"), None)
    broker.put("t.pods", 0, b"no key", b"{}")
    broker.put("t.checkpoints", 0, b"no key", b"{}")
    recommended, failed, _ = await read(broker)
    assert (recommended[WEB].pods, recommended[WEB].cpu.samples, failed) == (1, 5, {})


async def test_a_node_with_an_unusable_checkpoint_is_reported() -> None:
    broker = await filled()
    put_pod(broker, "a", "pod-0")
    put_pod(broker, "b", "pod-0")
    (key,) = (key for key in broker.live("t.checkpoints") if key.startswith(b"a@"))
    checkpoint = decode_pack(NodeCheckpoint, broker.live("t.checkpoints")[key])
    damaged = replace(
        checkpoint, epoch=checkpoint.epoch + 1, covers=checkpoint.covers + 1,
        state=checkpoint.state[:-1],
    )  # fmt: skip
    # The older checkpoint is used.
    broker.put("t.checkpoints", 0, node_key("a", damaged.epoch), encode_pack(damaged))
    recommended, failed, _ = await read(broker)
    assert (recommended[WEB].cpu.pods, failed) == (2, {})
    broker.put("t.checkpoints", 0, key, None)
    recommended, failed, _ = await read(broker)
    assert (recommended[WEB].pods, recommended[WEB].cpu.pods, [*failed]) == (2, 1, ["a"])
    recommended, failed, _ = await read(broker, config=ModelConfig())
    assert (recommended[WEB].pods, recommended[WEB].known, [*failed]) == (2, False, ["a", "b"])
