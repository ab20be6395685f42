"""Build the body of `POST /v1/explain` for a pod in a manifest or on the topic `pods`.

Commands send or evaluate this body, so they decide about a pod as the extender does.
"""

import difflib
import heapq
from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import RecordError, UsageError
from pipeline.input_files import YAML_ERRORS, yaml_documents, yaml_problem
from pipeline.processors.kubernetes.top_owner import top_owner, workload_of
from pipeline.processors.kubernetes.typed_names import TypedName, read_typed_name
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodFacts
from pipeline.topics.registry import PODS

_MAX_NAMES: Final = 1000
"""Names in memory, among which a misspelt name is looked up."""
_MAX_CANDIDATES: Final = 1000
"""Pods among which one is chosen."""


def pod_in_file(file: Path | str, text: bytes | str) -> bytes:
    """Return the request body for the pod in `text`, which is YAML or JSON.

    `text` has a Pod, a List with a Pod, or a workload with a pod template such as a Deployment, Job
    or CronJob. Raises `UsageError` with the name of `file` unless it has exactly one pod.
    """
    try:
        pods = [pod for tree in yaml_documents(text) for pod in _pods(tree)]
        if len(pods) == 1:
            return msgspec.json.encode({"pod": pods[0]})
    except (*YAML_ERRORS, msgspec.MsgspecError, TypeError) as error:
        raise UsageError(
            f"{file} is neither YAML nor JSON: {yaml_problem(error):.200}",
            hint="correct the manifest",
        ) from error
    raise UsageError(
        f"{file} has {len(pods) or 'no'} {'pods' if pods else 'pod'}",
        hint="give a file with one Pod, Deployment, StatefulSet, DaemonSet, Job or CronJob",
    )


def _pods(tree: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(tree, dict):
        return
    if isinstance(items := tree.get("items"), list):
        for item in items:
            yield from _pods(item)
    elif tree.get("kind") == "Pod":
        yield tree
    elif (template := _template(tree)) is not None:
        yield _pod_of_template(tree, template)


def _template(tree: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod template of a workload, None if there is none."""
    if tree.get("kind") == "PodTemplate":
        tree = {"spec": tree}
    for path in (("spec", "template"), ("spec", "jobTemplate", "spec", "template")):
        template: Any = tree
        for key in path:
            template = template.get(key) if isinstance(template, dict) else None
        if isinstance(template, dict):
            return template
    return None


def _pod_of_template(owner: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that the owner would create, with its owner reference."""
    owner_metadata, metadata = (
        value if isinstance(value := tree.get("metadata"), dict) else {}
        for tree in (owner, template)
    )
    reference = {
        "kind": owner.get("kind"),
        "name": owner_metadata.get("name", ""),
        "controller": True,
    }
    identity = {key: owner_metadata[key] for key in ("namespace", "name") if key in owner_metadata}
    return {"metadata": {**identity, **metadata, "ownerReferences": [reference]}} | {
        "spec": template.get("spec") or {}
    }


class Candidate(NamedTuple):
    """A pod that may be meant. The largest of several is taken: a pod that waits for a node, else
    the newest."""

    is_pending: bool
    created_at: str
    record: bytes
    workload: str


async def pod_on_topic(kafka: KafkaSettings, title: str) -> bytes:
    """Return the request body for the newest record of a pod on the topic `pods`.

    `title` names a pod, or the workload of pods, or the beginning of either (see
    `read_typed_name`), by default in the namespace `default`. Raises `UsageError` if there is no
    such pod, or if pods of several workloads begin so.
    """
    typed = read_typed_name(title)
    typed = typed._replace(namespace=typed.namespace or "default")
    # Decode only records with a text that begins so.
    encoded_name = msgspec.json.encode(typed.name)[:-1]
    candidates: dict[_Match, dict[bytes, Candidate]] = {match: {} for match in _Match}
    names: set[str] = set()
    async for message in all_records(kafka, PODS):
        for matching in candidates.values():
            matching.pop(message.key, None)
        value = message.value
        if value is None or (encoded_name not in value and len(names) >= _MAX_NAMES):
            continue
        try:
            pod = decode_json(PodFacts, value)
        except RecordError:
            continue
        match = _match(pod, typed)
        if match is not None:
            candidate = Candidate(not pod.node, pod.created_at or "", value, _workload_text(pod))
            add_candidate(candidates[match], message.key, candidate)
        elif pod.name.isprintable() and (pod.name == typed.name or len(names) < _MAX_NAMES):
            names.add(f"{pod.namespace}/{pod.name}")
    for match in _Match:
        if candidates[match]:
            return b'{"podRecord": %s}' % _chosen([*candidates[match].values()], match, typed)
    raise _no_pod_error(typed, sorted(names))


def add_candidate(candidates: dict[bytes, Candidate], key: bytes, candidate: Candidate) -> None:
    """Add a pod. Of too many only those stay that would be taken first: not the first ones of the
    topic, since a pod that waits for a node has a record near its end."""
    candidates[key] = candidate
    if len(candidates) > 2 * _MAX_CANDIDATES:
        first = heapq.nlargest(_MAX_CANDIDATES, candidates.items(), key=itemgetter(1))
        candidates.clear()
        candidates.update(first)


class _Match(IntEnum):
    """How a pod matches what was typed, the best first."""

    NAME = 0
    WORKLOAD = 1
    BEGINNING = 2


def _match(pod: PodFacts, typed: TypedName) -> _Match | None:
    if pod.namespace != typed.namespace:
        return None
    if typed.has_kind("Pod") and pod.name == typed.name:
        return _Match.NAME
    owners = [each for each in (top_owner(pod), pod.owner) if each and typed.has_kind(each.kind)]
    if any(owner.name == typed.name for owner in owners):
        return _Match.WORKLOAD
    named = [owner.name for owner in owners] + [pod.name] * typed.has_kind("Pod")
    return _Match.BEGINNING if any(name.startswith(typed.name) for name in named) else None


def _workload_text(pod: PodFacts) -> str:
    """The workload of a pod, or the pod itself if it has none, as a user may type it."""
    workload = workload_of(pod)
    return f"{pod.namespace}/{pod.name}" if workload is None else str(workload)


def _chosen(candidates: Sequence[Candidate], match: _Match, typed: TypedName) -> bytes:
    """The record of the pod to explain."""
    workloads = sorted({candidate.workload for candidate in candidates})
    if match is not _Match.NAME and len(workloads) > 1:
        raise UsageError(
            f"pods of {len(workloads)} workloads begin with {typed.namespace}/{typed.name}"[:300],
            hint=f"did you mean {', '.join(workloads[:3])}?",
        )
    # The tombstone of an earlier pod of this name may be missing: take the newest.
    return max(candidates).record


def _no_pod_error(typed: TypedName, names: Sequence[str]) -> UsageError:
    title = f"{typed.namespace}/{typed.name}"
    elsewhere = [other for other in names if other.endswith(f"/{typed.name}")][:3]
    suggestions = elsewhere or difflib.get_close_matches(title, names, n=3)
    return UsageError(
        f"there is no pod {f'of {typed.kind} ' if typed.kind else ''}{title}"[:300],
        hint=f"did you mean {', '.join(suggestions)}?"
        if suggestions
        else "pods come from `springtide watcher` or worker.pods_file; or give a file: -f pod.yaml",
    )
