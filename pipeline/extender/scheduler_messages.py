"""Messages of the kube-scheduler extender protocol: `ExtenderArgs` in, replies out.

Top-level keys are read in any letter case, as Go reads them, and written capitalised. A reply has
the form of its request: names, or whole Node objects, which are passed back byte for byte and never
parsed deeper than their name.
Source: https://pkg.go.dev/k8s.io/kube-scheduler/extender/v1
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import compress
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from pipeline.errors import BadRequestError, InvalidRecordError
from pipeline.extender import limits
from pipeline.extender.refusals import PASSES, Refusals
from pipeline.processors.arrays import IntArray
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.table import NodeNames, Table
from pipeline.topics.pods import PodRecord

T = TypeVar("T")
ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)


class OwnerReference(msgspec.Struct, frozen=True):
    """An owner of a pod.

    kind: Kind of the owner.
    controller: Whether it is the controller.
    """

    kind: str = ""
    controller: bool | None = None


class PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a pod.

    name: Name.
    namespace: Namespace.
    uid: UID.
    owner_references: Owners.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    owner_references: tuple[OwnerReference, ...] | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a pod.

    preemption_policy: `Never`, or `PreemptLowerPriority`, the default.
    """

    preemption_policy: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a pod.

    nominated_node_name: The node on which preemption makes room for the pod.
    """

    nominated_node_name: str | None = None


class Pod(msgspec.Struct, frozen=True):
    """A Pod as the API server returns it. Other fields are accepted; a pod that is in no cluster
    needs no name.

    metadata: Name, UID, owners, labels and annotations.
    spec: Containers with their resources, and the priority.
    status: Phase and conditions.
    """

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def title(self) -> str:
        """`namespace/name` for logs."""
        return f"{self.metadata.namespace[:253]}/{self.metadata.name[:253]}"

    @property
    def may_preempt(self) -> bool:
        """Whether other pods may be evicted for this one, which is the default."""
        return self.spec.preemption_policy != "Never"

    @property
    def of_daemon_set(self) -> bool:
        return any(owner.kind == "DaemonSet" for owner in self.metadata.owner_references or ())


JsonPod = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/Pod"})
]
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class NodeList(msgspec.Struct, frozen=True):
    """A list of whole Nodes.

    items: The Nodes.
    """

    items: tuple[JsonObject, ...] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """A request of kube-scheduler for filter or prioritize: a pod, and either names or Nodes. Keys
    may have any letter case.

    pod: The pod to be placed.
    node_names: Names of nodes, with `nodeCacheCapable: true`.
    nodes: Whole Nodes, without it.
    """

    pod: JsonPod
    node_names: list[str] | None = None
    nodes: NodeList | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """The nodes that may take the pod, in the form of the request.

    nodes: Nodes that may take the pod, as they came.
    node_names: Names of nodes that may take the pod.
    failed_nodes: Always empty.
    failed_and_unresolvable_nodes: Reasons of the refusals, by node.
    error: Empty; errors have a status.
    """

    nodes: dict[str, Any] | None
    node_names: list[str] | None
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The score of one node.

    host: Name of the node.
    score: The score; the highest is best.
    """

    host: str
    score: int


class Question(msgspec.Struct, frozen=True):
    """A decoded request of filter or prioritize: the pod, and the candidate nodes, each once.

    `nodes` holds whole Node objects in the order of `names`; None in the form with names, which has
    `pod_json`, the pod as it came.
    """

    pod: Pod
    record: PodRecord
    names: Sequence[str]
    nodes: tuple[msgspec.Raw, ...] | None = None
    pod_json: bytes = b""


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...] | None = None


_LAST_KEY: Final = b',"NodeNames":'
_FILTER_KEYS = "an object with Pod and either NodeNames or Nodes"
_nodes = msgspec.json.Decoder(_NodeList | None)
_pod = msgspec.json.Decoder(Pod)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_BEFORE_NAMES: Final = b'{"Nodes":null,"NodeNames":'
_AFTER_NAMES: Final = b',"FailedNodes":{},"FailedAndUnresolvableNodes":{'
_AFTER_REASONS: Final = b'},"Error":""}'


