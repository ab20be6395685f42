"""Messages of the preempt verb: which pods a scheduler would evict on which nodes, and the reply.

Victims come as whole Pods, or as UIDs where `nodeCacheCapable` is set. The reply always names UIDs,
as the protocol has it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from pipeline.extender.scheduler_messages import (
    JsonPod,
    Pod,
    read_args,
    read_parts,
    read_pod,
    refuse_too_many,
)
from pipeline.topics.pods import PodRecord

_KEYS = "an object with Pod and NodeNameToVictims or NodeNameToMetaVictims"


class MetaPod(msgspec.Struct, frozen=True):
    """A victim.

    uid: UID of the pod.
    """

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """Victims on one node by UID.

    pods: The victims.
    num_pdb_violations: Number of disruption budgets that their eviction would violate.
    """

    pods: tuple[MetaPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(pod.uid for pod in self.pods or ())


class VictimMetadata(msgspec.Struct, frozen=True):
    """The metadata of a victim.

    uid: UID of the pod.
    """

    uid: str


class WholePod(msgspec.Struct, frozen=True):
    """A victim as a Pod.

    metadata: Metadata, of which only the UID is read.
    """

    metadata: VictimMetadata


class WholeVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """Victims on one node as whole Pods.

    pods: The victims.
    num_pdb_violations: Number of disruption budgets that their eviction would violate.
    """

    pods: tuple[WholePod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """A request of kube-scheduler for preempt.

    pod: The pod to be placed.
    node_name_to_victims: Victims as whole Pods, by node.
    node_name_to_meta_victims: Victims by UID, by node.
    """

    pod: JsonPod
    node_name_to_victims: dict[str, WholeVictims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(msgspec.Struct, frozen=True, rename="pascal"):
    """The nodes on which the evictions would help.

    node_name_to_meta_victims: Their victims, by node.
    """

    node_name_to_meta_victims: dict[str, MetaVictims]


class Preemption(msgspec.Struct, frozen=True):
    """A request for preempt: the pod, and the victims by node."""

    pod: Pod
    record: PodRecord
    victims: Mapping[str, MetaVictims]


def read_preemption(body: bytes) -> Preemption:
    """The request in the body of preempt. Raises `BadRequestError`."""
    args = read_args(ExtenderPreemptionArgs, read_parts(body, _KEYS), _KEYS)
    pod, record = read_pod(args.pod, _KEYS)
    victims = args.node_name_to_meta_victims or {}
    for node, whole in (args.node_name_to_victims or {}).items():
        pods = tuple(MetaPod(victim.metadata.uid) for victim in whole.pods or ())
        victims.setdefault(node, MetaVictims(pods, whole.num_pdb_violations))
    refuse_too_many(len(victims))
    return Preemption(pod, record, victims)


def preemption_reply(preemption: Preemption, nodes: Sequence[str]) -> bytes:
    """The reply to preempt: these nodes, each with the victims of the request."""
    victims = {node: preemption.victims[node] for node in nodes}
    return msgspec.json.encode(ExtenderPreemptionResult(victims))
