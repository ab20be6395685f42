"""The pod that somebody asks about: in a manifest that need not be in a cluster, or on the topic.

Owes the rest: the body of `POST /v1/explain` about it; for what has no pod, or several, an error
that says so.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from pipeline.errors import RecordError, UsageError
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodFacts
from pipeline.topics.registry import PODS

_NAMES_NEAR: Final = 1000
"""So many other names at most are looked through for one that may have been meant."""


def pod_in_file(file: Path, text: str) -> bytes:
    """The question about the one pod in `text`, YAML or JSON: a Pod, a List with one, or the pod
    that a Deployment, Job, CronJob or the like makes. Raises `UsageError`; `file` is named in it.
    """
    try:
        trees = list(yaml.safe_load_all(text))
        pods = [pod for tree in trees for pod in _pods(tree)]
        if len(pods) == 1:
            return msgspec.json.encode({"pod": pods[0]})
    except (yaml.YAMLError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"{file} is neither YAML nor JSON: {first:.200}") from error
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
        yield _made_by(tree, template)


def _template(tree: dict[str, Any]) -> dict[str, Any] | None:
    """The pod template of what makes pods, None for what makes none."""
    if tree.get("kind") == "PodTemplate":
        tree = {"spec": tree}
    found: Any = tree
    for path in (("spec", "template"), ("spec", "jobTemplate", "spec", "template")):
        found = tree
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return found
    return None


def _made_by(owner: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """The pod that the owner would make: a DaemonSet's passes everywhere."""
    of_owner, metadata = (
        found if isinstance(found := tree.get("metadata"), dict) else {}
        for tree in (owner, template)
    )
    reference = {"kind": owner.get("kind"), "name": of_owner.get("name", ""), "controller": True}
    named = {key: of_owner[key] for key in ("namespace", "name") if key in of_owner}
    return {"metadata": {**named, **metadata, "ownerReferences": [reference]}} | {
        "spec": template.get("spec") or {}
    }


async def pod_on_topic(kafka: KafkaSettings, title: str) -> bytes:
    """The question about the pod `namespace/name`, or `name` in the namespace `default`, as the
    topic `pods` has it last. Raises `UsageError` if there is none."""
    namespace, _, name = title.rpartition("/")
    namespace = namespace or "default"
    # Most records are others: they are not decoded.
    said = msgspec.json.encode(name)
    found: dict[bytes, tuple[str, bytes]] = {}
    near: set[str] = set()
    async for message in all_records(kafka, PODS):
        found.pop(message.key, None)
        value = message.value
        if value is None or (said not in value and len(near) >= _NAMES_NEAR):
            continue
        try:
            pod = decode_json(PodFacts, value)
        except RecordError:
            continue
        if (pod.namespace, pod.name) == (namespace, name):
            found[message.key] = pod.created_at or "", value
        elif pod.name.isprintable() and (pod.name == name or len(near) < _NAMES_NEAR):
            near.add(f"{pod.namespace}/{pod.name}")
    if found:
        # One of that name may have gone unseen: the younger is meant.
        return b'{"podRecord": %s}' % max(found.values())[1]
    elsewhere = sorted(one for one in near if one.endswith(f"/{name}"))[:3]
    meant = elsewhere or difflib.get_close_matches(f"{namespace}/{name}", sorted(near), n=3)
    raise UsageError(
        f"there is no pod {namespace}/{name}"[:300],
        hint=f"did you mean {', '.join(meant)}?"
        if meant
        else "pods come from `springtide watcher` or worker.pods_file; or give a file: -f pod.yaml",
    )
