"""NodeSLO objects: the quality-of-service rules of each node, from the resolved policy."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from actuators.cluster.custom_resources import NODE_SLO, CustomResources, DesiredSpec
from actuators.cluster.feature import Context, Feature, Follower, Topics, Watch
from pipeline.errors import InvalidRecordError
from pipeline.processors.policy.nodeslo_spec import slo_spec
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES, Topic


class NodeSloObjects(Feature):
    """Writes NodeSLO objects."""

    name = "node_slos"
    has_switch = True
    topics: ClassVar[Topics] = {NODES: None}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._resources = CustomResources(context.api, NODE_SLO, context.queue, context.node_uids)

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        watch = Watch(NODE_SLO.path, only_metadata=True, is_required=self.is_on)
        return {watch: self._resources}

    def learn(self, topic: Topic, node: str, record: NodeRecord | None) -> None:
        self._resources.set_desired(node, _desired(record))

    def decide(self, *, everything: bool) -> None:
        self._resources.decide(everything=everything)


def _desired(record: NodeRecord | None) -> DesiredSpec | None:
    """The spec of a node's NodeSLO. Raises InvalidRecordError if its rules break the schema."""
    try:
        spec = None if record is None else slo_spec(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(f"slo breaks its schema: {error}") from error
    if record is None or spec is None:
        return None
    rules: dict[str, Any] = msgspec.to_builtins(spec)
    return DesiredSpec(rules, record.uid)
