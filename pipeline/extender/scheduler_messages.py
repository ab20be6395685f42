"""Messages of the kube-scheduler extender protocol: bytes to a question, an answer to bytes.

Owes the rest: top-level keys in any letter case read, capitalised keys written; an answer in the
form of the question (names, or whole Node objects passed back byte for byte, never parsed deeper
than their name); for everything that is no question a `BadRequestError` that says what is wrong.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from pipeline.errors import BadRequestError, InvalidRecordError
from pipeline.extender.filters import Refusal
from pipeline.processors.arrays import IntArray
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.table.name_index import Names
from pipeline.topics.pods import PodRecord

FILTER_KEYS: Final = "an object with Pod and either NodeNames or Nodes"

MOST_NAMES: Final = 50_000
"""Nodes of a question, several times those of the largest clusters."""
_MOST_NAMES_BYTES: Final = MOST_NAMES * 256

T = TypeVar("T")


class OwnerReference(msgspec.Struct, frozen=True):
    kind: str = ""
    controller: bool | None = None


class PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    owner_references: tuple[OwnerReference, ...] | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    preemption_policy: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    nominated_node_name: str | None = None


class Pod(msgspec.Struct, frozen=True):
    """The part of a Pod that is read so far."""

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def title(self) -> str:
        """`namespace/name` for people."""
        return f"{self.metadata.namespace[:253]}/{self.metadata.name[:253]}"

    @property
    def may_push_out(self) -> bool:
        """Whether others may be evicted for it; so it is unless it says otherwise."""
        return self.spec.preemption_policy != "Never"

    @property
    def of_daemon_set(self) -> bool:
        return any(owner.kind == "DaemonSet" for owner in self.metadata.owner_references or ())


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None


class Question(msgspec.Struct, frozen=True):
    """What filter and prioritize are asked: about which pod, and which nodes, each once.

    `nodes` holds the Node objects as they came, in the order of `names`; None in the form with
    names alone, of which `json` is as they came, if each came once. So is `pod_json` the pod.
    """

    pod: Pod
    record: PodRecord
    names: Sequence[str]
    nodes: tuple[msgspec.Raw, ...] | None = None
    json: bytes = b""
    pod_json: bytes = b""


class _FilterAnswer(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: Any
    node_names: msgspec.Raw | None
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]
    error: str = ""


class _HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    host: str
    score: int


_names = msgspec.json.Decoder(list[str] | None)
_nodes = msgspec.json.Decoder(_NodeList | None)
_node = msgspec.json.Decoder(_Node)
_pod = msgspec.json.Decoder(Pod)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_NULL: Final = msgspec.Raw(b"null")


class Sent(NamedTuple):
    """Names as they were sent in an answer, and as the JSON that they were sent as, when, and about
    which pod."""

    names: Sequence[str]
    json: bytes
    pod: Pod
    record: PodRecord
    at: float = 0.0


def read_question(
    body: bytes,
    sent: Mapping[bytes, Sent] | None = None,
    may_repeat: Callable[[Names], bool] = Names.may_repeat,
) -> Question:
    """The question in the body of a filter or prioritize request. A scheduler asks which of the
    names that filter left is best: of what was `sent`, by the pod's JSON, nothing is read again.

    Raises `BadRequestError`: not JSON, no object, a part of the wrong type, no pod, not exactly one
    of NodeNames and Nodes, or more than `MOST_NAMES` of them. Unknown keys are accepted. A name
    that is given twice counts once.
    """
    parts, said = _parts(body)
    if "pod" not in parts:
        raise BadRequestError("Pod is missing", hint=f"send {FILTER_KEYS}")
    pod_json = bytes(parts["pod"])
    before = (sent or {}).get(pod_json)
    alone = said is not None and parts.get("nodes", _NULL) == _NULL
    if before is not None and alone and before.json == said:
        return Question(before.pod, before.record, before.names, pod_json=pod_json)
    pod = decode_part(_pod, pod_json, "Pod")
    if len(said or b"") > _MOST_NAMES_BYTES:
        raise too_many()
    plain = Names.read(said) if alone and said is not None else None
    must_be_few(plain or ())
    if said is not None and plain is not None and not may_repeat(plain):
        return Question(pod, manifest(pod_json), plain, None, said, pod_json)
    names = None if said is None else decode_part(_names, said, "NodeNames")
    listed = decode_part(_nodes, parts["nodes"], "Nodes") if "nodes" in parts else None
    if (names is None) == (listed is None):
        raise BadRequestError(
            "neither NodeNames nor Nodes" if names is None else "both NodeNames and Nodes",
            hint=f"send {FILTER_KEYS}, as nodeCacheCapable says",
        )
    must_be_few(names or (listed and listed.items) or ())
    record = manifest(pod_json)
    if names is not None:
        each = tuple(dict.fromkeys(names))
        json = (said or b"") * (len(each) == len(names))
        return Question(pod, record, each, None, json, pod_json)
    by_name: dict[str, msgspec.Raw] = {}
    for position, item in enumerate((listed and listed.items) or ()):
        name = decode_part(_node, item, f"Nodes.items[{position}]").metadata.name
        by_name.setdefault(name, item)
    return Question(pod, record, tuple(by_name), tuple(by_name.values()))


def _parts(body: bytes) -> tuple[dict[str, msgspec.Raw], bytes | None]:
    """The parts of a question by their keys in small letters, and its names, None for no key.

    A scheduler writes the names last, and with no other bracket behind the one that opens them: all
    that comes before is then an object with whatever else in their place, and read for itself. A
    comma and a quote, neither of them escaped, are in no text.
    """
    begins = body.find(_LAST) + len(_LAST) - 1 if body.endswith(_END) else 0
    if begins >= len(_LAST) and body.find(b"]", begins) == len(body) - len(_END):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            parts, keys = _small(_top.decode(body[:begins] + b"null}"))
            if keys.count("nodenames") == 1:
                return parts, body[begins:-1]
    parts, _ = _small(decode_part(_top, body, "body"))
    said = parts.get("nodenames")
    return parts, None if said is None else bytes(said)


def _small(top: dict[str, msgspec.Raw]) -> tuple[dict[str, msgspec.Raw], list[str]]:
    """Parts by their keys in small letters, and all of these keys."""
    keys = [key.lower() for key in top]
    return dict(zip(keys, top.values(), strict=True)), keys


_LAST: Final = b',"NodeNames":['
_END: Final = b"]}"


def must_be_few(names: Sized) -> None:
    """Raise `BadRequestError` for more than `MOST_NAMES`."""
    if len(names) > MOST_NAMES:
        raise too_many()


def too_many() -> BadRequestError:
    return BadRequestError(
        f"more than {MOST_NAMES} nodes", hint="ask about no more than that at a time"
    )


def manifest(pod: bytes | msgspec.Raw) -> PodRecord:
    """What counts of a pod of a question. Raises `BadRequestError`."""
    try:
        return read_manifest(pod)
    except InvalidRecordError as error:
        raise BadRequestError(f"Pod: {error.message}", hint=f"send {FILTER_KEYS}") from error


def kept_names(question: Question, left: Sequence[str]) -> Sent:
    """The names that filter leaves of a question, in its order."""
    json = question.json
    if len(left) < len(question.names) or not json:
        json = left.json() if isinstance(left, Names) else _encoder.encode(left)
    return Sent(left, json, question.pod, question.record)


def filter_answer(question: Question, refused: Mapping[str, Refusal], kept: Sent) -> bytes:
    """The reply to filter: all nodes of the question but those in `refused`, which `kept` are.

    What evicting pods would not cure is given as unresolvable, so that preemption does not try: the
    usage of the last window would be no lower.
    """
    cured = {name: one.reason for name, one in refused.items() if one.curable}
    others = {name: one.reason for name, one in refused.items() if not one.curable}
    nodes = None
    if question.nodes is not None:
        pairs = zip(question.names, question.nodes, strict=True)
        nodes = {"metadata": {}, "items": [node for name, node in pairs if name not in refused]}
    return _encoder.encode(
        _FilterAnswer(
            nodes=nodes,
            node_names=msgspec.Raw(kept.json) if nodes is None else None,
            failed_nodes=cured,
            failed_and_unresolvable_nodes=others,
        )
    )


def prioritize_answer(names: Sequence[str], scores: IntArray) -> bytes:
    """The reply to prioritize: a whole number per node (kube-scheduler drops a reply with 7.0)."""
    if isinstance(names, Names) and len(names) and names.are_alike:
        return _written_beside(names, scores)
    return _encoder.encode([*map(_HostPriority, names, scores.tolist())])


_BEFORE: Final = b'{"Host":"'
_BETWEEN: Final = b',"Score":'


def _written_beside(names: Names, scores: IntArray) -> bytes:
    """The same with each node in as many bytes, blanks where it needs fewer: there is no object of
    any name."""
    most = int(scores.max())
    texts = np.array([b"%*d" % (len(str(most)), score) for score in range(most + 1)])
    hosts = names.ended()
    each = _BEFORE + bytes(hosts.itemsize) + _BETWEEN + bytes(texts.itemsize) + b"},"
    places = {"host": len(_BEFORE), "score": len(each) - len(b"},") - texts.itemsize}
    row = np.dtype(
        {
            "names": [*places],
            "formats": [hosts.dtype, texts.dtype],
            "offsets": [*places.values()],
            "itemsize": len(each),
        }
    )
    answer = bytearray(b"[" + each * len(names))
    rows = np.frombuffer(answer, row, offset=1)
    rows["host"], rows["score"] = hosts, texts[scores]
    answer[-1:] = b"]"
    return bytes(answer)


def decode_part(
    decoder: "msgspec.json.Decoder[T]",
    data: bytes | msgspec.Raw,
    what: str,
    keys: str = FILTER_KEYS,
) -> T:
    """What `decoder` makes of a part of a question. Raises `BadRequestError` that names the part,
    and the `keys` that should have been sent."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{what}: {error}", hint=f"send {keys}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{what} is not JSON: {error}", hint=f"send {keys}") from error
    except RecursionError as error:
        raise BadRequestError(f"{what} is nested too deeply") from error
