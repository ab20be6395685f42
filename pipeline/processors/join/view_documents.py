"""A node and its pods as one document for its actuator.

Pure. Of a pod what the view says of it is found once from its record, as the bytes that will be
written: a view of a hundred pods is put together from a hundred such pieces.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from pipeline.processors.overcommit.status_patch import is_due
from pipeline.times import parse_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodFacts, PodRecord
from pipeline.topics.resource_amounts import Resources

GENERATIONS: Final = 1 << 24
"""Views that one claim of a partition may write."""

LONGEST_ANNOTATION: Final = 8192
"""Characters of a pod's annotation; what is longer tells no node anything."""

_json: Final = msgspec.json.Encoder(order="deterministic")


def pod_view(pod: PodFacts | PodRecord) -> bytes:
    """What the view says of a pod, as it is written."""
    return _json.encode(
        ViewPod(
            uid=pod.uid,
            cgroup_uid=pod.cgroup_uid,
            namespace=pod.namespace,
            name=pod.name,
            pod_class=pod.pod_class,
            qos=pod.qos,
            priority=pod.priority,
            phase=pod.phase,
            deleting=pod.deleted_at is not None,
            requests=pod.requests,
            limits=pod.limits,
            containers=pod.containers,
            init_containers=pod.init_containers,
            labels=_of_koordinator(pod.labels),
            annotations=_short(_of_koordinator(pod.annotations)),
        )
    )


def shortened(pods: Sequence[bytes], by_bytes: int) -> list[bytes]:
    """`pods` as `pod_view` gives them, the largest cut down until they take `by_bytes` less, or all
    are: who makes a pod large has the harm of it, and not the others of the node."""
    found = list(pods)
    for at in sorted(range(len(found)), key=lambda at: len(found[at]), reverse=True):
        if by_bytes <= 0:
            break
        by_bytes -= len(found[at])
        found[at] = _cut(found[at])
        by_bytes += len(found[at])
    return found


def _cut(pod: bytes) -> bytes:
    view = msgspec.json.decode(pod, type=ViewPod)
    return _json.encode(
        msgspec.structs.replace(
            view, cut=True, labels={}, annotations={}, containers=(), init_containers=()
        )
    )


def node_view(
    record: NodeRecord, pods: Iterable[bytes], resources: NodeResourcesRecord | None
) -> bytes:
    """The view of a node with generation 0: what tells whether it says anything new."""
    view = NodeViewRecord(
        node=record.node,
        generation=0,
        allocatable=record.allocatable,
        capacity=record.capacity,
        annotations=_of_koordinator(record.annotations),
        strategy_hash=record.strategy_hash,
        overcommit=record.overcommit,
        colocation=record.colocation,
        springtide=record.springtide,
        slo=record.slo,
        cpu_normalization=record.cpu_normalization,
        host_apps=record.host_apps,
        resources=resources,
        # They are encoded already.
        pods=cast(Any, [msgspec.Raw(of) for of in pods]),
    )
    return _json.encode(view)


_GENERATION: Final = b'"generation":0'


def with_generation(view: bytes, generation: int) -> bytes:
    """The view with this generation in place of 0."""
    # The first that is found is that of the view: only its node's name comes before it, which has
    # no quotation marks.
    return view.replace(_GENERATION, b'"generation":%d' % generation, 1)


def generation_of(epoch: int, number: int) -> int:
    """The generation of the n-th view that is written under the claim `epoch`: above all of earlier
    claims, whoever wakes up late."""
    return epoch * GENERATIONS + number


def must_tell(old: NodeResourcesRecord | None, new: NodeResourcesRecord | None) -> bool:
    """Whether resources differ so much that a view is due by them alone: as a Node's status would
    be written, so that not each window makes a new view."""
    if old is None or new is None:
        return old is not new
    strategy = new.strategy
    due = is_due(
        np.array([_amounts(old)]),
        np.array([_amounts(new)]),
        np.array([strategy.resource_diff_threshold]),
        np.array([parse_time(new.as_of) - parse_time(old.as_of)]),
        np.array([float(strategy.update_time_threshold_seconds)]),
    )
    return bool(due[0])


def _amounts(of: NodeResourcesRecord) -> list[int]:
    amounts: list[int] = []
    for amount in (of.batch, of.mid, of.mid_lower_bound):
        known = amount or Resources()
        both = (known.cpu_millicores, known.memory_bytes)
        amounts += [-1 if one is None else one for one in both]
    return amounts


def _of_koordinator(said: Mapping[str, str]) -> dict[str, str]:
    """Labels or annotations that tell a node what to do."""
    return {name: text for name, text in said.items() if _is_meant(name.partition("/")[0])}


def _is_meant(prefix: str) -> bool:
    # Whoever may make pods may make up a prefix that ends like ours.
    return f".{prefix}".endswith(".koordinator.sh") or prefix == "springtide"


def _short(said: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in said.items() if len(text) <= LONGEST_ANNOTATION}
