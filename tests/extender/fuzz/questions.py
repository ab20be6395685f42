"""Strategies of records of a fleet, and of pods that a scheduler asks about."""

from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET

from pipeline.processors.overcommit.offer_bounds import BatchPart, MidPart
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import MID, Resources, Usage
from tests.table.records import GIB, node_state

NODES = ("a", "b", "c", "d", "e", "f")
UIDS = ("p1", "p2", "p3", "p4", "p5")
STRANGERS = ("stranger", "", "ä\u2028", "a\x00", "x" * 300)


def _gib(amount: float | None) -> float | None:
    return None if amount is None else amount * (GIB if amount < 100 else 1.0)


names = st.sampled_from(NODES)
amounts = st.none() | st.sampled_from([0.0, -1.0, 1.0, 2.6, 2.62, 4.0, 1e300]) | st.floats(0, 16)
ages = st.sampled_from([0, 10, 40, 179, 180, 10**6, -30, -180])
since = st.none() | st.sampled_from([0, 5, 25, 60, 299, 301, 9 * 10**5])
rooms = st.sampled_from([None, 0, 4000])
memories = st.none() | st.integers(0, 4 << 30)
usages = st.builds(Usage, cpu_cores=st.none() | st.floats(0, 4), memory_bytes=st.floats(0, GIB))
resources = st.builds(
    Resources, cpu_millicores=st.none() | st.integers(0, 3000), memory_bytes=memories
)
reserved = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(0, 4), "memory": st.integers(0, 8 << 30)}
)
states = st.builds(
    node_state, names, cpu=amounts, memory=amounts.map(_gib),
    cores=amounts, room=amounts.map(_gib),
    young_pods=st.dictionaries(st.sampled_from(UIDS), usages, max_size=2),
)  # fmt: skip
nodes = st.builds(
    TableNode, node=names,
    allocatable=st.builds(Resources, cpu_millicores=rooms, memory_bytes=st.just(8 << 30)),
    annotations=st.just({}) | reserved.map(
        lambda kinds: {
            "node.koordinator.sh/reservation": msgspec.json.encode({"resources": kinds}).decode()
        }
    ),
)  # fmt: skip
parts = st.builds(
    Resources, cpu_millicores=st.integers(0, 4000), memory_bytes=st.integers(0, 8 << 30)
)
unsure = parts | st.just(Resources())
partly = unsure | st.builds(Resources, memory_bytes=st.integers(0, 8 << 30))
offers = st.builds(
    OfferedResources, node=names, as_of=st.just("2023-11-14T22:14:00Z"), generation=st.just(1),
    offset=st.just(0), epoch=st.just(1), window_seconds=st.sampled_from([0.0, 30.0, 300.0]),
    mid=st.none() | partly, mid_lower_bound=st.none() | partly, batch=st.none() | partly,
    mid_terms=st.builds(MidPart, prod_peak=unsure, buffer=unsure),
    batch_terms=st.builds(
        BatchPart, capacity=parts, margin=unsure, outside=unsure, buffer=unsure
    ),
)  # fmt: skip
views = st.builds(NodeViewRecord, node=names, generation=st.just(0))


class Asked(NamedTuple):
    """A pod as a manifest, and the record that the extender must read from it."""

    manifest: dict[str, Any]
    pod: CountedPod

    @property
    def is_exempt(self) -> bool:
        return "ownerReferences" in self.manifest["metadata"]

    def of_uid(self, uid: str) -> "Asked":
        metadata = self.manifest["metadata"] | {"uid": uid}
        pod = msgspec.structs.replace(self.pod, uid=uid, cgroup_uid=uid)
        return Asked(self.manifest | {"metadata": metadata}, pod)


def _pod(
    pod_class: str, requests: Resources, limits: Resources, phase: str, node: str, uid: str
) -> CountedPod:
    """A pod of Mid or Batch requests no other resources."""
    tier = pod_class if pod_class in ("mid", "batch") else None
    if tier is None:
        return CountedPod(
            node=node, uid=uid, cgroup_uid=uid, pod_class=pod_class, requests=requests,
            limits=limits, phase=phase,
        )  # fmt: skip
    asks, may = _as_tier(tier, requests), _as_tier(tier, limits)
    # A limit without a request counts as the request.
    scalars = may | asks
    return CountedPod(
        node=node, uid=uid, cgroup_uid=uid, pod_class=pod_class, scalars=scalars or None,
        scalar_limits=may if may != scalars else UNSET, phase=phase,
    )  # fmt: skip


def _as_tier(tier: str, part: Resources) -> dict[str, int]:
    named = zip(MID, (part.cpu_millicores, part.memory_bytes), strict=True)
    return {name.replace("mid", tier): amount for name, amount in named if amount}


classes = st.sampled_from(["prod", "mid", "batch"])
pods = st.builds(
    _pod, st.sampled_from(["prod", "mid", "batch", "none"]), resources, resources,
    st.sampled_from(["Pending", "Running", "Running", "Succeeded"]), st.sampled_from(["", *NODES]),
    st.sampled_from(UIDS),
)  # fmt: skip


def _asked(pod: CountedPod, is_exempt: bool) -> Asked:
    may = pod.scalars if pod.scalar_limits is UNSET else pod.scalar_limits
    stated = {
        kind: {
            name: amount
            for name, amount in (
                ("cpu", None if part.cpu_millicores is None else f"{part.cpu_millicores}m"),
                ("memory", part.memory_bytes),
                *(others or {}).items(),
            )
            if amount is not None
        }
        for kind, part, others in (
            ("requests", pod.requests, pod.scalars), ("limits", pod.limits, may),
        )
    }  # fmt: skip
    metadata: dict[str, Any] = {
        "name": "new", "labels": {"koordinator.sh/priority-class": f"koord-{pod.pod_class}"},
    }  # fmt: skip
    if is_exempt:
        metadata["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    spec = {"containers": [{"name": "main", "resources": stated}]}
    return Asked({"metadata": metadata, "spec": spec}, pod)


asked = st.builds(
    _asked,
    st.builds(_pod, classes, resources, resources, st.just(""), st.just(""), st.just("")),
    st.integers(0, 9).map(lambda luck: luck == 0),
)


def as_record(pod: CountedPod) -> PodRecord:
    """The same as a record of the topic."""
    return PodRecord(
        node="", uid=pod.uid, cgroup_uid=pod.uid, namespace="", name="new", requests=pod.requests,
        pod_class=pod.pod_class, limits=pod.limits, scalars=pod.scalars,
        scalar_limits=pod.scalar_limits,
    )  # fmt: skip
