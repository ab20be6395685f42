"""NodeSLO objects: the quality-of-service rules of each node, from the resolved policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actuators.cluster.custom_resources import NODE_SLO, CustomResources, DesiredSpec
from actuators.cluster.feature import Context, Watch
from pipeline.errors import InvalidRecordError
from pipeline.processors.policy.nodeslo_spec import slo_spec
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES


class NodeSlos:
    """Writes NodeSLOs in mode act with `actuator.node_slos`; otherwise removes those we wrote."""

    def __init__(self, context: Context) -> None:
        actuator = context.settings.actuator
        self._is_on = actuator.mode == "act" and actuator.node_slos
        self._resources = CustomResources(context.api, NODE_SLO, context.queue, context.node_uids)

    @property
    def reads(self) -> Mapping[str, float | None]:
        return {NODES.name: None} if self._is_on else {}

    @property
    def watches(self) -> Sequence[Watch]:
        return [Watch(NODE_SLO.path, self._resources, only_metadata=True, is_required=self._is_on)]

    def learn(self, topic: str, node: str, record: NodeRecord | None) -> None:
        self._resources.set_desired(node, _desired(record))

    def start(self) -> None:
        pass

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
