"""Vector groups of what is written to nodes, and of what is read from them.

What each passes through:

- `trim_allocatable`: `reserved.reservation` and `reserved.trimmed`; resources that are not of Prod
  pass by, as they do in the product.
- `node_extended_resources`: `writing.written`, with the ratio by `normalization.read_ratio` and the
  third parties' share by `third_party.taken`, and of it the patch by `writing.status_patch`.
  Fractions are rounded up on reading, since all amounts of ours are whole.
- `sync_needed`: `writing.is_due`.
- `gpu_node_resource`: `devices.gpu_resources`.
"""

import json
from typing import Any

import numpy as np

from pipeline.processors.kubernetes.node_reservation import reservation, trimmed
from pipeline.processors.overcommit.devices import VENDOR, gpu_resources
from pipeline.processors.overcommit.status_patch import (
    ABSENT,
    WRITTEN,
    Known,
    is_due,
    status_patch,
    written,
)
from pipeline.processors.overcommit.third_party import TAKEN, origin_text, taken
from pipeline.processors.policy.normalization import RATIO, read_ratio
from pipeline.topics.resource_amounts import whole_bytes
from tests.vectors.overcommit import amounts, annotated

Case = dict[str, Any]

_NAMES = ("batch_cpu_milli", "batch_memory_bytes", "mid_cpu_milli", "mid_memory_bytes")
_KEYS = ("cpu_milli", "memory_bytes")


def trim_allocatable(case: Case) -> object:
    allocatable = case["allocatable"]
    kept = reservation(annotated(case["reservation"]))
    seen = dict(zip(_KEYS, trimmed(amounts(allocatable), [kept])[0].tolist(), strict=True))
    return {"allocatable": allocatable | seen, "trimmed": kept.trims_allocatable}


def node_extended_resources(case: Case) -> object:
    said, names = case["calculated"], case["resources"]
    has = {tier: np.array([f"{tier}_cpu_milli" in said], bool) for tier in ("batch", "mid")}
    of = {
        tier: np.array([[whole_bytes(said.get(name, 0)) for name in _NAMES if tier in name]])
        for tier in has
    }
    text = case.get("cpu_normalization_ratio")
    ratio = read_ratio({} if text is None else {RATIO: text})
    annotations = _third_parties(case["third_party"]) if "third_party" in case else {}
    found = written(
        of["batch"],
        of["mid"],
        Known(has["batch"], has["mid"]),
        np.array([np.nan if ratio is None else float(ratio)]),
        np.array([taken(annotations)]),
    )
    patch = status_patch(found.amounts[0].tolist())["status"]
    assert patch["capacity"] == patch["allocatable"]
    of_name = dict(zip(_NAMES, map(patch["allocatable"].get, WRITTEN), strict=True))
    shown: Case = {
        "allocatable": {n: None if of_name[n] is None else int(of_name[n]) for n in names}
    }
    if annotations:
        origin = json.loads(origin_text(found.origin[0].tolist()))["resources"]
        shown["origin_allocatable"] = dict(zip(_NAMES, map(int, origin.values()), strict=False))
    return shown


def _third_parties(said: list[Case]) -> dict[str, str]:
    by_name = dict(zip(_NAMES, WRITTEN, strict=True))
    allocations = [
        one | {"resources": {by_name[name]: v for name, v in one["resources"].items()}}
        for one in said
    ]
    return {TAKEN: json.dumps({"allocations": allocations})}


def sync_needed(case: Case) -> object:
    old, new = (
        np.array([[case[of].get(name, ABSENT) for name in case["names"]]]) for of in ("old", "new")
    )
    age, longest = case.get("last_write_age_seconds", 0), case.get("updateTimeThresholdSeconds", 0)
    due = is_due(
        old,
        new,
        np.array([case["resourceDiffThreshold"]], float),
        np.array([np.nan if age is None else age], float),
        np.array([longest], float),
    )
    return {"sync": bool(due[0])}


def gpu_node_resource(case: Case) -> object:
    device = {
        "metadata": {"labels": {VENDOR: case["vendor"]}},
        "spec": {"devices": case["devices"]},
    }
    found = gpu_resources(device, shared=True)
    return {"resources": found} if any(found.values()) else {"reset": True}


ADAPTERS = {
    "gpu_node_resource": gpu_node_resource,
    "node_extended_resources": node_extended_resources,
    "sync_needed": sync_needed,
    "trim_allocatable": trim_allocatable,
}
