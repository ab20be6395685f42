"""The spec of a node's NodeSLO: the rules of quality of service that hold for the node."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.policy.config_sections import merge, unset
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem
from pipeline.processors.policy.load_slo_config import SloPolicy
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.nodeslo import NodeSLOSpec, SystemStrategy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import parse_quantity

BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"

T = TypeVar("T", bound=Document)


class NodeRules(NamedTuple):
    """The spec of a node, and problems of its own settings."""

    spec: NodeSLOSpec
    problems: tuple[PolicyProblem, ...]


def node_rules(
    policy: SloPolicy,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    before: NodeSLOSpec | None = None,
) -> NodeRules:
    """Merge the rules of the cluster with the first entry whose selector matches the node; the
    bandwidth in the node's annotation overrides both.

    A part without valid rules is taken from `before`. If it is not there either, the spec lacks it,
    and the node's agent leaves that part as it is. Classes that are switched off keep their values;
    the node's agent undoes them.
    """
    hosts = _resolve(policy.host_applications, labels)
    system, problems = _system(_resolve(policy.system, labels), annotations)
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=_resolve(policy.threshold, labels),
        resource_qos_strategy=_resolve(policy.qos, labels),
        cpu_burst_strategy=_resolve(policy.burst, labels),
        system_strategy=system,
        host_applications=None if hosts is None else hosts.applications,
    )
    known = [field for field, part in zip(_PARTS, policy, strict=True) if part is not None]
    if before is not None:
        spec = merge(unset(before, known), spec)
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
    """The spec of this node's NodeSLO; None before the first valid policy: the NodeSLO must not be
    changed then."""
    return msgspec.json.decode(node.slo, type=NodeSLOSpec | None)


def _resolve(policy: Policy[T] | None, labels: Mapping[str, str]) -> T | None:
    return None if policy is None else policy.for_labels(labels)


def _system(
    strategy: SystemStrategy | None, annotations: Mapping[str, str]
) -> tuple[SystemStrategy | None, tuple[PolicyProblem, ...]]:
    text = annotations.get(BANDWIDTH_ANNOTATION)
    if text is None:
        return strategy, ()
    where = f"annotation {BANDWIDTH_ANNOTATION}"
    try:
        amount = parse_quantity(text)
    except InvalidRecordError as error:
        return strategy, (PolicyProblem(where, error.message),)
    if amount < 0:
        return strategy, (PolicyProblem(where, f"is {text:.60}, allowed is 0 or more"),)
    own = SystemStrategy(total_network_bandwidth=text)
    return (
        own if strategy is None else msgspec.structs.replace(strategy, total_network_bandwidth=text)
    ), ()
