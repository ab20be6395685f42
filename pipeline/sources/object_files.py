"""Nodes and pods from files, as `kubectl get nodes -o json` and `kubectl get pods -A -o json`
print them, for where there is no API server to watch.

JSON only (kubectl's YAML is not read): a List, a NodeList or PodList, a single object, or an array.
One file may hold both kinds (`kubectl get nodes,pods -A -o json`): name it twice. The files are
read again when they change, and are the truth: what vanished from them is removed. An object that
cannot be used costs itself; what is known of it stays. A file that cannot be read changes nothing.
A policy beside them is resolved for each node; a broken edit of it leaves the last good one.

Only one process may run this source for a cluster: two would remove each other's records if their
files differ.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
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
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.policy.load_configmap import PolicyProblem as PolicyProblem
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.compacted_writer import (
    Entry,
    difference,
    node_entry,
    open_producer,
    pod_entry,
    read_back,
    write,
)
from pipeline.sources.policy_file import filter_limits, read_config_map, report_problems
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import split_pod_key
from pipeline.topics.registry import NODES, PODS, Topic

SOURCE: Final = "file"
POLL_SECONDS: Final = 2.0

REFUSED = counter("file_source_refused_objects", "Objects that could not be used.", ["kind"])
READ_AT = gauge("file_source_read_timestamp_seconds", "When the files were last read.")

log = get_logger(__name__)

Kind = Literal["Node", "Pod"]
_COMMANDS: Final[Mapping[Kind, str]] = {
    "Node": "kubectl get nodes -o json",
    "Pod": "kubectl get pods -A -o json",
}
_TOPICS: Final[Mapping[Kind, Topic]] = {"Node": NODES, "Pod": PODS}


class Problem(NamedTuple):
    """An object that could not be used: which one, and why. `identity` is the node's name or the
    pod's uid, empty if not even that is readable."""

    kind: Kind
    file: Path
    name: str
    identity: str
    reason: str


@dataclass(frozen=True, slots=True)
class Objects:
    """What the file of one kind holds: records by key, and what could not be used."""

    kind: Kind
    entries: Mapping[bytes, Entry] = field(default_factory=dict)
    problems: Sequence[Problem] = ()

    @property
    def has_nameless(self) -> bool:
        """Whether an object was refused of which not even the identity is known."""
        return any(not problem.identity for problem in self.problems)

    def keep(self, known: Mapping[bytes, bytes]) -> set[bytes]:
        """The keys of `known` that must stay, because their object is there but cannot be used."""
        if self.has_nameless:
            return set(known)
        refused = {problem.identity for problem in self.problems}
        return {key for key in known if _identity_of(self.kind, key) in refused}


def read_objects(path: Path, kind: Kind) -> Objects:
    """The Node or Pod objects in the file at `path`; objects of other kinds are passed over.

    Raises `InvalidRecordError` if the file as a whole cannot be read: it is missing, empty, half
    written, or no JSON of Kubernetes objects.
    """
    entries: dict[bytes, Entry] = {}
    problems: list[Problem] = []
    for tree in _objects(path, kind):
        try:
            entry = node_entry(node_record(tree)) if kind == "Node" else pod_entry(pod_record(tree))
            if entry.key in entries:
                raise InvalidRecordError("it is there twice")
            entries[entry.key] = entry
        except InvalidRecordError as error:
            name, identity = _who(tree, kind)
            problems.append(Problem(kind, path, name, identity, error.message))
    return Objects(kind, entries, tuple(problems))


async def publish_files(
    kafka: KafkaSettings,
    producer: Producer,
    files: Sequence[Objects],
    known: dict[Kind, dict[bytes, bytes]],
) -> int:
    """Write what differs between `files` and what is `known` on the topics, which is brought up to
    date; gives the number of records written.

    Nodes are written before pods, so that a pod's node is there.
    """
    written = 0
    for objects in files:
        on_topic = known[objects.kind]
        changes = difference(
            _TOPICS[objects.kind], objects.entries, on_topic, objects.keep(on_topic)
        )
        written += await write(producer, kafka, SOURCE, changes)
        for change in changes:
            if change.value is None:
                del on_topic[change.key]
            else:
                on_topic[change.key] = change.value
    return written