class FilterReply(NamedTuple):
    """A reply to filter: its `body`, the `names` that passed as JSON (empty in the form with Nodes)
    and the `next` question of the scheduler, about these."""

    body: bytes
    names: bytes
    next: Question


def read_question(
    body: bytes, table: Table | None = None, replies: Mapping[bytes, FilterReply] | None = None
) -> Question:
    """The question in the body of a filter or prioritize request. Unknown keys are ignored, and a
    name that is given twice counts once.

    `table` reads names much faster than a decoder. `replies` are recent replies to filter, by the
    JSON of the pod: the names that a reply had are not read again when they come back with the same
    pod.

    Raises `BadRequestError`: not JSON, no object, a part of the wrong type, no pod, not exactly one
    of NodeNames and Nodes, or more than `limits.MAX_NODES` of them.
    """
    parts = _read_parts(body)
    pod_json, names_json = (bytes(parts.get(key, b"null")) for key in ("pod", "nodenames"))
    nodes_json = parts.get("nodes", b"null")
    reply = (replies or {}).get(pod_json)
    if reply is not None and names_json == reply.names and bytes(nodes_json) == b"null":
        return reply.next
    # Both before millions of values are in memory.
    refuse_too_many(int(np.count_nonzero(np.frombuffer(names_json, np.uint8) == ord(","))))
    listed = decode_part(_nodes, nodes_json, "Nodes", _FILTER_KEYS)
    refuse_too_many(len((listed and listed.items) or ()))
    node_names = None if table is None else table.read_names(names_json)
    if node_names is not None:
        parts["nodenames"] = msgspec.Raw(b"[]")
    args = read_args(ExtenderArgs, parts, _FILTER_KEYS)
    names, nodes = args.node_names, args.nodes
    if (names is None) == (nodes is None):
        raise BadRequestError(
            "neither NodeNames nor Nodes" if names is None else "both NodeNames and Nodes",
            hint=f"send {_FILTER_KEYS}, as nodeCacheCapable says",
        )
    pod, record = read_pod(args.pod, _FILTER_KEYS)
    if names is not None:
        each_once = tuple(dict.fromkeys(names)) if node_names is None else node_names
        refuse_too_many(len(names or each_once))
        return Question(pod, record, each_once, pod_json=pod_json)
    by_name: dict[str, msgspec.Raw] = {}
    if listed and listed.items and nodes and nodes.items:
        for node, item in zip(listed.items, nodes.items, strict=True):
            by_name.setdefault(node.metadata.name, item)
    return Question(pod, record, tuple(by_name), tuple(by_name.values()))


def _read_parts(body: bytes) -> dict[str, msgspec.Raw | bytes]:
    """The parts of a request; NodeNames may be invalid JSON.

    A scheduler writes NodeNames last. It is read only once if it is cut off before: to find its end
    takes a decoder longer than all else in the body.
    """
    # Whole Nodes end otherwise, and are not searched.
    start, end = body.find(_LAST_KEY) if body.endswith(b"]}") else -1, len(body) - len(b"}")
    # A comma and an unescaped quote are nowhere inside of a text, so this is a key.
    if start >= 0 and body.find(b"]", start) == end - len(b"]"):
        with suppress(BadRequestError):
            parts = read_parts(body[:start] + b"}", _FILTER_KEYS)
            return parts | {"nodenames": body[start + len(_LAST_KEY) : end]}
    return {**read_parts(body, _FILTER_KEYS)}


