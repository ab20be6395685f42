"""Build the body of `POST /v1/explain` for a pod in a manifest or on the topic `pods`.

Commands send or evaluate this body, so they decide about a pod as the extender does.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline.errors import RecordError, UsageError
from pipeline.input_files import YAML_ERRORS, yaml_documents, yaml_problem
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodFacts
from pipeline.topics.registry import PODS

_MAX_NAMES: Final = 1000
"""Names in memory, among which a misspelt name is looked up."""


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


async def pod_on_topic(kafka: KafkaSettings, title: str) -> bytes:
    """Return the request body for the newest record of a pod on the topic `pods`.

    `title` is `namespace/name`, or `name` in the namespace `default`. Raises `UsageError` if there
    is no such pod.
    """
    namespace, _, name = title.rpartition("/")
    namespace = namespace or "default"
    # Decode only records that contain the name.
    encoded_name = msgspec.json.encode(name)
    matches: dict[bytes, tuple[str, bytes]] = {}
    names: set[str] = set()
    async for message in all_records(kafka, PODS):
        matches.pop(message.key, None)
        value = message.value
        if value is None or (encoded_name not in value and len(names) >= _MAX_NAMES):
            continue
        try:
            pod = decode_json(PodFacts, value)
        except RecordError:
            continue
        if (pod.namespace, pod.name) == (namespace, name):
            matches[message.key] = pod.created_at or "", value
        elif pod.name.isprintable() and (pod.name == name or len(names) < _MAX_NAMES):
            names.add(f"{pod.namespace}/{pod.name}")
    if matches:
        # The tombstone of an earlier pod of this name may be missing: take the newest.
        return b'{"podRecord": %s}' % max(matches.values())[1]
    elsewhere = sorted(other for other in names if other.endswith(f"/{name}"))[:3]
    suggestions = elsewhere or difflib.get_close_matches(f"{namespace}/{name}", sorted(names), n=3)
    raise UsageError(
        f"there is no pod {namespace}/{name}"[:300],
        hint=f"did you mean {', '.join(suggestions)}?"
        if suggestions
        else "pods come from `springtide watcher` or worker.pods_file; or give a file: -f pod.yaml",
    )
