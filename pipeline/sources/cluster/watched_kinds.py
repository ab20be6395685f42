"""Turn list and watch events of one kind of object into topic entries and tombstones.

Each kind is called in this order: `begin`, `put` for each object of a list, `complete`, then `put`
and `delete` for changes. If the list is doubtful, `suspect_missing` replaces `complete`. After the
returned entries are written the topic matches the API server. No tombstone is written for an
unlisted object before its list is complete, because an interrupted list would delete the rest of
the cluster. An invalid object is refused and logged; its last record stays, because the object
still exists.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.processors.kubernetes.object_records import read_node, read_pod
from pipeline.processors.kubernetes.workload_records import read_workload
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.sources.cluster.written_pods import WrittenPods
from pipeline.sources.compacted_writer import Entry, node_entry, pod_entry
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord, detached
from pipeline.topics.pods import pod_key, split_pod_key
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from pipeline.topics.workloads import WorkloadRecord, workload_key

log = get_logger(__name__)

_DEFAULTS: Final = load_policies(None)[0]

REFUSED = counter("watcher_refused_objects", "Objects refused because they are invalid.", ["kind"])


class Kind(Protocol):
    """A kind of object that the watcher follows."""

    name: str

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take over a record on the topic; `value` is None unless this source wrote it.

        Raises `RecordError` if it is invalid.
        """

    def begin(self) -> None:
        """Start a new list."""

    def put(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        """Apply an object that exists; return the entries to write."""

    def delete(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        """Apply a deletion; return the entries to write."""

    def count_missing(self) -> tuple[int, int]:
        """Return how many known objects the list does not contain, and how many of them are not
        suspects."""

    def suspect_missing(self) -> None:
        """Make all objects that the list does not contain, and no others, suspects. An object that
        is `put` is no suspect any more."""

    def complete(self) -> Iterator[Entry]:
        """End the list; return tombstones for all objects that it does not contain."""

    def __len__(self) -> int:
        """Return the number of known objects."""


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Manifest(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_manifests = msgspec.json.Decoder(_Manifest)


def _metadata(manifest: msgspec.Raw) -> _Metadata:
    """Return the identity of an object; fields are empty if the object is invalid."""
    try:
        return _manifests.decode(manifest).metadata
    except (msgspec.DecodeError, UnicodeError):
        return _Metadata()


def _refuse(kind: str, manifest: msgspec.Raw, error: InvalidRecordError) -> _Metadata:
    """Count and log an invalid object; return its identity."""
    metadata = _metadata(manifest)
    REFUSED.labels(kind).inc()
    log.warning("invalid object refused; its last record stays", per=kind, kind=kind,
                name=metadata.name, namespace=metadata.namespace, why=error.message)  # fmt: skip
    return metadata


class Pods:
    """Pods by uid. A pod without a node has its record under the empty node until it is bound."""

    name = "Pod"

    def __init__(self) -> None:
        self._written = WrittenPods()
        self._unlisted_pods: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._written)

    def restore(self, key: bytes, value: bytes | None) -> None:
        node, uid = split_pod_key(key)
        if value is not None:
            before = self._written.put(uid, node, value).node_before
            if before not in (None, node):
                # The pod was bound while a watcher failed; the next list shows its node.
                self._unlisted_pods |= {(node, uid), (before, uid)}
            return
        self._unlisted_pods.discard((node, uid))
        if self._written.node_of(uid) == node:
            self._written.drop(uid)

    def begin(self) -> None:
        self._written.begin()

    def count_missing(self) -> tuple[int, int]:
        return self._written.count_missing()

    def suspect_missing(self) -> None:
        self._written.suspect_missing()

    def put(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        try:
            entry = pod_entry(record := read_pod(manifest))
        except InvalidRecordError as error:
            self._written.mark_listed(_refuse(self.name, manifest, error).uid)
            return ()
        assert entry.value is not None
        differs, before = self._written.put(record.uid, record.node, entry.value)
        if not differs:
            return ()
        if before is not None and before != record.node:
            return (self._tombstone(before, record.uid), entry)
        return (entry,)

    def delete(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        uid = _metadata(manifest).uid
        node = self._written.drop(uid)
        return () if node is None else (self._tombstone(node, uid),)

    def complete(self) -> Iterator[Entry]:
        for uid, node in self._written.missing():
            self._written.drop(uid)
            yield self._tombstone(node, uid)
        unlisted_pods, self._unlisted_pods = self._unlisted_pods, set()
        for node, uid in sorted(unlisted_pods):
            if self._written.node_of(uid) != node:
                yield self._tombstone(node, uid)

    @staticmethod
    def _tombstone(node: str, uid: str) -> Entry:
        return Entry(PODS, node, pod_key(node, uid), None)


Key = TypeVar("Key", str, bytes)
Record = TypeVar("Record", NodeRecord, WorkloadRecord)


class _WrittenRecords(Generic[Key, Record]):
    """The records of a kind on its topic, and which of their objects the list contains."""

    def __init__(self) -> None:
        # None: the record on the topic is invalid.
        self._written: dict[Key, Record | None] = {}
        self._listed: set[Key] = set()
        self._suspects: set[Key] = set()

    def __len__(self) -> int:
        return len(self._written)

    def begin(self) -> None:
        self._listed = set()

    def count_missing(self) -> tuple[int, int]:
        missing = self._missing()
        return len(missing), len(missing - self._suspects)

    def suspect_missing(self) -> None:
        self._suspects = self._missing()

    def complete(self) -> Iterator[Entry]:
        for key in self._missing():
            yield from self._drop(key)

    def _missing(self) -> set[Key]:
        return self._written.keys() - self._listed

    def _mark_listed(self, key: Key) -> None:
        self._listed.add(key)
        self._suspects.discard(key)

    def _drop(self, key: Key) -> Iterable[Entry]:
        """Forget a record; return its tombstone."""
        raise NotImplementedError


ReportProblems = Callable[[str, tuple[PolicyProblem, ...]], None]
"""Takes a node and the problems of its own policy when they change; an empty tuple: resolved."""


class Nodes(_WrittenRecords[str, NodeRecord]):
    """Nodes, each with the policy in force for it."""

    name = "Node"

    def __init__(self, report_problems: ReportProblems) -> None:
        super().__init__()
        self.policies = Policies()
        self.descheduling: Descheduling | None = None
        self._report_problems = report_problems
        self._without_policy: dict[str, NodeRecord] = {}
        self._problems: dict[str, tuple[PolicyProblem, ...]] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        name = key.decode(errors="replace")
        if value is None:
            self._written.pop(name, None)
            return
        self._written[name] = None
        self._written[name] = detached(decode_json(NodeRecord, value))

    def put(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        try:
            node = read_node(manifest)
        except InvalidRecordError as error:
            self._mark_listed(_refuse(self.name, manifest, error).name)
            return ()
        self._mark_listed(node.node)
        self._without_policy[node.node] = node
        return self._entry(node)

    def delete(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        return self._drop(_metadata(manifest).name)

    def apply(
        self, policies: Policies, descheduling: Descheduling | None = None
    ) -> Iterator[Entry]:
        """Put another policy in force for all nodes; yield the records that change. Without a
        DeschedulerConfiguration the last one stays.

        Nodes may be added, changed and deleted between two entries.
        """
        self.policies = policies
        self.descheduling = descheduling or self.descheduling
        for name in list(self._without_policy):
            if (node := self._without_policy.get(name)) is not None:
                yield from self._entry(node)

    def _entry(self, node: NodeRecord) -> Iterable[Entry]:
        before = self._written.get(node.node)
        policies = self.policies
        if before is None and policies == Policies():
            # No ConfigMap was seen since the start: other nodes keep the policy of their record.
            policies = _DEFAULTS
        record, problems = with_policy(node, policies, before)
        if problems != self._problems.get(node.node, ()):
            self._problems[node.node] = problems
            self._report_problems(node.node, problems)
        record = with_hot_nodes(record, self.descheduling, before)
        if record == before:
            return ()
        self._written[node.node] = record
        return (node_entry(record),)

    def _drop(self, key: str) -> Iterable[Entry]:
        self._without_policy.pop(key, None)
        self._problems.pop(key, None)
        if key not in self._written:
            return ()
        del self._written[key]
        return (Entry(NODES, key, key.encode(), None),)


class Workloads(_WrittenRecords[bytes, WorkloadRecord]):
    """Objects of one kind that own pods or limit their eviction."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.name = kind

    def restore(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._written.pop(key, None)
            return
        self._written[key] = None
        self._written[key] = decode_json(WorkloadRecord, value)

    def put(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        try:
            record = read_workload(manifest, self.name)
        except InvalidRecordError as error:
            self._mark_listed(self._key(_refuse(self.name, manifest, error)))
            return ()
        key = workload_key(record.namespace, record.kind, record.name)
        self._mark_listed(key)
        if self._written.get(key) == record:
            return ()
        self._written[key] = record
        return (Entry(WORKLOADS, record.namespace, key, encode_json(record)),)

    def delete(self, manifest: msgspec.Raw) -> Iterable[Entry]:
        return self._drop(self._key(_metadata(manifest)))

    def _key(self, metadata: _Metadata) -> bytes:
        return workload_key(metadata.namespace, self.name, metadata.name)

    def _drop(self, key: bytes) -> Iterable[Entry]:
        if key not in self._written:
            return ()
        del self._written[key]
        return (Entry(WORKLOADS, key.decode().partition("/")[0], key, None),)
