"""Block IO: throttles and weights of disks for best-effort pods and single pods, and the kernel's
cost model of disks (iocost).

Names and defaults are Koordinator's. Only what the policy sets is written, and what it no longer
sets is restored, also where an annotation is removed.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import BlockDevices, NodeState, PodState
from pipeline.processors.node_qos.pod_annotations import read_annotation
from pipeline.processors.slo.nodeslo import BlkioQos, Block, IoConfig, QosClass

ANNOTATION: Final = "koordinator.sh/blkioQOS"

LATENCY_US: Final = 3000
LATENCY_PERCENT: Final = 95

_ROOT: Final = ""


class BlockIo:
    """Claim limits of disks: of the BE class for the directory of BestEffort, of the class
    cgroupRoot for the root, of annotations for running pods that have a QoS label."""

    name: Final = "block_io"
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        devices = state.block_devices
        if state.slo is None or state.slo.resource_qos_strategy is None or devices is None:
            return held(former, self.name)
        strategy = state.slo.resource_qos_strategy
        values = dict[Place, int]()
        for block in _class_blocks(strategy.be_class):
            _add(values, state.best_effort_path, _disks(block, devices), pod_limits(block.io_cfg))
        for block in _class_blocks(strategy.cgroup_root):
            _add(values, _ROOT, _disks(block, devices), root_costs(block.io_cfg))
        for pod in state.listed_pods():
            for block in _pod_blocks(pod):
                disks = _disks(block, devices, pod.uid)
                _add(values, pod.path, disks, pod_limits(block.io_cfg))
        claims = [Claim(place, value, self.name, "block IO") for place, value in values.items()]
        return claims + held(former, self.name, {p.path for p in state.pods if not p.listed})


def pod_limits(config: IoConfig | None) -> dict[Knob, int]:
    """Throttles and weight of a disk; 0 is no limit."""
    config = config or IoConfig()
    stated = {
        Knob.IO_READ_IOPS: config.read_iops,
        Knob.IO_WRITE_IOPS: config.write_iops,
        Knob.IO_READ_BPS: config.read_bps,
        Knob.IO_WRITE_BPS: config.write_bps,
        Knob.IO_WEIGHT: config.io_weight_percent,
    }
    return {knob: amount for knob, amount in stated.items() if amount}


def root_costs(config: IoConfig | None) -> dict[Knob, int]:
    """Latencies from which the kernel holds a disk back, in microseconds, and the user's model of
    its costs if it is complete."""
    config = config or IoConfig()
    model = {
        Knob.IO_MODEL_READ_BPS: config.model_read_bps,
        Knob.IO_MODEL_READ_SEQ_IOPS: config.model_read_seq_iops,
        Knob.IO_MODEL_READ_RAND_IOPS: config.model_read_rand_iops,
        Knob.IO_MODEL_WRITE_BPS: config.model_write_bps,
        Knob.IO_MODEL_WRITE_SEQ_IOPS: config.model_write_seq_iops,
        Knob.IO_MODEL_WRITE_RAND_IOPS: config.model_write_rand_iops,
    }
    stated = {knob: cost for knob, cost in model.items() if cost}
    return {
        Knob.IO_COST_ENABLE: 1,
        Knob.IO_COST_READ_PERCENT: _or(config.read_latency_percent, LATENCY_PERCENT),
        Knob.IO_COST_READ_LATENCY: _or(config.read_latency, LATENCY_US),
        Knob.IO_COST_WRITE_PERCENT: _or(config.write_latency_percent, LATENCY_PERCENT),
        Knob.IO_COST_WRITE_LATENCY: _or(config.write_latency, LATENCY_US),
    } | (stated if config.enable_user_model and len(stated) == len(model) else {})


def _class_blocks(rules: QosClass | None) -> tuple[Block, ...]:
    blkio = rules and rules.blkio_qos
    return (blkio.blocks or ()) if blkio and blkio.enable else ()


def _pod_blocks(pod: PodState) -> tuple[Block, ...]:
    if not pod.qos_label or pod.phase != "Running":
        return ()
    own = read_annotation(pod.annotations, ANNOTATION, BlkioQos)
    return (own and own.blocks) or ()


def _disks(block: Block, devices: BlockDevices, pod_uid: str = "") -> Iterator[str]:
    """The disks of a block; none if the node does not have it."""
    name = (block.name or "").removeprefix("/dev/")
    if block.type == "volumegroup":
        yield from devices.volume_groups.get(name, ())
        return
    if block.type == "podvolume":
        disk = devices.pod_volumes.get((pod_uid, name))
    else:
        disk = devices.devices.get(name)
    if disk is not None:
        yield disk


def _add(
    values: dict[Place, int], path: str, disks: Iterator[str], limits: Mapping[Knob, int]
) -> None:
    """Add limits of disks; of two for the same disk the narrower holds."""
    for disk in disks:
        for knob, limit in limits.items():
            place = Place(path, knob, disk)
            values[place] = min(limit, values.get(place, limit))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
