"""Events of one kind of object into entries to write, and what vanished into tombstones.

Owes the rest: of each kind an order of calls (`begin`, `put` for each object of a list, `complete`,
then `put` and `gone` for changes) that gives what must be written so that the topic says what the
API server says. Nothing vanishes while a list is not complete. An object that cannot be used is
refused by name; what was written of it stays.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.kubernetes.object_records import read_node, read_pod
from pipeline.processors.kubernetes.workload_records import read_workload
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.policy_in_force import Policies, with_policy
from pipeline.sources.cluster.written_pods import Seen
from pipeline.sources.compacted_writer import Entry, node_entry, pod_entry
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord, detached
from pipeline.topics.pods import pod_key, split_pod_key
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from pipeline.topics.workloads import WorkloadRecord, workload_key

log = get_logger(__name__)

REFUSED = counter("watcher_refused_objects", "Objects that could not be used.", ["kind"])


class Kind(Protocol):
    """What the watcher follows."""

    name: str

    def learn(self, key: bytes, value: bytes | None) -> None:
        """Take over what lies on the topic: a record that this source wrote, None for none."""

    def begin(self) -> None:
        """A whole list begins."""

    def put(self, of: msgspec.Raw) -> Iterable[Entry]:
        """What must be written for an object that is there."""

    def gone(self, of: msgspec.Raw) -> Iterable[Entry]:
        """What must be written for an object that was deleted."""

    def complete(self) -> Iterator[Entry]:
        """What must be written for those that the list did not have."""

    def __len__(self) -> int:
        """How many are known."""


class _Name(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Name = msgspec.field(default_factory=_Name)


_names = msgspec.json.Decoder(_Named)


def name_of(of: msgspec.Raw) -> _Name:
    """Who an object is, as far as it says."""
    try:
        return _names.decode(of).metadata
    except (msgspec.DecodeError, UnicodeError):
        return _Name()


def refuse(kind: str, of: msgspec.Raw, error: InvalidRecordError) -> _Name:
    """Say that an object cannot be used; gives who it is."""
    who = name_of(of)
    REFUSED.labels(kind).inc()
    log.warning("object cannot be used; what was written of it stays", kind=kind, name=who.name,
                namespace=who.namespace, why=error.message)  # fmt: skip
    return who


class Pods:
    """Pods, by uid; one that moves to a node leaves its record under the empty node."""

    name = "Pod"

    def __init__(self) -> None:
        self._seen = Seen()
        self._strays: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, key: bytes, value: bytes | None) -> None:
        node, uid = split_pod_key(key)
        if value is not None:
            before = self._seen.put(uid, node, value).before
            if before not in (None, node):
                # Of a pod that moved while somebody was cut off. Where it is the list will say.
                self._strays |= {(node, uid), (before, uid)}
            return
        self._strays.discard((node, uid))
        if self._seen.node_of(uid) == node:
            self._seen.drop(uid)

    def begin(self) -> None:
        self._seen.begin()

    def put(self, of: msgspec.Raw) -> Iterable[Entry]:
        try:
            entry = pod_entry(record := read_pod(of))
        except InvalidRecordError as error:
            self._seen.keep(refuse(self.name, of, error).uid)
            return ()
        assert entry.value is not None
        differs, before = self._seen.put(record.uid, record.node, entry.value)
        if not differs:
            return ()
        if before is not None and before != record.node:
            return (self._tombstone(before, record.uid), entry)
        return (entry,)

    def gone(self, of: msgspec.Raw) -> Iterable[Entry]:
        uid = name_of(of).uid
        node = self._seen.drop(uid)
        return () if node is None else (self._tombstone(node, uid),)

    def complete(self) -> Iterator[Entry]:
        for uid, node in self._seen.missing():
            self._seen.drop(uid)
            yield self._tombstone(node, uid)
        strays, self._strays = self._strays, set()
        for node, uid in sorted(strays):
            if self._seen.node_of(uid) != node:
                yield self._tombstone(node, uid)

    @staticmethod
    def _tombstone(node: str, uid: str) -> Entry:
        return Entry(PODS, node, pod_key(node, uid), None)


Tell = Callable[[str, tuple[PolicyProblem, ...]], None]
"""Takes the problems of a node's own policy, when they change; none is good news."""


