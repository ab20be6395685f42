"""Manifests, and objects as kubectl prints them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def items(plane: ControlPlane, *arguments: str) -> list[Object]:
    """The objects that `kubectl get` returns."""
    objects: list[Object] = json.loads(plane.kubectl("get", *arguments, "-o", "json"))["items"]
    return objects


def named(plane: ControlPlane, *arguments: str) -> dict[str, Object]:
    """The objects that `kubectl get` returns, by name."""
    return {item["metadata"]["name"]: item for item in items(plane, *arguments)}


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
_KINDS = (
    "deployment", "daemonset", "statefulset", "job", "replicaset", "poddisruptionbudget", "pod",
    "configmap", "node", "priorityclass",
)  # fmt: skip

Existing = frozenset[tuple[str, str, str]]
"""Kind, namespace and name of each object; the namespace is `<none>` for cluster-scoped ones."""


def existing(plane: ControlPlane) -> Existing:
    """All objects of the kinds that tests create, except those of Kubernetes itself."""
    columns = "custom-columns=:kind,:metadata.namespace,:metadata.name"
    output = plane.kubectl("get", ",".join(_KINDS), "-A", "--no-headers", "-o", columns)
    lines = (line.split() for line in output.splitlines() if line.strip())
    return frozenset(
        (kind.lower(), namespace, name)
        for kind, namespace, name in lines
        if namespace != "kube-system" and name != "kube-root-ca.crt"
    )


def delete_others(plane: ControlPlane, permanent: Existing) -> bool:
    """Delete everything but the permanent objects; return whether nothing else existed."""
    others: dict[tuple[str, str], list[str]] = {}
    for kind, namespace, name in existing(plane) - permanent:
        others.setdefault((kind, namespace), []).append(name)
    for kind, namespace in sorted(others, key=lambda key: _KINDS.index(key[0])):
        where = [] if namespace == "<none>" else ["-n", namespace]
        if kind == "pod":
            delete_pods(plane, namespace)
        else:
            flags = [*where, "--ignore-not-found", "--wait=false"]
            plane.kubectl("delete", kind, *others[kind, namespace], *flags)
    return not others


def delete_pods(plane: ControlPlane, namespace: str = "default") -> None:
    """Delete all pods by one request: kubectl deletes one by one, which takes half a minute."""
    plane.kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")


# -- topics
