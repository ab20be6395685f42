"""Vector groups of NUMA zones.

What each passes through:

- `batch_resource_numa`: `numa.zone_batch`, one node at a time; where its pods are by
  `numa.bound_zones`, all else as in `batch_resource`.
- `pod_numa_split`: `numa.spread` and `numa.shares`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.processors.overcommit.numa import (
    RESOURCE_STATUS,
    Bindings,
    Zones,
    bound_zones,
    shares,
    spread,
    zone_batch,
)
from tests.vectors.overcommit import amounts, columns

Case = dict[str, Any]

_KEYS = ("cpu_milli", "memory_bytes")
_BATCH = ("batch_cpu_milli", "batch_memory_bytes")


def batch_resource_numa(case: Case) -> object:
    zones = _zones([zone["allocatable"] for zone in case["zones"]])
    # Of the rows of pods those that are listed come first, in the order of the list.
    listed = [pod for pod in case["pods"] if pod["phase"] in ("Running", "Pending")]
    bindings = _bindings([pod.get("numa_nodes", ()) for pod in listed])
    found = zone_batch(*columns(case), zones, bindings).amount.tolist()
    return {
        zone["name"]: dict(zip(_BATCH, of, strict=True))
        for zone, of in zip(case["zones"], found, strict=True)
    }


def pod_numa_split(case: Case) -> object:
    if "divide_by" in case:
        among = np.array([case["divide_by"]])
        return {"result": _shown(shares(amounts(case["resources"]), among))[0]}
    zones = _zones([{}] * case["numa_count"])
    pod, zone, among = spread(np.zeros(1, np.int64), zones, _bindings([case.get("numa_nodes", ())]))
    said = {"usage": case["unknown_usage"]} if "unknown_usage" in case else case
    found: Case = {}
    for name in said.keys() & {"request", "usage"}:
        parts = np.zeros((case["numa_count"], 2), np.int64)
        parts[zone] = shares(amounts(said[name])[pod], among)
        found[name] = _shown(parts)
    return found


def _zones(allocatable: Sequence[Case]) -> Zones:
    count = len(allocatable)
    return Zones(np.zeros(count, np.int64), np.arange(count), amounts(*allocatable))


def _bindings(of: Iterable[Sequence[int]]) -> Bindings:
    pairs = [
        (pod, number)
        for pod, numbers in enumerate(of)
        for number in sorted(bound_zones({RESOURCE_STATUS: _status(numbers)}))
    ]
    found = np.array(pairs, np.int64).reshape(len(pairs), 2)
    return Bindings(found[:, 0], found[:, 1])


def _status(numbers: Sequence[int]) -> str:
    resources = {"cpu": "1"}
    return json.dumps(
        {"numaNodeResources": [{"node": one, "resources": resources} for one in numbers]}
    )


def _shown(of: Any) -> list[Case]:
    return [dict(zip(_KEYS, row, strict=True)) for row in of.tolist()]


ADAPTERS = {
    "batch_resource_numa": batch_resource_numa,
    "pod_numa_split": pod_numa_split,
}