class Nodes:
    """Nodes, each with the policy that is in force for it."""

    name = "Node"

    def __init__(self, tell: Tell) -> None:
        self.policies = Policies()
        self._tell = tell
        self._bare: dict[str, NodeRecord] = {}
        # None: there is a record, which cannot be read.
        self._written: dict[str, NodeRecord | None] = {}
        self._problems: dict[str, tuple[PolicyProblem, ...]] = {}
        self._listed: set[str] = set()

    def __len__(self) -> int:
        return len(self._written)

    def learn(self, key: bytes, value: bytes | None) -> None:
        name = key.decode(errors="replace")
        if value is None:
            self._written.pop(name, None)
            return
        self._written[name] = None
        self._written[name] = detached(decode_json(NodeRecord, value))

    def begin(self) -> None:
        self._listed = set()

    def put(self, of: msgspec.Raw) -> Iterable[Entry]:
        try:
            bare = read_node(of)
        except InvalidRecordError as error:
            self._listed.add(refuse(self.name, of, error).name)
            return ()
        self._listed.add(bare.node)
        self._bare[bare.node] = bare
        return self._entry(bare)

    def gone(self, of: msgspec.Raw) -> Iterable[Entry]:
        return self._drop(name_of(of).name)

    def complete(self) -> Iterator[Entry]:
        for name in self._written.keys() - self._listed:
            yield from self._drop(name)

    def apply(self, policies: Policies) -> Iterator[Entry]:
        """Put another policy in force for all nodes; gives what changes by it.

        Between two entries nodes may come, change and go.
        """
        self.policies = policies
        for name in list(self._bare):
            if (bare := self._bare.get(name)) is not None:
                yield from self._entry(bare)

    def _entry(self, bare: NodeRecord) -> Iterable[Entry]:
        before = self._written.get(bare.node)
        record, problems = with_policy(bare, self.policies, before)
        if problems != self._problems.get(bare.node, ()):
            self._problems[bare.node] = problems
            self._tell(bare.node, problems)
        if record == before:
            return ()
        self._written[bare.node] = record
        return (node_entry(record),)

    def _drop(self, name: str) -> Iterable[Entry]:
        self._bare.pop(name, None)
        self._problems.pop(name, None)
        if name not in self._written:
            return ()
        del self._written[name]
        return (Entry(NODES, name, name.encode(), None),)


class Workloads:
    """Objects of one kind that own pods, or limit their evictions."""

    def __init__(self, kind: str) -> None:
        self.name = kind
        # None: there is a record, which cannot be read.
        self._written: dict[bytes, WorkloadRecord | None] = {}
        self._listed: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._written)

    def learn(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._written.pop(key, None)
            return
        self._written[key] = None
        self._written[key] = decode_json(WorkloadRecord, value)

    def begin(self) -> None:
        self._listed = set()

    def put(self, of: msgspec.Raw) -> Iterable[Entry]:
        try:
            record = read_workload(of, self.name)
        except InvalidRecordError as error:
            self._listed.add(self._key(refuse(self.name, of, error)))
            return ()
        key = workload_key(record.namespace, record.kind, record.name)
        self._listed.add(key)
        if self._written.get(key) == record:
            return ()
        self._written[key] = record
        return (Entry(WORKLOADS, record.namespace, key, encode_json(record)),)

    def gone(self, of: msgspec.Raw) -> Iterable[Entry]:
        return self._drop(self._key(name_of(of)))

    def complete(self) -> Iterator[Entry]:
        for key in self._written.keys() - self._listed:
            yield from self._drop(key)

    def _key(self, who: _Name) -> bytes:
        return workload_key(who.namespace, self.name, who.name)

    def _drop(self, key: bytes) -> Iterable[Entry]:
        if key not in self._written:
            return ()
        del self._written[key]
        return (Entry(WORKLOADS, key.decode().partition("/")[0], key, None),)