ProducerFactory = Callable[[KafkaSettings, str], AbstractAsyncContextManager[Producer]]


async def run_file_source(
    settings: Settings,
    nodes_file: Path | None,
    pods_file: Path | None,
    clock: Clock,
    producers: ProducerFactory = open_producer,
    patient: bool = False,
) -> None:
    """Keep the topics `nodes` and `pods` equal to the files, until cancelled.

    A kind without a file is left alone; nodes carry what `worker.policy_file` says, if it is set.
    Raises `SettingsError` if a file cannot be read at the start (later, and from the start if
    `patient`, that is logged, what is on the topics stays, and the next version is waited for),
    `TopicDriftError` if a topic is missing, `KafkaError` if the broker does not take what is
    written.
    """
    paths = file_paths(nodes_file, pods_file)
    policy = PolicyFile(settings) if settings.worker.policy_file and "Node" in paths else None
    watched = [*paths.values(), *([policy.path] if policy else [])]
    stamps = _stamps(watched)
    try:
        files = read_at_start(paths)
    except SettingsError as error:
        if not patient:
            raise
        log.error("file cannot be used; its next version is waited for", why=str(error))
        stamps, files = await _next_version(paths, watched, stamps, clock, [])
    kafka = settings.kafka
    await require_topics(kafka)
    known = {kind: await read_back(kafka, _TOPICS[kind], SOURCE) for kind in paths}
    async with producers(kafka, "springtide-file-source") as producer:
        while True:
            said = files
            if policy is not None:
                await asyncio.to_thread(policy.read)
                said = [policy.put_into(objects, known["Node"]) for objects in files]
            READ_AT.set(clock.now())
            _tell(said, await publish_files(kafka, producer, said, known))
            stamps, files = await _next_version(paths, watched, stamps, clock, files)


class PolicyFile:
    """The policy in a file, and the last good one of each of its parts."""

    def __init__(self, settings: Settings) -> None:
        assert settings.worker.policy_file is not None
        self.path: Path = settings.worker.policy_file
        self._limits = filter_limits(settings)
        self._policies = Policies()
        self._of_nodes: dict[str, tuple[PolicyProblem, ...]] = {}

    def read(self) -> None:
        """Take over what the file says now; what of it cannot be used changes nothing, is logged
        and counted."""
        try:
            data = read_config_map(self.path)
        except (InvalidPolicyError, UsageError) as error:
            report_problems([PolicyProblem(str(self.path), error.message)])
            return
        self._policies, problems = load_policies(data, self._policies, self._limits)
        report_problems(problems)

    def put_into(self, objects: Objects, known: Mapping[bytes, bytes]) -> Objects:
        """The same nodes with what is in force for each; anything else as it is. What is `known` of
        a node counts where there was no usable policy yet."""
        if objects.kind != "Node":
            return objects
        entries = {}
        for key, entry in objects.entries.items():
            bare = decode_json(NodeRecord, entry.value or b"")
            found, problems = with_policy(bare, self._policies, _published(known.get(key)))
            if problems != self._of_nodes.get(bare.node, ()):
                self._of_nodes[bare.node] = problems
                for problem in problems:
                    log.warning("policy of a node", node=bare.node, problem=str(problem))
            entries[key] = node_entry(found)
        return replace(objects, entries=entries)


def _published(value: bytes | None) -> NodeRecord | None:
    try:
        return None if value is None else decode_json(NodeRecord, value)
    except RecordError:
        return None


def file_paths(nodes_file: Path | None, pods_file: Path | None) -> dict[Kind, Path]:
    """The files that are given, by the kind that they hold."""
    given: dict[Kind, Path | None] = {"Node": nodes_file, "Pod": pods_file}
    return {kind: path for kind, path in given.items() if path is not None}


async def _next_version(
    paths: Mapping[Kind, Path],
    watched: Sequence[Path],
    seen: "_Stamps",
    clock: Clock,
    before: Sequence[Objects],
) -> tuple["_Stamps", list[Objects]]:
    """Waits until a file that is watched has changed and all have then stood still for a poll, and
    reads those of `paths`. Of one that cannot be used it is what was read `before`; where there is
    none the next version is waited for."""
    last = seen
    while True:
        await clock.sleep(POLL_SECONDS)
        now = await asyncio.to_thread(_stamps, watched)
        if now == last and now != seen:
            found = await asyncio.to_thread(_read_all, paths, before)
            if len(found) == len(paths):
                return now, found
            seen = now
        last = now


