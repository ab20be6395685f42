"""Ask the API server whether another node could run a pod (nodeFit), before the pod leaves its own.

Nodes are read page by page, until one fits: no list of all pods is needed. A pod that is evicted
and not yet on its next node counts on none.
"""

from typing import Final

import msgspec

from actuators.eviction.eviction_calls import query_of
from pipeline.errors import InvalidRecordError, KubernetesError
from pipeline.kube.api_client import Api, decode_list
from pipeline.kube.limits import PAGE_OBJECTS
from pipeline.processors.descheduling.node_fit import NodeRoom, read_node_room, room_objection
from pipeline.processors.eviction.refusals import Refusal
from pipeline.processors.kubernetes.object_records import read_pod
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.pods import PodRecord

MOST_ASKED: Final = 20
"""Nodes whose pods are read for one pod."""
_MOST_PAGES: Final = 40


async def no_other_node(api: Api, pod: PodRecord, among: Selector | None) -> Refusal | None:
    """Why the pod must stay if no other node could run it; None if one could. `among` selects the
    nodes that count. Raises `KubernetesError`, also if this is not known: nodes or pods on them are
    invalid, or `MOST_ASKED` nodes have no room and there are more. Each call asks others."""
    selectors = [Selector(match_labels=pod.node_selector), *([] if among is None else [among])]
    params = {
        "limit": str(PAGE_OBJECTS),
        "labelSelector": ",".join(filter(None, map(query_of, selectors))),
        "fieldSelector": f"metadata.name!={pod.node},spec.unschedulable!=true",
    }
    asked = unknown = 0
    for _ in range(_MOST_PAGES):
        page = decode_list(await api.request("GET", "/api/v1/nodes", params=params), "GET nodes")
        items = page.items or ()
        nodes = [node for node in map(_valid_node, items) if node is not None]
        unknown += len(items) - len(nodes)
        candidates = [node for node in nodes if room_objection(pod, node, ()) is None]
        api.rng.shuffle(candidates)
        for node in candidates:
            if asked == MOST_ASKED:
                raise KubernetesError(f"{asked} nodes have no room for the pod, and there are more")
            asked += 1
            others = await _pods_on(api, node.name)
            if others is None:
                unknown += 1
            elif room_objection(pod, node, others) is None:
                return None
        if not page.metadata.more:
            break
        params["continue"] = page.metadata.more
    else:
        unknown += 1
    if unknown:
        raise KubernetesError("no node has room for the pod, but that of some nodes is not known")
    return Refusal("NodeFit", "no other node could run the pod", "NodeFit")


def _valid_node(item: msgspec.Raw) -> NodeRoom | None:
    try:
        return read_node_room(item)
    except InvalidRecordError:
        return None


async def _pods_on(api: Api, node: str) -> list[PodRecord] | None:
    """The pods that count on a node; None if one of them is invalid."""
    params = {"fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"}
    answer = await api.request("GET", "/api/v1/pods", params=params)
    try:
        return [read_pod(item) for item in decode_list(answer, f"GET pods of {node}").items or ()]
    except InvalidRecordError:
        return None
