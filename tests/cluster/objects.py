"""Manifests, and objects as kubectl prints them."""

import http.client
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from tests.processes import eventually

Object = dict[str, Any]

PARTITIONS = 3
"""Partitions of each topic of these tests."""
RUNNING = ("--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}')
"""Arguments of `kubectl patch pod NAME` that make a pod running."""


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **amounts: str,
) -> Object:
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"} | amounts
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": resources, "allocatable": resources},
    }  # fmt: skip


def pod(
    name: str,
    *,
    on: str | None = None,
    among: Sequence[str] = (),
    labels: dict[str, str] | None = None,
    priority_class: str | None = None,
    **requests: str,
) -> Object:
    """A pod on the node `on`, or one that may only be scheduled to nodes `among` these."""
    resources = {"requests": requests, "limits": requests}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "terminationGracePeriodSeconds": 0,
            **({"nodeName": on} if on else {}),
            **({"affinity": _affinity(among)} if among else {}),
            **({"priorityClassName": priority_class} if priority_class else {}),
        },
    }  # fmt: skip


def _affinity(names: Sequence[str]) -> Object:
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in names
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def deployment(name: str, replicas: int, **requests: Any) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod(name, **requests)["spec"]}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels}, "template": template,
        },
    }  # fmt: skip


# -- kubectl


def apply(plane: ControlPlane, *objects: Object) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(listing))


def define(plane: ControlPlane, path: str) -> None:
    """Apply definitions of custom resources, a file or a folder of them; return when the server
    serves them. `kubectl wait` fails if one has no condition yet."""
    plane.kubectl("apply", "-f", path)
    assert eventually(lambda: all(map(_is_served, items(plane, "crd"))), 60)


