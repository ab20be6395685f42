"""Limits of disks follow the policy and annotations, and only for disks that the node has."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.block_io import ANNOTATION, BlockIo
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.node_state import BlockDevices, NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, QosStrategy
from tests.processors.node_qos.worlds import claimed, node, pod

POD = "kubepods/burstable/poda"
BE = "kubepods/besteffort"
DEVICES = BlockDevices(
    devices={"sda": "8:0", "mapper/data": "253:0"},
    volume_groups={"pool": ("8:16", "8:32")},
    pod_volumes={("a", "logs"): "8:48"},
)


def block(name: str, type: str = "device", **limits: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "ioCfg": limits}


def io_node(*pods: PodState, devices: BlockDevices | None = DEVICES, **classes: Any) -> NodeState:
    """A node on which these classes have these blocks."""
    strategy = msgspec.convert(
        {
            name: {"blkioQOS": {"enable": True, "blocks": blocks}}
            for name, blocks in classes.items()
        },
        QosStrategy,
    )
    return node(*pods, slo=NodeSLOSpec(resource_qos_strategy=strategy), block_devices=devices)


def io_pod(*blocks: dict[str, Any], **fields: Any) -> PodState:
    own = {ANNOTATION: json.dumps({"blocks": blocks})}
    return pod("a", **{"qos_label": "LS", "annotations": own, **fields})


def limits(state: NodeState, former: Mapping[Place, Value] | None = None) -> dict[Place, Value]:
    return claimed(BlockIo(), state, former)


def test_each_type_of_block_names_its_disks() -> None:
    state = io_node(
        io_pod(
            block("/dev/sda", readIOPS=1), block("mapper/data", writeIOPS=2),
            block("pool", "volumegroup", readBPS=3), block("logs", "podvolume", writeBPS=4),
        )
    )  # fmt: skip
    assert limits(state) == {
        Place(POD, Knob.IO_READ_IOPS, "8:0"): 1, Place(POD, Knob.IO_WRITE_IOPS, "253:0"): 2,
        Place(POD, Knob.IO_READ_BPS, "8:16"): 3, Place(POD, Knob.IO_READ_BPS, "8:32"): 3,
        Place(POD, Knob.IO_WRITE_BPS, "8:48"): 4,
    }  # fmt: skip


def test_a_new_configuration_replaces_the_old_one() -> None:
    before = limits(io_node(beClass=[block("sda", readIOPS=100, ioWeightPercent=60)]))
    assert before == {
        Place(BE, Knob.IO_READ_IOPS, "8:0"): 100, Place(BE, Knob.IO_WEIGHT, "8:0"): 60,
    }  # fmt: skip
    changed = io_node(beClass=[block("sda", readIOPS=0, writeIOPS=5)])
    assert limits(changed, before) == {Place(BE, Knob.IO_WRITE_IOPS, "8:0"): 5}
    assert limits(io_node(), before) == {}


def test_of_two_limits_of_a_disk_the_narrower_holds() -> None:
    state = io_node(beClass=[block("sda", readBPS=9), block("/dev/sda", readBPS=7)])
    assert limits(state) == {Place(BE, Knob.IO_READ_BPS, "8:0"): 7}


def test_classes_other_than_best_effort_have_no_limits() -> None:
    assert limits(io_node(lsClass=[block("sda", readIOPS=1)])) == {}
    assert limits(io_node(beClass=[block("sda", readIOPS=1)])) != {}


def test_the_cost_model_is_written_only_if_it_is_complete() -> None:
    model = {
        f"model{part}": number
        for number, part in enumerate(
            ("ReadBPS", "WriteBPS", "ReadSeqIOPS", "WriteSeqIOPS", "ReadRandIOPS", "WriteRandIOPS"),
            1,
        )
    }
    for left_out, knobs in ((None, 11), ("modelReadBPS", 5), ("enableUserModel", 5)):
        stated: dict[str, Any] = {"enableUserModel": True, "readLatency": 4000, **model}
        stated.pop(str(left_out), None)
        values = limits(io_node(cgroupRoot=[block("sda", **stated)]))
        assert len(values) == knobs
        assert values[Place("", Knob.IO_COST_READ_LATENCY, "8:0")] == 4000


@pytest.mark.parametrize(
    "fields", [{"qos_label": ""}, {"phase": "Succeeded"}, {"annotations": {ANNOTATION: ""}}]
)
def test_other_pods_are_left_alone(fields: dict[str, Any]) -> None:
    assert limits(io_node(io_pod(block("sda", readIOPS=1)))) != {}
    assert limits(io_node(io_pod(block("sda", readIOPS=1), **fields))) == {}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"blocks": 3}', '{"blocks": [3]}', '{"blocks": [{"type": "tape"}]}',
     '{"blocks": [{"name": "sda", "type": "device", "ioCfg": {"readIOPS": -1}}]}',
     '{"blocks": [{"name": "sda", "type": "device", "ioCfg": {"readBPS": 9223372036854775808}}]}',
     '{"blocks": [{"name": "sda", "type": "device", "ioCfg": {"ioWeightPercent": 101}}]}',
     '{"blocks": [{}]}', '{"blocks": [{"name": "../../etc", "type": "device"}]}'],
)  # fmt: skip
def test_an_invalid_annotation_limits_nothing(text: str) -> None:
    assert limits(io_node(io_pod(annotations={ANNOTATION: text}))) == {}


def test_claims_stay_while_the_policy_the_devices_or_the_pod_are_unknown() -> None:
    policy: dict[str, Any] = {"beClass": [block("sda", readIOPS=1)]}
    former = limits(io_node(io_pod(block("sda", readIOPS=2)), **policy))
    assert len(former) == 2
    assert limits(node(slo=None), former) == former
    assert limits(io_node(devices=None), former) == former
    assert limits(io_node(pod("a", listed=False), **policy), former) == former
    # Control: a disk that is gone has no claims.
    assert limits(io_node(devices=BlockDevices(), **policy), former) == {}


AMOUNT = st.one_of(st.none(), st.integers(0, 2**63 - 1))


@given(
    st.lists(
        st.tuples(st.sampled_from(["sda", "mapper/data", "other"]), AMOUNT, AMOUNT), max_size=5
    )
)
def test_throttles_are_the_least_that_is_stated(
    stated: list[tuple[str, int | None, int | None]],
) -> None:
    blocks = [block(name, readIOPS=read, writeBPS=write) for name, read, write in stated]
    expected: dict[Place, int] = {}
    for name, *amounts in stated:
        disk = DEVICES.devices.get(name)
        for knob, amount in zip((Knob.IO_READ_IOPS, Knob.IO_WRITE_BPS), amounts, strict=True):
            if disk is not None and amount:
                place = Place(BE, knob, disk)
                expected[place] = min(amount, expected.get(place, amount))
    assert limits(io_node(beClass=blocks)) == expected