_Stamps = tuple[tuple[int, int, int] | None, ...]


def _stamps(paths: Sequence[Path]) -> _Stamps:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_all(paths: Mapping[Kind, Path], before: Sequence[Objects]) -> list[Objects]:
    found = []
    for kind, path in paths.items():
        try:
            found.append(read_objects(path, kind))
        except InvalidRecordError as error:
            log.error("file cannot be used; what was read before stays", why=str(error))
            found += [objects for objects in before if objects.kind == kind]
    return found


def read_at_start(paths: Mapping[Kind, Path], policy: Path | None = None) -> list[Objects]:
    """What the files hold; raises `SettingsError` for one that cannot be read, and for a `policy`
    without the ConfigMap. What its keys say may be wrong: then it is told, and all else works."""
    if policy is not None:
        try:
            read_config_map(policy)
        except (InvalidPolicyError, UsageError) as error:
            key = "worker.policy_file"
            raise SettingsError(f"{key}: {error.message}", key=key, hint=error.hint) from error
    found = []
    for kind, path in paths.items():
        key = f"worker.{kind.lower()}s_file"
        try:
            found.append(read_objects(path, kind))
        except InvalidRecordError as error:
            raise SettingsError(
                f"{key}: {error.message}",
                key=key,
                hint=error.hint or f"write it with: {_COMMANDS[kind]}",
            ) from error
    return found


def _tell(files: Sequence[Objects], written: int) -> None:
    for objects in files:
        for problem in objects.problems:
            REFUSED.labels(problem.kind).inc()
            log.warning("object cannot be used", kind=problem.kind, name=problem.name,
                        file=str(problem.file), why=problem.reason)  # fmt: skip
    counts = ", ".join(f"{len(o.entries)} {o.kind.lower()}s" for o in files)
    log.info("files are published", written=written, objects=counts)


def _objects(path: Path, kind: Kind) -> list[Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRecordError(f"cannot read {path}: {error.strerror}") from error
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(
            f"{path} is no JSON: {error}", hint="kubectl with -o json; YAML is not read"
        ) from error
    items, implied = _items(tree, path)
    kinds = [item.get("kind", implied) if isinstance(item, dict) else kind for item in items]
    if kind not in kinds and (items or kind == "Node"):
        # A file named the wrong way round, or a query that found nothing, must not delete the
        # cluster: with a node go its models.
        raise InvalidRecordError(
            f"{path} holds {len(items)} objects, none of them a {kind}",
            hint=f"write it with: {_COMMANDS[kind]}",
        )
    return [item for item, found in zip(items, kinds, strict=True) if found == kind]


def _items(tree: Any, path: Path) -> tuple[list[Any], str]:
    if isinstance(tree, list):
        return tree, ""
    if isinstance(tree, dict) and isinstance(kind := tree.get("kind"), str):
        if not kind.endswith("List"):
            return [tree], kind
        items = tree.get("items")
        if isinstance(items, list) or items is None:
            # Items of a NodeList or PodList, as the API itself gives it, do not say their kind.
            return items or [], kind.removesuffix("List")
    raise InvalidRecordError(f"{path} holds no Kubernetes objects")


def _who(tree: Any, kind: Kind) -> tuple[str, str]:
    metadata = tree.get("metadata") if isinstance(tree, dict) else None
    if not isinstance(metadata, dict):
        return "?", ""
    name, namespace, uid = (metadata.get(key) for key in ("name", "namespace", "uid"))
    shown = f"{namespace}/{name}" if kind == "Pod" else str(name)
    identity = name if kind == "Node" else uid
    return shown[:300], identity if isinstance(identity, str) else ""


def _identity_of(kind: Kind, key: bytes) -> str:
    try:
        return key.decode() if kind == "Node" else split_pod_key(key)[1]
    except (UnicodeDecodeError, InvalidRecordError):
        return ""
