"""Publish nodes and pods from files, for clusters whose API server cannot be watched.

The files are the output of `kubectl get nodes -o json` and `kubectl get pods -A -o json`: a List, a
NodeList or PodList, a single object, or an array; YAML is not supported. One file may contain both
kinds (`kubectl get nodes,pods -A -o json`): name it twice. Changed files are read again. Objects
deleted from a file are removed from the topics. An invalid object keeps its last record, and an
unreadable file changes nothing: a mistake in a file must not delete a cluster and its models. A
policy file is resolved for each node; an invalid edit leaves the last valid policy in force.

Only one process may run this source for a cluster: two would remove each other's records if their
files differ.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pipeline.clock import Clock
from pipeline.errors import (
    InvalidPolicyError,
    InvalidRecordError,
    RecordError,
    SettingsError,
    UsageError,
)
from pipeline.file_stamps import FileStamps, file_stamps
from pipeline.input_files import LARGEST_LIST_BYTES, read_file
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.policy.load_configmap import PolicyProblem as PolicyProblem
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.compacted_writer import (
    Entry,
    ProducerFactory,
    difference,
    node_entry,
    open_producer,
    pod_entry,
    read_back,
    write,
)
from pipeline.sources.policy_file import (
    config_map_in,
    descheduling_in,
    filter_limits,
    policy_objects,
    read_config_map,
    report_problems,
)
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import split_pod_key
from pipeline.topics.registry import NODES, PODS, Topic

SOURCE: Final = "file"
POLL_SECONDS: Final = 2.0

REFUSED = counter(
    "file_source_refused_objects", "Objects refused because they are invalid.", ["kind"]
)
LAST_READ = gauge("file_source_read_timestamp_seconds", "When the files were last read.")

log = get_logger(__name__)

Kind = Literal["Node", "Pod"]
_COMMANDS: Final[Mapping[Kind, str]] = {
    "Node": "kubectl get nodes -o json",
    "Pod": "kubectl get pods -A -o json",
}
_TOPICS: Final[Mapping[Kind, Topic]] = {"Node": NODES, "Pod": PODS}


class Problem(NamedTuple):
    """An invalid object and the reason. `identity` is the name of the node or the uid of the pod;
    empty if it is unreadable."""

    kind: Kind
    file: Path
    name: str
    identity: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileObjects:
    """The objects of one kind in a file: entries by key, and the invalid objects."""

    kind: Kind
    entries: Mapping[bytes, Entry] = field(default_factory=dict)
    problems: Sequence[Problem] = ()

    def retained_keys(self, known: Mapping[bytes, bytes]) -> set[bytes]:
        """Return the keys of `known` whose object exists or may exist, but is invalid."""
        refused = {problem.identity for problem in self.problems}
        if "" in refused:  # any of them may be the invalid object
            return set(known)
        return {key for key in known if _identity_of_key(self.kind, key) in refused}


def read_objects(path: Path, kind: Kind) -> FileObjects:
    """Read the Node or Pod objects in the file at `path`; ignore objects of other kinds.

    Raises `InvalidRecordError` if the file is missing, empty, truncated, or not JSON of Kubernetes
    objects.
    """
    data = read_file(path, LARGEST_LIST_BYTES, error=InvalidRecordError, hint=_hint(kind))
    return objects_in(data, path, kind)


def objects_in(data: bytes, path: Path, kind: Kind) -> FileObjects:
    """The Node or Pod objects in the content of a file. Raises `InvalidRecordError`."""
    entries: dict[bytes, Entry] = {}
    problems: list[Problem] = []
    for tree in _objects(data, path, kind):
        try:
            entry = node_entry(node_record(tree)) if kind == "Node" else pod_entry(pod_record(tree))
            if entry.key in entries:
                raise InvalidRecordError("duplicate object")
            entries[entry.key] = entry
        except InvalidRecordError as error:
            name, identity = _identify(tree, kind)
            problems.append(Problem(kind, path, name, identity, error.message))
    return FileObjects(kind, entries, tuple(problems))


async def publish_files(
    kafka: KafkaSettings,
    producer: Producer,
    files: Sequence[FileObjects],
    known: dict[Kind, dict[bytes, bytes]],
) -> int:
    """Write the differences between `files` and `known`; return the number of records written.

    `known` has the values on the topics and is updated. Nodes are written before pods, so that the
    node of a pod exists.
    """
    written = 0
    for objects in files:
        on_topic = known[objects.kind]
        changes = difference(
            _TOPICS[objects.kind], objects.entries, on_topic, objects.retained_keys(on_topic)
        )
        written += await write(producer, kafka, SOURCE, changes)
        for change in changes:
            if change.value is None:
                del on_topic[change.key]
            else:
                on_topic[change.key] = change.value
    return written


async def run_file_source(
    settings: Settings,
    nodes_file: Path | None,
    pods_file: Path | None,
    clock: Clock,
    producers: ProducerFactory = open_producer,
    wait_for_files: bool = False,
) -> None:
    """Keep the topics `nodes` and `pods` equal to the files until cancelled.

    A kind without a file is not published. Nodes carry the policy in `worker.policy_file`, if that
    is set. A file that becomes unreadable later is logged, and its records stay until its next
    version. Raises `SettingsError` if a file is unreadable at the start, unless `wait_for_files` is
    true; `TopicDriftError` if a topic is missing; `KafkaError` if records cannot be delivered.
    """
    paths = file_paths(nodes_file, pods_file)
    policy = PolicyFile(settings) if settings.worker.policy_file and "Node" in paths else None
    watched = [*paths.values(), *([policy.path] if policy else [])]
    stamps = file_stamps(watched)
    try:
        files = read_at_start(paths)
    except SettingsError as error:
        if not wait_for_files:
            raise
        log.error("unreadable file; waiting for its next version", why=str(error))
        stamps, files = await _next_version(paths, watched, stamps, clock, [])
    kafka = settings.kafka
    await require_topics(kafka, [*_TOPICS.values()])
    known = {kind: await read_back(kafka, _TOPICS[kind], SOURCE) for kind in paths}
    async with producers(kafka, "springtide-file-source") as producer:
        while True:
            objects_of_kinds = files
            if policy is not None:
                await asyncio.to_thread(policy.read)
                objects_of_kinds = [policy.apply(objects, known["Node"]) for objects in files]
            LAST_READ.set(clock.now())
            written = await publish_files(kafka, producer, objects_of_kinds, known)
            _report(objects_of_kinds, written)
            stamps, files = await _next_version(paths, watched, stamps, clock, files)


class PolicyFile:
    """The policy in a file, with the last valid value of each of its parts."""

    def __init__(self, settings: Settings) -> None:
        assert settings.worker.policy_file is not None
        self.path: Path = settings.worker.policy_file
        self._limits = filter_limits(settings)
        self._policies = Policies()
        self._descheduling: Descheduling | None = None
        self._node_problems: dict[str, tuple[PolicyProblem, ...]] = {}

    def read(self) -> None:
        """Read the file. Invalid parts are logged and counted, and leave their last valid value."""
        try:
            objects = policy_objects(self.path)
            data = config_map_in(objects, self.path)
            descheduling, problems = descheduling_in(objects, self.path) or (None, ())
        except (InvalidPolicyError, UsageError) as error:
            report_problems([PolicyProblem(str(self.path), error.message)])
            return
        self._policies, policy_problems = load_policies(data, self._policies, self._limits)
        self._descheduling = descheduling or self._descheduling
        report_problems([*policy_problems, *problems])

    def apply(self, objects: FileObjects, known: Mapping[bytes, bytes]) -> FileObjects:
        """Return the nodes with the policy in force for each; return pods unchanged.

        `known` has the records on the topic: their policy stays until there was a valid one.
        """
        if objects.kind != "Node":
            return objects
        entries = {}
        for key, entry in objects.entries.items():
            node = decode_json(NodeRecord, entry.value or b"")
            before = _published(known.get(key))
            record, problems = with_policy(node, self._policies, before)
            record = with_hot_nodes(record, self._descheduling, before)
            if problems != self._node_problems.get(node.node, ()):
                self._node_problems[node.node] = problems
                for problem in problems:
                    log.warning("invalid policy of node", node=node.node, problem=str(problem))
            entries[key] = node_entry(record)
        return replace(objects, entries=entries)


def _published(value: bytes | None) -> NodeRecord | None:
    try:
        return None if value is None else decode_json(NodeRecord, value)
    except RecordError:
        return None


def file_paths(nodes_file: Path | None, pods_file: Path | None) -> dict[Kind, Path]:
    """Return the given files by the kind of their objects."""
    given: dict[Kind, Path | None] = {"Node": nodes_file, "Pod": pods_file}
    return {kind: path for kind, path in given.items() if path is not None}


async def _next_version(
    paths: Mapping[Kind, Path],
    watched: Sequence[Path],
    seen: FileStamps,
    clock: Clock,
    before: Sequence[FileObjects],
) -> tuple[FileStamps, list[FileObjects]]:
    """Wait until a watched file has changed and all are unchanged for one poll; read `paths`.

    An unreadable file is replaced by its objects in `before`. If there are none, wait on.
    """
    last = seen
    while True:
        await clock.sleep(POLL_SECONDS)
        now = await asyncio.to_thread(file_stamps, watched)
        if now == last and now != seen:
            files = await asyncio.to_thread(_read_all, paths, before)
            if len(files) == len(paths):
                return now, files
            seen = now
        last = now


def _read_all(paths: Mapping[Kind, Path], before: Sequence[FileObjects]) -> list[FileObjects]:
    files = []
    for kind, path in paths.items():
        try:
            files.append(read_objects(path, kind))
        except InvalidRecordError as error:
            log.error("unreadable file; its last objects stay", why=str(error))
            files += [objects for objects in before if objects.kind == kind]
    return files


def read_at_start(paths: Mapping[Kind, Path], policy: Path | None = None) -> list[FileObjects]:
    """Read the files at the start of a process.

    Raises `SettingsError` for an unreadable file, and for a `policy` file without the ConfigMap.
    Invalid values in the ConfigMap are not checked here.
    """
    if policy is not None:
        try:
            read_config_map(policy)
        except (InvalidPolicyError, UsageError) as error:
            key = "worker.policy_file"
            raise SettingsError(f"{key}: {error.message}", key=key, hint=error.hint) from error
    files = []
    for kind, path in paths.items():
        key = f"worker.{kind.lower()}s_file"
        try:
            files.append(read_objects(path, kind))
        except InvalidRecordError as error:
            raise SettingsError(
                f"{key}: {error.message}",
                key=key,
                hint=error.hint or f"write it with: {_COMMANDS[kind]}",
            ) from error
    return files


def _report(files: Sequence[FileObjects], written: int) -> None:
    for objects in files:
        for problem in objects.problems:
            REFUSED.labels(problem.kind).inc()
            log.warning("invalid object refused; its last record stays", kind=problem.kind,
                        name=problem.name, file=str(problem.file), why=problem.reason)  # fmt: skip
    counts = ", ".join(f"{len(objects.entries)} {objects.kind.lower()}s" for objects in files)
    log.info("published files", written=written, objects=counts)


def _hint(kind: Kind) -> str:
    return f"write it with: {_COMMANDS[kind]}"


def _objects(data: bytes, path: Path, kind: Kind) -> list[Any]:
    hint = _hint(kind)
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(
            f"{path} is not JSON: {error}", hint="use kubectl with -o json; YAML is not supported"
        ) from error
    items, implied = _items(tree, path, hint)
    kinds = [item.get("kind", implied) if isinstance(item, dict) else kind for item in items]
    if kind not in kinds and (items or kind == "Node"):
        # Swapped files or an empty query must not delete the cluster: models are deleted with
        # their node.
        raise InvalidRecordError(
            f"{path} has {len(items)} objects, none of them a {kind}", hint=hint
        )
    return [item for item, item_kind in zip(items, kinds, strict=True) if item_kind == kind]


def _items(tree: Any, path: Path, hint: str) -> tuple[list[Any], str]:
    if isinstance(tree, list):
        return tree, ""
    if isinstance(tree, dict) and isinstance(kind := tree.get("kind"), str):
        if not kind.endswith("List"):
            return [tree], kind
        items = tree.get("items")
        if isinstance(items, list) or items is None:
            # In a NodeList or PodList of the API server the items have no kind.
            return items or [], kind.removesuffix("List")
    raise InvalidRecordError(f"{path} has no Kubernetes objects", hint=hint)


def _identify(tree: Any, kind: Kind) -> tuple[str, str]:
    metadata = tree.get("metadata") if isinstance(tree, dict) else None
    if not isinstance(metadata, dict):
        return "?", ""
    name, namespace, uid = (metadata.get(key) for key in ("name", "namespace", "uid"))
    shown = f"{namespace}/{name}" if kind == "Pod" else str(name)
    identity = name if kind == "Node" else uid
    return shown[:300], identity if isinstance(identity, str) else ""


def _identity_of_key(kind: Kind, key: bytes) -> str:
    try:
        return key.decode() if kind == "Node" else split_pod_key(key)[1]
    except (UnicodeDecodeError, InvalidRecordError):
        return ""
