"""Requests of the evictor to the API server: pods, workloads and budgets as they are now, and
evictions."""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from actuators.eviction.scales import Scale, ScaleReader
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    InvalidRecordError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.api_client import MERGE, Api, decode_answer, decode_list
from pipeline.kube.limits import PAGE_OBJECTS
from pipeline.processors.eviction.disruption_budgets import DisruptionBudget
from pipeline.processors.eviction.live_pods import LivePod, is_pod_name, read_live_pod
from pipeline.processors.eviction.migration_limits import WorkloadState
from pipeline.processors.kubernetes.workload_records import read_workload
from pipeline.processors.policy.selectors import Selector
from pipeline.times import format_time
from pipeline.topics.pod_columns import ENDED

SOFT_EVICTION: Final = "scheduling.koordinator.sh/soft-eviction"
"""The annotation that asks another agent to evict a pod."""

Options = Mapping[str, Any]
"""The deleteOptions of an eviction; the UID of the pod is always a precondition."""
NO_OPTIONS: Final[Options] = {}

_APPS: Final = "/apis/apps/v1/namespaces/{}/"
_PATHS: Final[Mapping[str, str]] = {
    "Deployment": _APPS + "deployments",
    "ReplicaSet": _APPS + "replicasets",
    "StatefulSet": _APPS + "statefulsets",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
_MOST_PAGES: Final = 20_000
_WITHOUT_SCALE: Final = frozenset({"Job"})
"""Kinds whose pods are not all replaced, and whose work starts again."""


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class PodsBeingDeleted(NamedTuple):
    """The UIDs of the pods that were asked for and exist, pods that are being deleted, and how many
    of these are left out."""

    present: set[str]
    deleted: list[LivePod]
    left_out: int


_objects: Final = msgspec.json.Decoder(_Object)
_budgets: Final = msgspec.json.Decoder(DisruptionBudget)


async def pods_on_node(api: Api, node: str, uids: Collection[str]) -> dict[str, LivePod]:
    """These pods by UID, as far as they are on the node. Other pods there need not be valid."""
    answer = await api.request(
        "GET", "/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}
    )
    pods, request = {}, f"GET pods of {node}"
    for item in decode_list(answer, request).items or ():
        uid = decode_answer(_objects, item, request).metadata.uid
        if uid in uids:
            pods[uid] = read_live_pod(item)
    return pods


async def pods_being_deleted(api: Api, uids: Collection[str], most: int) -> PodsBeingDeleted:
    """Look at all pods of the cluster, page by page: which of `uids` exist, and the `most` pods
    whose deletion ends last. The API server cannot select pods by their deletion."""
    present, deleted, left_out = set[str](), list[LivePod](), 0
    request, params = "GET pods", {"limit": str(PAGE_OBJECTS)}
    for _ in range(_MOST_PAGES):
        page = decode_list(await api.request("GET", "/api/v1/pods", params=params), request)
        for item in page.items or ():
            metadata = decode_answer(_objects, item, request).metadata
            if metadata.uid in uids:
                present.add(metadata.uid)
            if metadata.deletion_timestamp is not None:
                deleted += _ending(item)
        deleted.sort(key=lambda pod: pod.record.deleted_at or "", reverse=True)
        left_out += len(deleted[most:])
        del deleted[most:]
        if not page.metadata.more:
            return PodsBeingDeleted(present, deleted, left_out)
        params = {"limit": str(PAGE_OBJECTS), "continue": page.metadata.more}
    raise ApiUnavailableError(f"{request}: more than {_MOST_PAGES} pages")


def _ending(item: msgspec.Raw) -> list[LivePod]:
    """The pod, if it is valid and its containers still have to end."""
    try:
        pod = read_live_pod(item)
    except InvalidRecordError:
        return []
    return [] if pod.record.phase in ENDED or not pod.record.node else [pod]


async def find_pod(api: Api, namespace: str, name: str) -> LivePod | None:
    """The pod of this name, None if there is none."""
    if not is_pod_name(namespace, name):
        # Jobs and plans may name anything, and the API server takes a%2Flog for the path a/log.
        return None
    try:
        return read_live_pod(await api.request("GET", _pod_path(namespace, name)))
    except NotFoundError as error:
        if error.reason == "NotFound":
            return None
        raise  # a proxy's 404 says nothing about the pod


async def budgets_of(api: Api, namespace: str) -> list[DisruptionBudget]:
    """The disruption budgets of a namespace."""
    path = f"/apis/policy/v1/namespaces/{quote(namespace, safe='')}/poddisruptionbudgets"
    answer = await api.request("GET", path)
    items = decode_list(answer, f"GET {path}").items or ()
    return [decode_answer(_budgets, item, f"GET {path}") for item in items]


async def workload_state(api: Api, pod: LivePod, scales: ScaleReader) -> WorkloadState | None:
    """The workload of a pod and its pods; None for a bare pod. Controllers without a scale, and
    controllers that do not exist, have unknown replicas."""
    workload, owner = pod.workload, pod.record.owner
    if workload is None or owner is None:
        return None
    namespace, kind, name = pod.record.namespace, owner.kind, owner.name
    if not _is_built_in(pod):
        scale = await scales.read(namespace, pod.owner_api_version, kind, name)
    else:
        if workload.kind in _PATHS:
            kind, name = workload.kind, workload.name
        scale = await _scale(api, namespace, kind, name)
    if scale is None:
        return WorkloadState()
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    answer = await api.request("GET", path, params={"labelSelector": scale.selector})
    items = decode_list(answer, f"GET {path}").items or ()
    pods = [other for other in map(read_live_pod, items) if other.workload == workload]
    present = [p for p in pods if not p.is_deleted and p.record.phase not in ENDED]
    has_scale, replicas = kind not in _WITHOUT_SCALE, scale.replicas
    return WorkloadState(
        replicas=replicas,
        unavailable=frozenset(p.record.uid for p in present if not p.is_ready),
        missing=max((replicas or 0) - len(present), 0) if has_scale else 0,
        present=frozenset(p.record.uid for p in present),
        has_scale=has_scale,
    )


def _is_built_in(pod: LivePod) -> bool:
    """Whether the pod's controller is one of Kubernetes: others have kinds of the same names."""
    group, slash, _ = pod.owner_api_version.rpartition("/")
    return not slash or group in ("apps", "batch")


async def _scale(api: Api, namespace: str, kind: str, name: str) -> Scale | None:
    """The scale of a controller of Kubernetes; the pods of a Job run in parallel."""
    if kind not in _PATHS:
        return None
    path = f"{_PATHS[kind].format(quote(namespace, safe=''))}/{quote(name, safe='')}"
    try:
        record = read_workload(await api.request("GET", path), kind)
    except NotFoundError:
        return None
    if record.selector is None:
        return None
    return Scale(record.replicas, query_of(msgspec.convert(record.selector, Selector)))


def query_of(selector: Selector) -> str:
    """A selector in the form of the query parameter labelSelector."""
    parts = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    for requirement in selector.match_expressions or ():
        values = ",".join(requirement.values or ())
        match requirement.operator:
            case "In":
                parts.append(f"{requirement.key} in ({values})")
            case "NotIn":
                parts.append(f"{requirement.key} notin ({values})")
            case "Exists":
                parts.append(requirement.key)
            case _:
                parts.append(f"!{requirement.key}")
    return ",".join(parts)


async def evict(
    api: Api,
    pod: LivePod,
    delete_options: Options = NO_OPTIONS,
    *,
    dry_run: bool = False,
    connect_seconds: float | None = None,
) -> None:
    """Ask the API server to evict the pod of this UID, once, and not if no connection is made in
    this time."""
    record = pod.record
    options = _options(pod, delete_options)
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": record.namespace, "name": record.name},
        "deleteOptions": options,
    }
    path = f"{_pod_path(record.namespace, record.name)}/eviction"
    await api.request("POST", path, body=body, attempts=1, connect_seconds=connect_seconds)


