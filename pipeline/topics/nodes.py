"""`springtide.nodes`: what a node is, keyed by its name; a tombstone when it is deleted.

Written by the cluster watcher or by the file source, read by the join (which puts allocatable and
strategy beside each sample) and by the state table.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import Record
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.resource_amounts import Resources, Scalars

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


# The ranges are those of the settings of the same names: a record is not believed more than these.
Percent = Annotated[float, Meta(ge=0, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Samples = Annotated[int, Meta(ge=0, le=1_000_000)]
Deviations = Annotated[float, Meta(ge=0, le=100)]
PredictorName = Annotated[str, Meta(min_length=1, max_length=100)]


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force for one node. It takes effect with the window that carries it.

    A peak is raised by `safety_margin_percent`; a pod counts its request until it is older than
    `cold_start_seconds` and has `cold_start_samples`; N-sigma adds `nsigma_multiplier` standard
    deviations to the mean. `predictor` names the one that decides what Prod leaves unused. Peaks
    are told when they got worse by more than `resource_diff_threshold_percent`, when they eased by
    as much for `report_interval_seconds`, and every `force_update_seconds`.
    """

    safety_margin_percent: Percent = 10.0
    cold_start_seconds: Seconds = 86_400.0
    cold_start_samples: Samples = 10
    nsigma_multiplier: Deviations = 3.0
    predictor: PredictorName = "percentile"
    resource_diff_threshold_percent: Percent = 5.0
    report_interval_seconds: Seconds = 60.0
    force_update_seconds: Seconds = 600.0


class NodeStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """What is different for one node: the fields of `Strategy`; None is as for all nodes."""

    safety_margin_percent: Percent | None = None
    cold_start_seconds: Seconds | None = None
    cold_start_samples: Samples | None = None
    nsigma_multiplier: Deviations | None = None
    predictor: PredictorName | None = None
    resource_diff_threshold_percent: Percent | None = None
    report_interval_seconds: Seconds | None = None
    force_update_seconds: Seconds | None = None

    def over(self, usual: Strategy) -> Strategy:
        """`usual` with what is said here in place of it."""
        own = msgspec.structs.asdict(self)
        said = {name: value for name, value in own.items() if value is not None}
        return msgspec.structs.replace(usual, **said)


NOT_SAID: Final = msgspec.Raw(b"null")


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class KnownNode(Record, frozen=True, kw_only=True):
    """What the join and the state table read of a `NodeRecord`: they keep one of every node.

    `strategy` has what is different in how the node is predicted, `overcommit` how Mid and Batch
    are worked out (None: it takes no part), `host_apps` the classes of host applications by name:
    prod, mid, batch, free.
    """

    node: str
    uid: str = ""
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    strategy: NodeStrategy | None = None
    strategy_hash: str = ""
    overcommit: Overcommit | None = None
    host_apps: dict[str, str] = msgspec.field(default_factory=dict)


class NodeRecord(KnownNode, frozen=True, kw_only=True):
    """A Kubernetes Node, trimmed to what decisions need, and the policy in force for it.

    By the names that users write: `colocation` and `springtide` have what is in force of these
    sections, `slo` the spec of the NodeSLO, `cpu_normalization` and `amplification` what follows
    from the sections of CPU and resource ratios. The last three stay JSON until somebody asks
    (`slo_spec`, `node_ratio` and `node_ratios` of `pipeline.processors.policy`); `NOT_SAID` while
    nobody knows. `strategy_hash` is of all that the policy says. `scalars` is what the node has, in
    whole units, of resources but cpu, memory, Mid and Batch.
    """

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    conditions: tuple[Condition, ...] = ()
    colocation: dict[str, Any] | None = None
    springtide: dict[str, Any] | None = None
    scalars: Scalars | None = None
    slo: msgspec.Raw = NOT_SAID
    cpu_normalization: msgspec.Raw = NOT_SAID
    amplification: msgspec.Raw = NOT_SAID


def detached(record: NodeRecord) -> NodeRecord:
    """The same record, for who keeps it: what stays JSON would hold all the bytes that were read,
    and is one now for all records that say the same."""
    return msgspec.structs.replace(
        record,
        slo=shared(bytes(record.slo)),
        cpu_normalization=shared(bytes(record.cpu_normalization)),
        amplification=shared(bytes(record.amplification)),
    )


@lru_cache(maxsize=256)
def shared(text: bytes) -> msgspec.Raw:
    """One for all that say the same: a watcher keeps thousands of records."""
    return msgspec.Raw(text)


def check_node_name(node: str) -> None:
    """Raise `InvalidRecordError` for what Kubernetes would not take as a node's name."""
    length = len(node.encode(errors="replace"))
    if not 0 < length <= 253:
        raise InvalidRecordError(f"node name has {length} bytes, not 1 to 253")
    if not _NODE_NAME.fullmatch(node):
        raise InvalidRecordError(f"node name {node[:80]!r} is not a lower-case DNS name")
