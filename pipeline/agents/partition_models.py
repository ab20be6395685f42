"""The models of one partition, its windows, and the reports of its nodes."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.node_events import NodeEvent
from pipeline.agents.ownership import Ownership
from pipeline.agents.window_spans import TracedResults
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.bank import Bank
from pipeline.topics.checkpoints import FIRST_GENERATION
from pipeline.topics.node_state import Counters
from pipeline.topics.windows import Window

# Packs in half of zstd's time and unpacks in a quarter, for 7 KiB of 22 instead of 4.
_LZ4 = pa.Codec("lz4_raw")


@dataclass(frozen=True, slots=True)
class ModelRules:
    """The settings that the model agent needs."""

    prefix: str
    statistic: str
    node_metrics: bool = True


class NodeReport:
    """Encoded results of a node: prediction, node state and resources.

    Without a prediction the last published one stays valid. Without resources the node has no
    overcommit. A worker stores the report of every node, because a takeover publishes it again: 20
    KiB for a node with a hundred pods, so `pack` it after it was published.
    """

    __slots__ = ("_packed", "_prediction", "_size", "node_state", "resources")

    def __init__(
        self, prediction: bytes | None, node_state: bytes, resources: bytes | None = None
    ) -> None:
        self._prediction = prediction
        self._size = 0
        self._packed: bytes | None = None
        self.node_state = node_state
        self.resources = resources

    @property
    def prediction(self) -> bytes | None:
        """The encoded prediction, unpacked."""
        if self._packed is None:
            return self._prediction
        unpacked: bytes = _LZ4.decompress(self._packed, decompressed_size=self._size, asbytes=True)
        return unpacked

    def pack(self) -> None:
        """Compress the prediction to a third of its size."""
        if self._prediction is not None:
            self._size = len(self._prediction)
            self._packed = _LZ4.compress(self._prediction, asbytes=True)
            self._prediction = None

    def with_newer(self, node_state: bytes, resources: bytes | None) -> "NodeReport":
        """Return the same prediction with a newer node state and newer resources."""
        newer = copy(self)
        newer.node_state, newer.resources = node_state, resources
        return newer


@dataclass(eq=False)
class PartitionModels:
    """The models of one partition and the newest report of each of its nodes.

    `intact` is false after a failure while windows were applied: models may be half-changed.
    `reports` maps a node to its newest report, and to None from its deletion until the tombstones
    are delivered. `retracted` maps a deleted node whose models are still here to the time of its
    deletion. `amounts` maps a node to each predictor's reclaimable amount and peak of Prod.
    `generation` is that of results: readers order them by generation and offset, and a truncated
    log gives offsets again. `departed` has the workloads of departed nodes. `joined` is the
    highest sample offset in the applied windows from `rejoined_from` on: samples were truncated
    when `windows` ended there. `events` maps a node to its events that are not delivered yet,
    in order. `traces` has the nodes whose newest applied window is traced.
    """

    ownership: Ownership
    bank: Bank
    rules: ModelRules
    reports: dict[str, NodeReport | None]
    counters: dict[str, Counters]
    retracted: dict[str, int]
    amounts: dict[str, FloatArray] = field(default_factory=dict, init=False)
    intact: bool = field(default=True, init=False)
    generation: int = field(default=FIRST_GENERATION, init=False)
    joined: int = field(default=-1, init=False)
    rejoined_from: int = field(default=0, init=False)
    departed: DepartedNodes = field(default_factory=DepartedNodes, init=False)
    events: dict[str, tuple[NodeEvent, ...]] = field(default_factory=dict, init=False)
    traces: dict[str, TracedResults] = field(default_factory=dict, init=False)

    @property
    def owned(self) -> bool:
        return self.ownership.owned

    @property
    def cuts(self) -> tuple[int, int]:
        """Grows when a log was truncated: generation, and `rejoined_from`."""
        return self.generation, self.rejoined_from

    def raise_joined(self, offset: int, sample_offset: int) -> None:
        """Raise `joined` to the sample of the window at `offset`."""
        if offset >= self.rejoined_from:
            self.joined = max(self.joined, sample_offset)

    def abandon(self) -> None:
        """Give up the partition after a failure: no checkpoint may be written of these models."""
        self.intact = self.ownership.owned = False

    def add_events(self, node: str, events: Sequence[NodeEvent]) -> None:
        """Add events of `node` to those that are to be published."""
        if events:
            self.events[node] = (*self.events.get(node, ()), *events)

    def retract(self, node: str, deleted_ms: int) -> None:
        """Withdraw the results of a deleted node; its models stay, in case it returns soon."""
        if self.bank.retract(node):
            self.retracted.setdefault(node, deleted_ms)
        else:
            self.counters.pop(node, None)
        self.amounts.pop(node, None)
        self.traces.pop(node, None)
        self.reports[node] = None

    def forget(self, node: str) -> None:
        """Drop the models of a node that departed, except those of workloads."""
        self.departed.add(node, self.bank)
        self.bank.forget(node)
        self.counters.pop(node, None)
        self.retracted.pop(node, None)
        self.amounts.pop(node, None)
        self.traces.pop(node, None)
        self.reports[node] = None


class PartitionWindow(NamedTuple):
    """A window with its offset in the log and the models to which it applies."""

    models: PartitionModels
    offset: int
    window: Window

    @property
    def node(self) -> str:
        return self.window.header.node
