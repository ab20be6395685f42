"""The rules of quality of service that a policy comes to for one node: the spec of its NodeSLO."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.policy.config_sections import merged, without
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem
from pipeline.processors.policy.load_slo_config import SloPolicy
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.nodeslo import NodeSLOSpec, SystemStrategy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import parse_quantity

BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"

T = TypeVar("T", bound=Document)


class NodeRules(NamedTuple):
    """The spec of a node, and what of its own is not in it."""

    spec: NodeSLOSpec
    problems: tuple[PolicyProblem, ...]


def node_rules(
    policy: SloPolicy,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    before: NodeSLOSpec | None = None,
) -> NodeRules:
    """Of each key what the cluster says, and over it the first entry whose selector matches; a
    node's own bandwidth counts before both.

    A part of which nothing usable is known is that of `before`, or is not in the spec: what the
    node has of it may stay. Classes that are switched off keep their values, which the node's agent
    replaces by those that undo them.
    """
    hosts = _of_node(policy.host_applications, labels)
    system, problems = _system(_of_node(policy.system, labels), annotations)
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=_of_node(policy.threshold, labels),
        resource_qos_strategy=_of_node(policy.qos, labels),
        cpu_burst_strategy=_of_node(policy.burst, labels),
        system_strategy=system,
        host_applications=None if hosts is None else hosts.applications,
    )
    known = [field for field, of in zip(_PARTS, policy, strict=True) if of is not None]
    if before is not None:
        spec = merged(without(before, known), spec)
    return NodeRules(spec, problems)


# In the order of `SloPolicy`.
_PARTS: Final = (
    "resource_used_threshold_with_be",
    "resource_qos_strategy",
    "cpu_burst_strategy",
    "system_strategy",
    "host_applications",
)


def slo_spec(node: NodeRecord) -> NodeSLOSpec | None:
    """The spec of the NodeSLO of this node; None while nothing usable was ever read, and it is not
    to be touched. A part that is not in it is not to be touched, either."""
    return msgspec.json.decode(node.slo, type=NodeSLOSpec | None)


def _of_node(policy: Policy[T] | None, labels: Mapping[str, str]) -> T | None:
    return None if policy is None else policy.of_labels(labels)


def _system(
    found: SystemStrategy | None, annotations: Mapping[str, str]
) -> tuple[SystemStrategy | None, tuple[PolicyProblem, ...]]:
    text = annotations.get(BANDWIDTH_ANNOTATION)
    if text is None:
        return found, ()
    where = f"annotation {BANDWIDTH_ANNOTATION}"
    try:
        amount = parse_quantity(text)
    except InvalidRecordError as error:
        return found, (PolicyProblem(where, error.message),)
    if amount < 0:
        return found, (PolicyProblem(where, f"is {text:.60}, allowed is 0 or more"),)
    own = SystemStrategy(total_network_bandwidth=text)
    return (
        own if found is None else msgspec.structs.replace(found, total_network_bandwidth=text)
    ), ()
