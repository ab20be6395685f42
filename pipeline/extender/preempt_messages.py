"""Messages of the preempt verb: which pods a scheduler would evict on which nodes, and the answer.

Owes the rest: both forms of the question (whole Pods, or UIDs alone where `nodeCacheCapable` is
set); an answer that names UIDs, as the protocol has it whatever was asked.
"""

from collections.abc import Mapping, Sequence

import msgspec

from pipeline.errors import BadRequestError
from pipeline.extender.scheduler_messages import Pod, decode_part, manifest
from pipeline.topics.pods import PodRecord

_KEYS = "an object with Pod and NodeNameToVictims or NodeNameToMetaVictims"


class _Pods(msgspec.Struct, frozen=True, rename="pascal"):
    pods: tuple[msgspec.Raw, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID")


class _MetaPods(msgspec.Struct, frozen=True, rename="pascal"):
    pods: tuple[_MetaPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct, frozen=True):
    """Who would be evicted from a node, and how many disruption budgets that would break."""

    uids: tuple[str, ...]
    violations: int = 0


class Preemption(msgspec.Struct, frozen=True):
    """What preempt is asked: for which pod, and who would have to leave each node."""

    pod: Pod
    record: PodRecord
    victims: Mapping[str, Victims]


_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_pod = msgspec.json.Decoder(Pod)
_whole = msgspec.json.Decoder(dict[str, _Pods] | None)
_meta = msgspec.json.Decoder(dict[str, _MetaPods] | None)
_encoder = msgspec.json.Encoder()
_NULL = msgspec.Raw(b"null")


def read_preemption(body: bytes) -> Preemption:
    """The question in the body of a preempt request. Raises `BadRequestError`."""
    top = decode_part(_top, body, "body", _KEYS)
    parts = {key.lower(): value for key, value in top.items()}
    if "pod" not in parts:
        raise BadRequestError("Pod is missing", hint=f"send {_KEYS}")
    pod = decode_part(_pod, parts["pod"], "Pod", _KEYS)
    meta = parts.get("nodenametometavictims", _NULL)
    whole = parts.get("nodenametovictims", _NULL)
    victims = {
        node: Victims(tuple(one.uid for one in of.pods or ()), of.num_pdb_violations)
        for node, of in (decode_part(_meta, meta, "NodeNameToMetaVictims", _KEYS) or {}).items()
    }
    for node, of in (decode_part(_whole, whole, "NodeNameToVictims", _KEYS) or {}).items():
        uids = (manifest(one).uid for one in of.pods or ())
        victims.setdefault(node, Victims(tuple(uids), of.num_pdb_violations))
    return Preemption(pod, manifest(parts["pod"]), victims)


def preemption_answer(question: Preemption, nodes: Sequence[str]) -> bytes:
    """The reply to preempt: these nodes with the victims that were asked about."""
    return _encoder.encode(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in question.victims[node].uids],
                    "NumPDBViolations": question.victims[node].violations,
                }
                for node in nodes
            }
        }
    )
