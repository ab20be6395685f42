"""Objects of a cluster as manifests, what lies on topics, and waiting for it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import Topic
from tests.processes import eventually

Object = dict[str, Any]

PARTITIONS = 3
"""Of the topics of these tests."""


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **amounts: str,
) -> Object:
    found = {"cpu": "8", "memory": "32Gi", "pods": "110"} | amounts
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": found, "allocatable": found},
    }


def pod(
    name: str,
    *,
    on: str | None = None,
    among: Sequence[str] = (),
    labels: dict[str, str] | None = None,
    priority_class: str | None = None,
    **asked: str,
) -> Object:
    """A pod on a node, or one that a scheduler may put on nodes `among` these alone."""
    resources = {"requests": asked, "limits": asked}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "terminationGracePeriodSeconds": 0,
            **({"nodeName": on} if on else {}),
            **({"affinity": _affinity(among)} if among else {}),
            **({"priorityClassName": priority_class} if priority_class else {}),
        },
    }


def _affinity(names: Sequence[str]) -> Object:
    one_of = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in names
    ]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": one_of}
        }
    }


def apply(plane: ControlPlane, *objects: Object) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    plane.kubectl("apply", "-f", "-", given=json.dumps(listing))


def define(plane: ControlPlane, path: str) -> None:
    """Apply definitions of custom resources, a file or a folder of them; return when the server
    serves them. `kubectl wait` fails where one has no condition at all yet."""
    plane.kubectl("apply", "-f", path)
    assert eventually(lambda: all(map(_is_served, items(plane, "crd"))), 60)


def _is_served(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def delete(plane: ControlPlane, kind: str, *names: str) -> None:
    flags = ["--ignore-not-found"] + (["--force"] if kind == "pod" else [])
    plane.kubectl("delete", kind, *names, *flags)


# Who makes others comes first.
_REMOVED = (
    "deployment", "daemonset", "statefulset", "job", "replicaset", "poddisruptionbudget", "pod",
    "configmap", "node", "priorityclass",
)  # fmt: skip

There = frozenset[tuple[str, str, str]]
"""Kind, namespace and name of each object; what has no namespace has that of `<none>`."""


def there(plane: ControlPlane) -> There:
    """Of what tests make in a cluster all that is there, but what the cluster has by itself."""
    columns = "custom-columns=:kind,:metadata.namespace,:metadata.name"
    found = plane.kubectl("get", ",".join(_REMOVED), "-A", "--no-headers", "-o", columns)
    lines = (line.split() for line in found.splitlines() if line.strip())
    return frozenset(
        (kind.lower(), namespace, name)
        for kind, namespace, name in lines
        if namespace != "kube-system" and name != "kube-root-ca.crt"
    )


def only(plane: ControlPlane, stays: There) -> bool:
    """Delete everything but the permanent objects; return whether nothing else exists."""
    gone: dict[tuple[str, str], list[str]] = {}
    for kind, namespace, name in there(plane) - stays:
        gone.setdefault((kind, namespace), []).append(name)
    for kind, namespace in sorted(gone, key=lambda of: _REMOVED.index(of[0])):
        where = [] if namespace == "<none>" else ["-n", namespace]
        if kind == "pod":
            remove_pods(plane, namespace)
        else:
            names = gone[kind, namespace]
            plane.kubectl("delete", kind, *names, *where, "--ignore-not-found", "--wait=false")
    return not gone


def remove_pods(plane: ControlPlane, namespace: str = "default") -> None:
    """All of them by one request: of kubectl's own, one by one, eighty take half a minute."""
    plane.kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")


def items(plane: ControlPlane, *what: str) -> list[Object]:
    found: list[Object] = json.loads(plane.kubectl("get", *what, "-o", "json"))["items"]
    return found


def write_policy(plane: ControlPlane, name: str, **sections: Any) -> None:
    """The ConfigMap with the policy; a section that is a text is written as it is."""
    data = {
        key.replace("_", "-"): of if isinstance(of, str) else json.dumps(of)
        for key, of in sections.items()
    }
    apply(
        plane,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "koordinator-system"},
            "data": data,
        },
    )


async def messages(kafka: KafkaSettings, topic: Topic) -> list[Any]:
    """Every record of `topic`."""
    partitions = topic_partitions(kafka, topic)
    async with open_follower(client_options(kafka), partitions) as follower:
        await follower.begin()
        return [record async for records in follower.read_to_end() for record in records]


async def latest(kafka: KafkaSettings, topic: Topic) -> dict[str, bytes]:
    """What a reader of a compacted topic knows in the end, by key."""
    values: dict[str, bytes] = {}
    for message in await messages(kafka, topic):
        if message.value is None:
            values.pop(message.key.decode(), None)
        else:
            values[message.key.decode()] = message.value
    return values


def manifests(of: Iterable[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(of)})
