"""The model bank of one partition: admits windows, expires pods, gives peaks.

A bank is a function of the windows applied. Each window of a node counts once, in the order of
event time. The bits of a node's models and peaks depend on its own windows alone, not on other
nodes or on how windows were batched, and survive `restore(encode_state(..))`.

A batch is applied in rounds in which no node occurs twice. In a round all work per pod is an array
operation over all nodes (`learner.py`, in the columns of `node_store.py`); only the bookkeeping
per window, in this module, is a Python loop. Banks of several partitions may share their columns,
so that one batch spans them: a call for a few nodes takes little longer than one for a single node.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.corroboration import COMPARISONS, second_source
from pipeline.processors.model.learner import Learner
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.node_models import NodeModels, node_slots
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.pending_peaks import EndedPeak
from pipeline.processors.model.predictor import Predictor
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.training_batch import (
    NodeWindow,
    TrainingBatch,
    WindowHead,
    training_batch,
)
from pipeline.processors.model.usage_points import RecentUsage
from pipeline.processors.model.workload_models import WorkloadModels
from pipeline.topics.node_state import Dispute

Status = Literal["applied", "duplicate", "late", "second_exporter"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of applying a window.

    `trained` is False if the coverage was too low. `gap` is the number of windows missing before
    this one. `restarted`: another machine took the node's name, and the models of node, system and
    classes started again. `expired` are the pods whose models were dropped.
    """

    node: str
    end_ms: int
    status: Status
    trained: bool = False
    gap: int = 0
    restarted: bool = False
    expired: tuple[str, ...] = ()