def _is_served(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def delete(plane: ControlPlane, kind: str, *names: str) -> None:
    flags = ["--ignore-not-found"] + (["--force"] if kind == "pod" else [])
    plane.kubectl("delete", kind, *names, *flags)


_LISTS: Final = {
    plural: f"{group}/{{}}{plural}"
    for group, plurals in {
        "/api/v1": ("nodes", "pods", "events", "configmaps"),
        "/apis/apps/v1": ("deployments", "daemonsets", "statefulsets", "replicasets"),
        "/apis/batch/v1": ("jobs",),
        "/apis/coordination.k8s.io/v1": ("leases",),
        "/apis/policy/v1": ("poddisruptionbudgets",),
        "/apis/scheduling.k8s.io/v1": ("priorityclasses",),
        "/apis/scheduling.koordinator.sh/v1alpha1": ("podmigrationjobs",),
        "/apis/slo.koordinator.sh/v1alpha1": ("nodemetrics", "nodeslos"),
    }.items()
    for plural in plurals
}
"""Paths of lists, with the place of the namespace."""
_CLUSTER_SCOPED: Final = {"nodes", "priorityclasses", "podmigrationjobs", "nodemetrics", "nodeslos"}


def items(plane: ControlPlane, kind: str, *flags: str) -> list[Object]:
    """The objects that `kubectl get` returns. Those that tests wait for are read without kubectl,
    which takes 0.1 s of CPU for each look. Raises `ControlPlaneError`."""
    path = _list_path(kind, flags)
    if path is None:
        whole: list[Object] = json.loads(plane.kubectl("get", kind, *flags, "-o", "json"))["items"]
        return whole
    listing = json.loads(_get(plane, path))
    of_each = {"apiVersion": listing["apiVersion"], "kind": listing["kind"].removesuffix("List")}
    for item in listing["items"]:
        item["metadata"].pop("managedFields", None)
    return [of_each | item for item in listing["items"]]


def _list_path(kind: str, flags: Sequence[str]) -> str | None:
    """The path and query of a list; None if only kubectl knows it."""
    scope = "" if kind in _CLUSTER_SCOPED else "namespaces/default/"
    query, words = {}, iter(flags)
    for word in words:
        if word == "-A":
            scope = ""
        elif word == "-n":
            scope = f"namespaces/{next(words)}/"
        elif word == "-l":
            query["labelSelector"] = next(words)
        elif word.startswith("--field-selector="):
            query["fieldSelector"] = word.partition("=")[2]
        else:
            return None
    return f"{_LISTS[kind].format(scope)}?{urlencode(query)}" if kind in _LISTS else None


def _get(plane: ControlPlane, path: str) -> bytes:
    """The body of an answer. A server that is busy is asked again, as kubectl does: it lists new
    custom resources a moment after their definition is there."""
    status, body = _answer(plane, path)
    deadline = time.monotonic() + 60
    while status == http.client.TOO_MANY_REQUESTS and time.monotonic() < deadline:
        time.sleep(0.5)
        status, body = _answer(plane, path)
    if status != http.client.OK:
        raise ControlPlaneError(f"GET {path}: {status} {body.decode(errors='replace')}")
    return body


def _answer(plane: ControlPlane, path: str) -> tuple[int, bytes]:
    address = plane.server.removeprefix("https://")
    connection = http.client.HTTPSConnection(address, timeout=60, context=_client(plane))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ControlPlaneError(f"GET {path}: {error!r}") from error
    finally:
        connection.close()


@lru_cache(maxsize=8)
def _client(plane: ControlPlane) -> ssl.SSLContext:
    """The administrator's certificate."""
    (user,) = json.loads(plane.kubeconfig().read_text())["users"]
    context = ssl.create_default_context(cafile=plane.certificate_authority)
    context.load_cert_chain(user["user"]["client-certificate"], user["user"]["client-key"])
    return context


def named(plane: ControlPlane, kind: str, *flags: str) -> dict[str, Object]:
    """The objects that `kubectl get` returns, by name."""
    return {item["metadata"]["name"]: item for item in items(plane, kind, *flags)}


def event_text(plane: ControlPlane, name: str, *arguments: str) -> str:
    """The messages of the Events of an object; `arguments` select the namespace."""
    field = f"--field-selector=involvedObject.name={name}"
    return " ".join(event["message"] for event in items(plane, "events", field, *arguments))


def policy_event_text(plane: ControlPlane, config_map: str) -> str:
    """The messages of the Events of the policy's ConfigMap."""
    return event_text(plane, config_map, "-n", "koordinator-system")


def service_account(plane: ControlPlane, role: str, project: Path) -> Path:
    """Apply the permissions of a role in deploy/chart/rbac; returns its kubeconfig."""
    plane.kubectl("apply", "-f", str(project / "deploy/chart/rbac" / f"{role}.yaml"))
    return plane.kubeconfig(
        f"system:serviceaccount:springtide-system:springtide-{role}",
        ["system:serviceaccounts", "system:serviceaccounts:springtide-system"],
    )


def service_account_token(plane: ControlPlane, account: str, path: Path) -> Path:
    """A kubeconfig with a token of one of our service accounts, as its pods have it."""
    token = plane.kubectl("create", "token", account, "-n", "springtide-system").strip()
    tree = json.loads(plane.kubeconfig().read_text())
    tree["users"] = [{"name": account, "user": {"token": token}}]
    tree["contexts"][0]["context"]["user"] = account
    path.write_text(json.dumps(tree))
    return path


def assert_forbidden(plane: ControlPlane, account: Path, *commands: str) -> None:
    """RBAC denies each of these kubectl commands to an account."""
    for command in commands:
        with pytest.raises(ControlPlaneError, match="orbidden"):
            plane.kubectl(*command.split(), user=account)


def write_policy(plane: ControlPlane, name: str, **sections: Any) -> None:
    """Write the ConfigMap of the policy; a section that is a text is written unchanged."""
    data = {
        key.replace("_", "-"): section if isinstance(section, str) else json.dumps(section)
        for key, section in sections.items()
    }
    metadata = {"name": name, "namespace": "koordinator-system"}
    apply(plane, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


# Controllers come before the objects that they create.
_KINDS: Final = (
    "deployments", "daemonsets", "statefulsets", "jobs", "replicasets", "poddisruptionbudgets",
    "pods", "configmaps", "nodes", "priorityclasses",
)  # fmt: skip

Existing = frozenset[tuple[str, str, str]]
"""Kind, namespace and name of each object; the namespace is empty for cluster-scoped ones."""


def existing(plane: ControlPlane) -> Existing:
    """All objects of the kinds that tests create, except those of Kubernetes itself."""
    found = (
        (kind, metadata.get("namespace", ""), metadata["name"])
        for kind in _KINDS
        for metadata in (item["metadata"] for item in items(plane, kind, "-A"))
    )
    return frozenset(
        each for each in found if each[1] != "kube-system" and each[2] != "kube-root-ca.crt"
    )


def delete_others(plane: ControlPlane, permanent: Existing) -> bool:
    """Delete everything but the permanent objects; return whether nothing else existed."""
    others: dict[tuple[str, str], list[str]] = {}
    for kind, namespace, name in existing(plane) - permanent:
        others.setdefault((kind, namespace), []).append(name)
    for kind, namespace in sorted(others, key=lambda key: _KINDS.index(key[0])):
        where = ["-n", namespace] if namespace else []
        if kind == "pods":
            delete_pods(plane, namespace)
        else:
            flags = [*where, "--ignore-not-found", "--wait=false"]
            plane.kubectl("delete", kind, *others[kind, namespace], *flags)
    return not others


def delete_pods(plane: ControlPlane, namespace: str = "default") -> None:
    """Delete all pods by one request: kubectl deletes one by one, which takes half a minute."""
    plane.kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")


# -- topics