def filter_reply(question: Question, passed: Sequence[str], refusals: Refusals) -> FilterReply:
    """The reply to filter: `passed` are the names of the question without refusal, and `refusals`
    are in the order of its names.

    All of them are unresolvable: the scheduler's preemption simulates its own filters alone, so it
    would find no victims on these nodes.
    """
    following = msgspec.structs.replace(question, names=passed)
    if isinstance(passed, NodeNames) and isinstance(question.names, NodeNames):
        texts = [b'":%s,"' % _encoder.encode(kind.reason) for kind in refusals.kinds]
        reasons = question.names.followed_by(texts, refusals.codes)[: -len(b',"')]
        quote, names = b'"' if reasons else b"", passed.json()
        # The encoder would copy half a megabyte several times.
        parts = (_BEFORE_NAMES, names, _AFTER_NAMES, quote, reasons, _AFTER_REASONS)
        return FilterReply(b"".join(parts), names, following)
    names, nodes = b"", None
    if question.nodes is None:
        names = _encoder.encode([*passed])
    else:
        items = [*compress(question.nodes, (~refusals.is_refused).tolist())]
        nodes = {"metadata": {}, "items": items}
    result = ExtenderFilterResult(
        nodes=nodes,
        node_names=msgspec.Raw(names) if names else None,  # type: ignore[arg-type]
        failed_nodes={},
        failed_and_unresolvable_nodes={
            name: refusals.kinds[code].reason
            for name, code in zip(question.names, refusals.codes.tolist(), strict=True)
            if code != PASSES
        },
    )
    return FilterReply(_encoder.encode(result), names, following)


def prioritize_reply(names: Sequence[str], scores: IntArray) -> bytes:
    """The reply to prioritize: a whole number per node (kube-scheduler drops a reply with 7.0)."""
    if isinstance(names, NodeNames) and len(names):
        texts = [b'","Score":%d},{"Host":"' % score for score in range(int(scores.max()) + 1)]
        items = names.followed_by(texts, scores)[: -len(b',{"Host":"')]
        return b"".join((b'[{"Host":"', items, b"]"))
    return _encoder.encode([*map(HostPriority, names, scores.tolist())])


def read_parts(body: bytes, keys: str) -> dict[str, msgspec.Raw]:
    """The parts of a request by their keys in lower case. Raises `BadRequestError` that names the
    keys that should have been sent."""
    return {key.lower(): value for key, value in decode_part(_top, body, "body", keys).items()}


def read_args(kind: type[ArgsT], parts: Mapping[str, msgspec.Raw | bytes], keys: str) -> ArgsT:
    """Decode the parts of a request. Raises `BadRequestError` that names the part, and the keys
    that should have been sent."""
    fields = {}
    for field, name, required, decoder in _fields_of(kind):
        if name.lower() in parts:
            fields[field] = decode_part(decoder, parts[name.lower()], name, keys)
        elif required:
            raise BadRequestError(f"{name} is missing", hint=f"send {keys}")
    return kind(**fields)


@cache
def _fields_of(
    kind: type[msgspec.Struct],
) -> tuple[tuple[str, str, bool, "msgspec.json.Decoder[Any]"], ...]:
    """Each field of a struct: its name, its JSON name, whether it is required, and its decoder."""
    return tuple(
        (field.name, field.encode_name, field.required, msgspec.json.Decoder(field.type))
        for field in msgspec.structs.fields(kind)
    )


def read_pod(pod: msgspec.Raw, keys: str) -> tuple[Pod, PodRecord]:
    """The pod of a request, and its record. Raises `BadRequestError`."""
    refuse_large_pod(pod)
    try:
        return decode_part(_pod, pod, "Pod", keys), read_manifest(pod)
    except InvalidRecordError as error:
        raise BadRequestError(f"Pod: {error.message}", hint=f"send {keys}") from error


def refuse_large_pod(pod: msgspec.Raw) -> None:
    """Raise `BadRequestError` for a pod over `limits.MAX_POD_BYTES`."""
    if memoryview(pod).nbytes > limits.MAX_POD_BYTES:
        raise BadRequestError(f"Pod has more than {limits.MAX_POD_BYTES} bytes")


def refuse_too_many(nodes: int) -> None:
    """Raise `BadRequestError` for more nodes than `limits.MAX_NODES`."""
    if nodes > limits.MAX_NODES:
        raise BadRequestError(
            f"more than {limits.MAX_NODES} nodes", hint="ask about no more than that at a time"
        )


def decode_part(
    decoder: "msgspec.json.Decoder[T]", data: bytes | msgspec.Raw, what: str, keys: str
) -> T:
    """Decode a part of a request. Raises `BadRequestError` that names the part, and the `keys` that
    should have been sent."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{what}: {error}", hint=f"send {keys}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{what} is not JSON: {error}", hint=f"send {keys}") from error
    except RecursionError as error:
        raise BadRequestError(f"{what} is nested too deeply", hint=f"send {keys}") from error