class Bank:
    """Models of all nodes of one partition. Not for several threads at once.

    `predictors` replace those that `config` names, to try one that is not installed. Raises
    `PredictorError` if those of `config` cannot be created.
    """

    def __init__(
        self, config: ModelConfig | None = None, predictors: Mapping[str, Predictor] | None = None
    ) -> None:
        self.config = config or ModelConfig()
        self.learner = Learner(self.config, predictors)
        self.store = self.learner.store
        self.node_models: dict[str, NodeModels] = {}
        self._strategy = self.config.strategy
        self.fingerprint = self.store.fingerprint

    def sibling(self) -> Bank:
        """An empty bank that shares the columns of this one. `clear` a bank before dropping it, or
        its rows stay in use."""
        other = copy.copy(self)
        other.node_models = {}
        return other

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with models, ascending."""
        return tuple(sorted(self.node_models))

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names under which peaks are given."""
        return tuple(self.learner.predictors)

    @property
    def workloads(self) -> WorkloadModels:
        """The models of workloads of all banks that share columns with this one."""
        return self.store.workloads

    @property
    def dropped_workloads(self) -> int:
        """Models of workloads and containers that were dropped because a node had too many."""
        return self.store.workloads.dropped + self.store.containers.dropped

    def end_ms(self, node: str) -> int | None:
        """End of the last window applied to a node; None if it has none."""
        known = self.node_models.get(node)
        return None if known is None else known.end_ms

    def appended_ms(self, node: str) -> int | None:
        """Newest append time of the samples applied to a node; None without models."""
        known = self.node_models.get(node)
        return None if known is None else known.appended_ms

    def dispute(self, node: str) -> Dispute | None:
        """The dispute about the usage of a node with models."""
        return self.node_models[node].dispute

    def has_window_since(self, node: str, time_ms: int) -> bool:
        """Whether the last window applied to a node began after this time, by the broker's
        clock."""
        known = self.node_models.get(node)
        return known is not None and known.appended_ms - known.window_ms > time_ms

    def open_alerts(self, rule: int, level: int) -> int:
        """The number of open alerts of a rule and level, of all banks that share columns with this
        one."""
        return int(np.count_nonzero(self.store.alerts["alert_level"][:, rule] == level))

    # -- learning

    def apply(self, windows: TrainingBatch | Sequence[NodeWindow]) -> list[Outcome]:
        """Apply windows in the order given; one outcome for each."""
        if not windows:
            return []
        batch = windows if isinstance(windows, TrainingBatch) else training_batch(windows)
        return apply([self] * len(batch.heads), batch)

    def _status(self, window: WindowHead) -> Status:
        known = self.node_models.get(window.node)
        if known is None:
            return "applied"
        if window.end_ms > known.end_ms:
            # Otherwise two machines of one name would reset each other's models for ever. Only the
            # broker's clock tells that the first is silent: the other's clock may be fast.
            other = _is_of_another(known, window) or _is_of_another_provider(known, window)
            began_ms = window.appended_ms - (window.end_ms - window.start_ms)
            is_silent = began_ms - known.appended_ms >= known.window_ms
            return "second_exporter" if other and not is_silent else "applied"
        if window.end_ms < known.end_ms:
            return "late"
        same = (window.machine_id, window.epoch) == (known.machine_id, known.epoch)
        same = same and not _is_of_another_provider(known, window)
        return "duplicate" if same else "second_exporter"

    def _admit(self, window: WindowHead) -> tuple[NodeModels, Outcome]:
        """Bring the node's state up to this window; its models learn afterwards."""
        node = self.node_models.get(window.node)
        gap, restarted = 0, False
        if node is None:
            node = self.store.new_node(window.machine_id, window.epoch)
            self.node_models[window.node] = node
        else:
            length = max(window.end_ms - window.start_ms, 1)
            gap = max((window.start_ms - node.end_ms + length // 2) // length, 0)
            restarted = _is_of_another(node, window)
        if restarted:
            self.store.reset(node)
        if (window.machine_id, window.source) != (node.machine_id, node.source):
            node.second = None
        node.machine_id, node.epoch = window.machine_id, window.epoch
        node.source = window.source
        node.end_ms, node.window_ms = window.end_ms, window.end_ms - window.start_ms
        node.appended_ms = max(node.appended_ms, window.appended_ms)
        node.coverage = window.coverage
        node.strategy = window.strategy or self._strategy
        node.applied += 1
        node.gaps += gap
        trained = self.learner.prepare(node, window)
        return node, Outcome(window.node, window.end_ms, "applied", trained, gap, restarted)

    def corroborate(self, window: WindowHead, usage: FloatArray) -> None:
        """Compare the average `usage` (2,) of a window that was not applied with that of the
        believed source. Nothing happens unless a provider sent it beside another source.

        A span is compared when the next window comes: the believed source may be the later one.
        """
        node = self.node_models.get(window.node)
        if node is None or window.machine_id:
            return
        if not node.machine_id and not _is_of_another_provider(node, window):
            return
        second = node.second
        if second is None or second.is_silent(window.appended_ms):
            node.second = second_source(window, usage)
            return
        if second.source != window.source or window.end_ms <= second.end_ms:
            return
        if second.start_ms < second.end_ms <= node.end_ms:
            believed = self.learner.usage_between(node, second.start_ms, second.end_ms)
            second = second.compared(believed, node.allocatable / TO_KUBERNETES)
        node.second = second = second.with_window(window, usage)
        if second.more >= COMPARISONS and not node.machine_id:
            node.second = second.replaced_by(node.source, node.window_ms, node.appended_ms)
            node.source = window.source

    # -- forgetting

    def retract(self, node: str) -> bool:
        """Mark the results of a deleted node as withdrawn: its next peaks are due. Returns False
        for a node without models."""
        models = self.node_models.get(node)
        if models is not None:
            self.learner.retract(models)
        return models is not None

    def unfinished_peaks(self, node: str) -> list[EndedPeak]:
        """Take out the followed peaks of a node that has departed, oldest first."""
        models = self.node_models.get(node)
        return [] if models is None else self.learner.unfinished_peaks(models)

    def forget(self, node: str) -> bool:
        """Drop all models of a node that has departed; False if there were none."""
        models = self.node_models.pop(node, None)
        if models is None:
            return False
        self.store.release([models])
        return True

    def clear(self) -> None:
        """Drop all models of this bank."""
        if not self.node_models:
            return
        models = list(self.node_models.values())
        self.node_models.clear()
        self.store.release(models)

    # -- peaks

    def peaks(self, nodes: Iterable[str]) -> PeakBatch:
        """Peaks of these nodes. Raises KeyError for a node without models, ValueError for none."""
        names = list(nodes)
        return self.learner.peaks(names, [self.node_models[name] for name in names])

    def due(self, peaks: PeakBatch) -> BoolArray:
        """Whether each of these peaks is to be published; those count as published from now on.

        `peaks` are those of distinct nodes after their last windows. Called once after each applied
        window, the result is a function of the node's windows. Raises KeyError for a node without
        models.
        """
        return self.learner.due(peaks, [self.node_models[name] for name in peaks.names])

    def recent_usage(self, nodes: Iterable[str]) -> RecentUsage:
        """Statistics of these nodes over the half hour up to the end of their last windows.

        Raises KeyError for a node without models.
        """
        return self.learner.recent_usage([self.node_models[name] for name in nodes])

    # -- state

    def encode_state(self, node: str) -> bytes:
        """The exact state of a node's models. Raises KeyError for a node without models."""
        return self.store.encode_state(node, self.node_models[node])

    def encode_workloads(self, node: str) -> bytes | None:
        """The models of the workloads of a node, for `WorkloadSums`; None if it has none."""
        models = self.node_models.get(node)
        if models is None or not models.workload_rows:
            return None
        return self.store.encode_workloads(node, models)

    def restore(self, node: str, data: bytes) -> None:
        """Replace the models of a node by the state in `data`.

        Raises CheckpointError, and leaves the bank unchanged, if the bytes are damaged, or of
        another version, node or fingerprint.
        """
        state = self.store.decode_state(node, data)
        self.forget(node)
        self.node_models[node] = self.store.restore_node(state)


NodeInBank = tuple[Bank, str]
"""The models of a node by bank and name."""


def apply(banks: Sequence[Bank], batch: TrainingBatch) -> list[Outcome]:
    """Apply each window of `batch` to its bank, in their order; one outcome for each.

    All `banks` share their columns.
    """
    learner = _learner_of(banks)
    outcomes: dict[int, Outcome] = {}
    for positions in split_into_rounds(head.node for head in batch.heads):
        admitted: dict[int, NodeModels] = {}
        for position in positions:
            bank, head = banks[position], batch.heads[position]
            status = bank._status(head)
            if status == "applied":
                admitted[position], outcomes[position] = bank._admit(head)
            else:
                outcomes[position] = Outcome(head.node, head.end_ms, status)
        if admitted:
            learner.learn(batch.select([*admitted]), [*admitted.values()])
        for position, node in admitted.items():
            if node.absent_uids and (expired := learner.expire_pods(node)):
                outcomes[position] = replace(outcomes[position], expired=expired)
    return [outcomes[position] for position in range(len(banks))]


def peaks(nodes: Sequence[NodeInBank]) -> PeakBatch:
    """`Bank.peaks` over several banks that share their columns."""
    return _learner_of([bank for bank, _ in nodes]).peaks(
        [name for _, name in nodes], _models(nodes)
    )


def due(nodes: Sequence[NodeInBank], peaks: PeakBatch) -> BoolArray:
    """`Bank.due` over several banks, with the peaks of these nodes."""
    return _learner_of([bank for bank, _ in nodes]).due(peaks, _models(nodes))


def ended_peaks(nodes: Sequence[NodeInBank], peaks: PeakBatch) -> list[tuple[int, EndedPeak]]:
    """Take out the followed peaks of these nodes whose horizon is over, each with the number of its
    node, and follow `peaks`, theirs after their last windows. Called once after each applied
    window, the result is a function of the node's windows."""
    return _learner_of([bank for bank, _ in nodes]).ended_peaks(peaks, _models(nodes))


def horizon_seconds(node: NodeInBank) -> float:
    """The time for which a peak of Prod should hold."""
    return node[0].store.schedule.horizon_ms / 1000


def recent_usage(nodes: Sequence[NodeInBank]) -> RecentUsage:
    """`Bank.recent_usage` over several banks that share their columns."""
    return _learner_of([bank for bank, _ in nodes]).recent_usage(_models(nodes))


def usage_percentile(nodes: Sequence[NodeInBank], span_seconds: int, percent: int) -> FloatArray:
    """A percentile of the usage of these nodes in a span that ends with their last windows, (k, 2)
    cores and bytes, NaN unknown."""
    learner = _learner_of([bank for bank, _ in nodes])
    return learner.usage_percentile(_models(nodes), span_seconds, percent)


def alert_rows(nodes: Sequence[NodeInBank]) -> tuple[Columns, IntArray]:
    """The columns of hot-node detection, and the rows of these nodes in them."""
    store = _learner_of([bank for bank, _ in nodes]).store
    return store.alerts, node_slots(_models(nodes))


def _is_of_another(node: NodeModels, window: WindowHead) -> bool:
    """Whether a window is of another machine than the node's models. Fitted models have no machine
    and accept the first one."""
    return node.machine_id not in ("", window.machine_id)


def _is_of_another_provider(node: NodeModels, window: WindowHead) -> bool:
    """Whether both are usage that providers imported, and two of them."""
    return not node.machine_id and not window.machine_id and node.source not in ("", window.source)


def _learner_of(banks: Sequence[Bank]) -> Learner:
    """The learner of all `banks`. Raises ValueError if there is not exactly one: row numbers of one
    bank would be used in the columns of another."""
    learners = {id(bank.learner) for bank in banks}
    if len(learners) != 1:
        raise ValueError(f"{len(banks)} banks of {len(learners)} learners, not of one")
    return banks[0].learner


def _models(nodes: Sequence[NodeInBank]) -> list[NodeModels]:
    return [bank.node_models[name] for bank, name in nodes]


def split_into_rounds(nodes: Iterable[str]) -> list[list[int]]:
    """Positions in `nodes`, grouped so that no node occurs twice in a group and the windows of a
    node stay in order from group to group."""
    groups: list[list[int]] = []
    counts: dict[str, int] = {}
    for position, node in enumerate(nodes):
        group = counts.get(node, 0)
        counts[node] = group + 1
        if group == len(groups):
            groups.append([])
        groups[group].append(position)
    return groups
