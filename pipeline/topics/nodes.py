"""`springtide.nodes`: Kubernetes Nodes and the policy of each, keyed by name; a tombstone when
deleted.

The cluster watcher or the file source writes it. The join reads it, to add allocatable and strategy
to each sample; so do the state table, actuators, providers and exporters.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidRecordError
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.codec import Record
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources, Scalars

SOURCE_HEADER: Final = "source"
"""The header of records of Nodes and Pods that names their source."""

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


# The ranges are those of the settings of the same names: a value out of range is a bad record.
Percent = Annotated[float, Meta(ge=0, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Samples = Annotated[int, Meta(ge=0, le=1_000_000)]
Deviations = Annotated[float, Meta(ge=0, le=100)]
PredictorName = Annotated[str, Meta(min_length=1, max_length=100)]


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """How a node is measured and predicted. It takes effect with the window that carries it.

    Fields with a description declare a key of `springtide-config` each (see `springtide_config`). A
    pod counts its request for `cold_start_seconds`. The worker publishes peaks when they rose by
    more than `resource_diff_threshold_percent`, when they fell by as much for
    `report_interval_seconds`, and every `force_update_seconds`. `memory_collect_policy` selects the
    memory figure that counts as usage of the node and everything on it.
    """

    safety_margin_percent: Annotated[Percent, Meta(description="margin on every peak")] = 10.0
    cold_start_seconds: Seconds = 86_400.0
    cold_start_samples: Annotated[
        Samples, Meta(description="a pod with fewer samples counts its request")
    ] = 10
    nsigma_multiplier: Annotated[
        Deviations, Meta(description="standard deviations above the mean")
    ] = 3.0
    predictor: Annotated[
        PredictorName,
        Meta(
            title="a predictor that runs (`springtide model predictors`)",
            description="the predictor that decides what Prod leaves unused",
        ),
    ] = "percentile"
    resource_diff_threshold_percent: Percent = 5.0
    report_interval_seconds: Seconds = 60.0
    force_update_seconds: Seconds = 600.0
    memory_collect_policy: MemoryCollectPolicy = "usageWithoutPageCache"


_Overrides: Any = msgspec.defstruct(
    "_Overrides",
    [(field.name, field.type | None, None) for field in msgspec.structs.fields(Strategy)],
    frozen=True, kw_only=True,
)  # fmt: skip


class NodeStrategy(_Overrides):  # type: ignore[misc]  # made above
    """A node's overrides of `Strategy`; None keeps the value of all nodes."""

    def over(self, usual: Strategy) -> Strategy:
        """`usual` with these overrides."""
        own = msgspec.structs.asdict(self)
        overrides = {name: value for name, value in own.items() if value is not None}
        return msgspec.structs.replace(usual, **overrides)


UNSTATED: Final = msgspec.Raw(b"null")


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A taint of a Node."""

    key: str
    effect: str
    value: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of a Node; times are RFC 3339, UTC."""

    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class KnownNode(Record, frozen=True, kw_only=True):
    """The fields of a `NodeRecord` that the join and the state table hold for every node.

    `strategy` has the node's overrides of the prediction policy, `overcommit` the policy of Mid and
    Batch (None: neither is offered), `host_apps` the class of each host application by name: prod,
    mid, batch or free. `hot_nodes` has the thresholds above which the node counts as hot (None:
    nothing is detected).
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
    hot_nodes: HotNodePolicy | None = None


class NodeRecord(KnownNode, frozen=True, kw_only=True):
    """A Kubernetes Node, reduced to the fields that decisions need, and the policy in force for it.

    `colocation` and `springtide` are these sections of the policy as users write them, `slo` is the
    spec of the NodeSLO, `cpu_normalization` and `amplification` follow from the sections of CPU and
    resource ratios. The last three stay encoded JSON until they are needed (`slo_spec`,
    `node_ratio` and `node_ratios` of `pipeline.processors.policy`), and are `UNSTATED` while
    unknown. `strategy_hash` is a hash of the whole policy. `scalars` has the node's other
    resources, without cpu, memory, Mid and Batch, in whole units.
    """

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    conditions: tuple[Condition, ...] = ()
    colocation: dict[str, Any] | None = None
    springtide: dict[str, Any] | None = None
    scalars: Scalars | None = None
    slo: msgspec.Raw = UNSTATED
    cpu_normalization: msgspec.Raw = UNSTATED
    amplification: msgspec.Raw = UNSTATED


def detached(record: NodeRecord) -> NodeRecord:
    """A copy of the record to store: encoded JSON in it neither holds the bytes of the whole record
    nor is stored more than once."""
    return msgspec.structs.replace(
        record,
        slo=shared(bytes(record.slo)),
        cpu_normalization=shared(bytes(record.cpu_normalization)),
        amplification=shared(bytes(record.amplification)),
    )


@lru_cache(maxsize=256)
def shared(text: bytes) -> msgspec.Raw:
    """The same object for equal JSON: a watcher stores thousands of records."""
    return msgspec.Raw(text)


def check_node_name(node: str) -> None:
    """Raise `InvalidRecordError` if Kubernetes would refuse the name."""
    length = len(node.encode(errors="replace"))
    if not 0 < length <= 253:
        raise InvalidRecordError(f"node name has {length} bytes, not 1 to 253")
    if not _NODE_NAME.fullmatch(node):
        raise InvalidRecordError(f"node name {node[:80]!r} is not a lower-case DNS name")
