"""Views: a node and its pods as one JSON document for the node's actuator.

The JSON of each pod is made once from its record; the view of a node is put together from these
pieces, because one changed pod would else encode a hundred others again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodFacts, PodRecord

GENERATIONS: Final = 1 << 24
"""Views that one claim of a partition may write, before its generations reach those of the next."""

LONGEST_ANNOTATION: Final = 8192
"""Characters of a pod's annotation; longer ones are left out of views."""

_json: Final = msgspec.json.Encoder(order="deterministic")


def pod_view(pod: PodFacts | PodRecord) -> bytes:
    """The JSON of a pod in its node's view."""
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
            container_ids=pod.container_ids,
            labels=_of_koordinator(pod.labels),
            annotations=_short(_of_koordinator(pod.annotations)),
        )
    )


def shortened(pods: Sequence[bytes], by_bytes: int) -> list[bytes]:
    """`pods` as `pod_view` gives them, the largest ones cut until they take `by_bytes` less, or all
    are cut. So a large pod harms itself, not the others of its node."""
    short = list(pods)
    for i in sorted(range(len(short)), key=lambda i: len(short[i]), reverse=True):
        if by_bytes <= 0:
            break
        by_bytes -= len(short[i])
        short[i] = _cut(short[i])
        by_bytes += len(short[i])
    return short


def _cut(pod: bytes) -> bytes:
    view = msgspec.json.decode(pod, type=ViewPod)
    return _json.encode(
        msgspec.structs.replace(
            view,
            cut=True,
            labels={},
            annotations={},
            containers=(),
            init_containers=(),
            container_ids={},
        )
    )


def node_view(
    record: NodeRecord, pods: Iterable[bytes], resources: NodeResourcesRecord | None
) -> bytes:
    """The view of a node with generation 0: equal views are equal bytes."""
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
        pods=cast(Any, [msgspec.Raw(pod) for pod in pods]),
    )
    return _json.encode(view)


_GENERATION: Final = b'"generation":0'


def with_generation(view: bytes, generation: int) -> bytes:
    """The view with this generation in place of 0."""
    # The first match is the view's own: only the node's name comes before it, and names have no
    # quotation marks.
    return view.replace(_GENERATION, b'"generation":%d' % generation, 1)


def generation_of(epoch: int, number: int) -> int:
    """The generation of the n-th view written under the claim `epoch`, above all those of earlier
    claims."""
    return epoch * GENERATIONS + number


def _of_koordinator(texts: Mapping[str, str]) -> dict[str, str]:
    """The labels or annotations that instruct a node."""
    return {name: text for name, text in texts.items() if _is_instruction(name.partition("/")[0])}


def _is_instruction(prefix: str) -> bool:
    # The dot keeps out other domains that end alike, which any author of a pod may use.
    return f".{prefix}".endswith(".koordinator.sh") or prefix == "springtide"


def _short(annotations: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in annotations.items() if len(text) <= LONGEST_ANNOTATION}
