"""`springtide.nodes`: what a node is, keyed by its name; a tombstone when it is deleted.

Written by the cluster watcher or by the file source, read by the join (which puts allocatable and
strategy beside each sample) and by the state table.
"""

import re

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import Record
from pipeline.topics.resources import Resources

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force for one node. It takes effect with the window that carries it.

    A peak is raised by `safety_margin_percent`; a pod counts its request until it is older than
    `cold_start_seconds` and has `cold_start_samples`; N-sigma adds `nsigma_multiplier` standard
    deviations to the mean. `predictor` names the one that decides what Prod leaves unused. Peaks
    are told before their time when they moved by more than `resource_diff_threshold_percent`.
    """

    safety_margin_percent: float = 10.0
    cold_start_seconds: float = 86_400.0
    cold_start_samples: int = 10
    nsigma_multiplier: float = 3.0
    predictor: str = "percentile"
    resource_diff_threshold_percent: float = 5.0


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class NodeRecord(Record, frozen=True, kw_only=True):
    """A Kubernetes Node, trimmed to what decisions need."""

    node: str
    uid: str = ""
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    conditions: tuple[Condition, ...] = ()
    strategy: Strategy | None = None
    strategy_hash: str = ""


def check_node_name(node: str) -> None:
    """Raise `InvalidRecordError` for what Kubernetes would not take as a node's name."""
    length = len(node.encode(errors="replace"))
    if not 0 < length <= 253:
        raise InvalidRecordError(f"node name has {length} bytes, not 1 to 253")
    if not _NODE_NAME.fullmatch(node):
        raise InvalidRecordError(f"node name {node[:80]!r} is not a lower-case DNS name")
