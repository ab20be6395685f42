"""The names of a node's pods by UID, for people: records of models have UIDs alone."""

from collections.abc import Mapping

from pipeline.errors import NotReadyError, RecordError
from pipeline.kafka.newest import newest
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS


async def read_pod_names(kafka: KafkaSettings, node: str) -> dict[str, str]:
    """Return `namespace/name` of the pods of `node` by the UID in their cgroup's name, from the
    node's newest view. Empty if there is no view: names are a convenience."""
    try:
        view = await newest(kafka, NODE_VIEWS, node)
        pods = () if view is None else decode_json(NodeViewRecord, view.value).pods
    except (NotReadyError, RecordError):
        return {}
    return {pod.cgroup_uid: f"{pod.namespace}/{pod.name}" for pod in pods}


def with_uids(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, each followed by its UID."""
    return {uid: f"{name} ({uid})" for uid, name in names.items()}