async def annotate_for_eviction(
    api: Api,
    pod: LivePod,
    initiator: str,
    reason: str,
    delete_options: Options = NO_OPTIONS,
    *,
    connect_seconds: float | None = None,
) -> None:
    """Ask another agent, by an annotation, to evict the pod of this UID, once, and not if no
    connection is made in this time."""
    record = pod.record
    text = msgspec.json.encode(
        {
            "timestamp": format_time(api.clock.now()),
            "deleteOptions": _options(pod, delete_options),
            "initiator": initiator,
            "reason": reason,
        }
    ).decode()
    body = {"metadata": {"uid": record.uid, "annotations": {SOFT_EVICTION: text}}}
    path = _pod_path(record.namespace, record.name)
    await api.request(
        "PATCH", path, body=body, content_type=MERGE, attempts=1, connect_seconds=connect_seconds
    )


def _options(pod: LivePod, delete_options: Options) -> dict[str, Any]:
    preconditions = {**delete_options.get("preconditions", {}), "uid": pod.record.uid}
    return {**delete_options, "preconditions": preconditions}


def status_of(error: KubernetesError) -> int | None:
    """The HTTP status of a failed request, None if its outcome is unknown."""
    if error.status is not None:
        return error.status
    if isinstance(error, ApiUnavailableError) and error.was_done is False:
        return 503
    if isinstance(error, NotFoundError):
        return 404
    return 422 if isinstance(error, ApiRefusedError) else None


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
