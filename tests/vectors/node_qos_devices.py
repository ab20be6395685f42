"""Groups of block IO, resctrl and kernel settings of the node."""

import json
from collections.abc import Mapping

import msgspec

from actuators.node.knob_files import KNOB_FILES
from pipeline.errors import InvalidPolicyError, KernelFileError
from pipeline.processors.node_qos.block_io import ANNOTATION, BlockIo
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.node_state import BlockDevices, NodeState, PodState
from pipeline.processors.node_qos.node_sysctl import NodeSysctl
from pipeline.processors.node_qos.resctrl_groups import ResctrlInfo, class_schemata
from pipeline.processors.node_qos.resctrl_schemata import (
    bandwidth,
    parse_mask,
    parse_schemata,
    way_mask,
)
from pipeline.processors.slo.nodeslo import NodeSLOSpec, QosStrategy, ResctrlQos, SystemStrategy
from pipeline.topics.resource_amounts import Resources
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group

_POD = "kubepods/pod1"
_THROTTLES = (Knob.IO_READ_IOPS, Knob.IO_WRITE_IOPS, Knob.IO_READ_BPS, Knob.IO_WRITE_BPS)
_WEIGHT = 100
"""Of a cgroup that was never given another."""


@group("BlockIo.claims, knob_files.KNOB_FILES")
def blkio_lines(case: Case) -> object:
    """What the feature claims, as the lines that are written to cgroup v1. Files without a claim
    have what the kernel starts with."""
    disk = case["disk"]
    blocks = {"blocks": [{"name": "/dev/sda", "type": "device", "ioCfg": plain(case["io_cfg"])}]}
    is_root = case["scope"] == "root"
    own = {} if is_root else {ANNOTATION: json.dumps(blocks)}
    strategy = {"cgroupRoot": {"blkioQOS": {"enable": True, **blocks}}} if is_root else {}
    state = NodeState(
        node="n", at=0.0, block_devices=BlockDevices(devices={"sda": disk}),
        slo=NodeSLOSpec(resource_qos_strategy=msgspec.convert(strategy, QosStrategy)),
        pods=(
            PodState(
                uid="1", path=_POD, kube_qos="Burstable", qos_label="LS", phase="Running",
                annotations=own,
            ),
        ),
    )  # fmt: skip
    values = {claim.place: claim.value for claim in BlockIo().claims(state, {})}
    if is_root:
        return _root_lines(disk, values)
    lines = {}
    for knob in (*_THROTTLES, Knob.IO_WEIGHT):
        file = KNOB_FILES[1][knob][0]
        text = str(_WEIGHT if knob is Knob.IO_WEIGHT else 0)
        if (value := values.get(Place(_POD, knob, disk))) is not None:
            text = file.text_of(value, text)
        lines[file.name] = file.line(text, disk)
    return lines


def _root_lines(disk: str, values: Mapping[Place, Value]) -> Case:
    """The writes to each file, which the kernel adds up, as one line."""
    words: dict[str, list[str]] = {"blkio.cost.qos": [], "blkio.cost.model": []}
    for knob, (file, *_) in KNOB_FILES[1].items():
        if file.name in words and (value := values.get(Place("", knob, disk))) is not None:
            words[file.name].append(file.line(file.text_of(value, ""), disk).split()[1])
    qos, model = words["blkio.cost.qos"], words["blkio.cost.model"]
    return {
        "blkio.cost.qos": " ".join([disk, qos[0], "ctrl=user", *qos[1:]]),
        "blkio.cost.model": " ".join([disk, "ctrl=user" if model else "ctrl=auto", *model]),
    }


def _no_mask_without_ways(given: Case, expected: Case) -> Difference | None:
    if given["function"] != "l3_mask" or expected.get("mask") != "0":
        return None
    ways = int(given["cbm"], 16).bit_length()
    first = -(-ways * given["start_percent"] // 100)
    return Difference(
        "the kernel refuses a mask without ways",
        "a group with a tiny range of the cache has one way",
        {"mask": f"{1 << min(first, ways - 1):x}", "error": False},
    )


@group("resctrl_schemata, resctrl_groups.class_schemata", differs=_no_mask_without_ways)
def resctrl_schemata_intel_amd(case: Case) -> object:
    match case["function"]:
        case "l3_mask":
            start, end = case["start_percent"], case["end_percent"]
            try:
                mask = way_mask(parse_mask(case["cbm"]), start, end)
            except (InvalidPolicyError, KernelFileError):
                return {"mask": None, "error": True}
            return {"mask": f"{mask:x}", "error": False}
        case "mba":
            return {"value": bandwidth(case["vendor"], case["percent"])}
        case "schemata_lines":
            ids = frozenset(case["cache_ids"])
            info = ResctrlInfo(case["vendor"], parse_mask(case["cbm"]), 1, ids, ids, 16)
            rules = ResctrlQos(
                enable=True, cat_range_start_percent=case["start_percent"],
                cat_range_end_percent=case["end_percent"], mba_percent=case["mba_percent"],
            )  # fmt: skip
            lines = {line[:2]: line for line in class_schemata(rules, info).lines()}
            return {"L3": lines.get("L3"), "MB": lines.get("MB")}
        case "parse":
            schemata = parse_schemata(case["text"])
            shares = {"L3": schemata.l3, "MB": schemata.mb}
            return {name: {str(id): n for id, n in by.items()} for name, by in shares.items()}
    raise LookupError(case["function"])


_NAMES = {
    Knob.NODE_MIN_FREE_KBYTES: "vm.min_free_kbytes",
    Knob.NODE_WATERMARK_SCALE: "vm.watermark_scale_factor",
    Knob.NODE_MEMCG_REAP: "memcg_reap_background",
}


@group("NodeSysctl.claims")
def node_sysctl(case: Case) -> object:
    strategy = msgspec.convert(plain(case["strategy"]), SystemStrategy)
    state = NodeState(
        node="n", at=0.0, slo=NodeSLOSpec(system_strategy=strategy),
        capacity=Resources(memory_bytes=case["capacity_bytes"]),
    )  # fmt: skip
    claims = NodeSysctl().claims(state, {})
    return {"writes": {_NAMES[claim.place.knob]: claim.value for claim in claims}}
