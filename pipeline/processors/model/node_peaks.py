"""Predicted peaks of nodes, by predictor, for every entity, and what Prod leaves unused.

Results of many nodes stay columns (`PeakBatch`) until a record needs the peaks of one node: most
are never published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import compress, pairwise
from typing import Final, NamedTuple, overload

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import NODE
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.predictor import View
from pipeline.topics.node_state import YOUNG_SECONDS
from pipeline.topics.pool_outcomes import NodeOutcomes


@dataclass(frozen=True, slots=True)
class ProdReclaimable:
    """What Prod leaves unused of one node: the pod view and the class view (`reclaimable`).

    Each is (2,) millicores and bytes, NaN unknown; with `pair` both views count, else only that of
    classes. The fields are those of `pipeline.topics.predictions.Reclaimable`.
    """

    pair: bool
    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray
    requests: FloatArray
    pods_amount: FloatArray
    pods_peak: FloatArray
    classes_amount: FloatArray
    classes_peak: FloatArray
    surplus: FloatArray
    held: FloatArray
    system: FloatArray
    left_out: FloatArray

    def select(self, i: int) -> ProdReclaimable:
        """The i-th node, where the arrays are those of k nodes, (k, 2)."""
        return ProdReclaimable(self.pair, *(getattr(self, name)[i] for name in _AMOUNTS))


_AMOUNTS: Final = tuple(field.name for field in fields(ProdReclaimable) if field.name != "pair")


@dataclass(frozen=True, slots=True)
class PredictorPeaks:
    """One predictor's peaks of one node, cores and bytes, NaN unknown.

    `raw` (entities, 2) and `pod_raw` (pods, 2) are before the safety margin, `peaks` are `raw`
    with it; `terms` are the numbers that `raw` was computed from, `outcomes` what the node tells
    its pool.
    """

    raw: FloatArray
    peaks: FloatArray
    pod_raw: FloatArray
    terms: Mapping[str, FloatArray]
    reclaimable: ProdReclaimable
    outcomes: NodeOutcomes | None = None


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Peaks of a node as of the end of its last window, by predictor; `decides` names the deciding
    one.

    Samples are (.., 2) per resource, times are milliseconds, -1 for never. Entities are in the
    order of `ENTITIES`, pods those of the last window in UID order. `drift_ms` and `drifts` are the
    time of the last change of level of each entity and the number of changes, (entities, 2).
    """

    node: str
    end_ms: int
    decides: str
    predictors: Mapping[str, PredictorPeaks]
    samples: IntArray
    first_ms: IntArray
    last_ms: IntArray
    drift_ms: IntArray
    drifts: IntArray
    pod_uids: tuple[str, ...]
    pod_classes: ByteArray
    pod_requests: FloatArray
    pod_samples: IntArray
    pod_cold: BoolArray
    pod_active: BoolArray
    pod_ended: BoolArray
    allocatable: FloatArray

    @property
    def decided(self) -> PredictorPeaks:
        """The peaks of the deciding predictor."""
        return self.predictors[self.decides]

    @property
    def reclaimable(self) -> ProdReclaimable:
        """What Prod leaves unused, by the deciding predictor."""
        return self.decided.reclaimable

    @property
    def outcomes(self) -> NodeOutcomes | None:
        """What the node tells its pool, by the first predictor that has it."""
        stated = (peaks.outcomes for peaks in self.predictors.values())
        return next((outcomes for outcomes in stated if outcomes is not None), None)


class PeakSummary(NamedTuple):
    """The peaks that a node's state and resources use, each (cpu, memory), NaN unknown.

    `peaks` are the node's by predictor, in cores and bytes; `peak_counts_requests`: that of the
    deciding one includes the requests of cold pods. `amount` and `peak` are what Prod
    leaves unused and its peak by the predictor that `decides`, in millicores and bytes;
    `prod_amounts` and `prod_peaks` are the same by each predictor, in the order of `peaks`, without
    the system. `young` are the UIDs of pods of the last window that were first measured less than
    `YOUNG_SECONDS` ago, or never.
    """

    decides: str
    peaks: dict[str, list[float]]
    amount: list[float]
    peak: list[float]
    prod_amounts: list[list[float]]
    prod_peaks: list[list[float]]
    young: Sequence[str]
    peak_counts_requests: bool

    @property
    def deciding(self) -> int:
        """The position of the deciding predictor."""
        return list(self.peaks).index(self.decides)


@dataclass(frozen=True, slots=True)
class PeakColumns:
    """The fields of `PredictorPeaks` for k nodes and their n pods: `raw` and `peaks` are
    (k, entities, 2), `pod_raw` (n, 2), the arrays of `reclaimable` (k, 2). `counts_requests`: the
    peaks include the requests of cold pods. There are `outcomes` of all k nodes, or none."""

    raw: FloatArray
    peaks: FloatArray
    pod_raw: FloatArray
    terms: Mapping[str, FloatArray]
    reclaimable: ProdReclaimable
    may_decide: bool
    counts_requests: bool
    outcomes: Sequence[NodeOutcomes | None] = ()

    def select(self, i: int, pods: slice) -> PredictorPeaks:
        """The peaks of the i-th node, which has these pods."""
        return PredictorPeaks(
            raw=self.raw[i],
            peaks=self.peaks[i],
            pod_raw=self.pod_raw[pods],
            terms={term: values[i] for term, values in self.terms.items()},
            reclaimable=self.reclaimable.select(i),
            outcomes=self.outcomes[i] if self.outcomes else None,
        )


class PeakBatch(Sequence[NodePeaks]):
    """Peaks of k nodes in the order requested, as columns `by_predictor`.

    `decides` are the names of the nodes' deciding predictors. `NodePeaks` of a node are created
    when they are read: most of their cost is small objects.
    """

    def __init__(
        self,
        names: Sequence[str],
        nodes: Sequence[NodeModels],
        view: View,
        by_predictor: Mapping[str, PeakColumns],
        default: str,
        changes: tuple[IntArray, IntArray],
    ) -> None:
        self.names = tuple(names)
        self.view = view
        self.by_predictor = by_predictor
        allowed = {name for name, columns in by_predictor.items() if columns.may_decide}
        preferred = (node.strategy.predictor for node in nodes)
        self.decides = [name if name in allowed else default for name in preferred]
        self._cached: list[NodePeaks | None] = [None] * len(self.names)
        self._drift_ms, self._drifts = changes
        self._listed = [node.listed for node in nodes]
        self._allocatable = [node.allocatable for node in nodes]
        self._starts = np.cumsum([0, *(len(pods.uids) for pods in self._listed)]).tolist()
        # Copies: the models may learn more before the peaks are read.
        self._samples = view.split(view.models.samples.take(view.all_rows, axis=0))
        self._first_ms = view.models.first_ms.take(view.entities)
        self._last_ms = view.models.last_ms.take(view.entities)

    def decided(self, column: Callable[[PeakColumns], FloatArray]) -> FloatArray:
        """A column, (k, ..), with the values of each node's deciding predictor."""
        first, *others = dict.fromkeys(self.decides)
        values = column(self.by_predictor[first])
        for name in others:
            decides = np.array([predictor == name for predictor in self.decides])
            decides = decides.reshape(-1, *[1] * (values.ndim - 1))
            values = np.where(decides, column(self.by_predictor[name]), values)
        return values

    @cached_property
    def summaries(self) -> list[PeakSummary]:
        """A summary of each node."""
        columns = self.by_predictor.values()
        peaks = np.stack([column.peaks[:, NODE] for column in columns], axis=1).tolist()
        prods = [column.reclaimable for column in columns]
        rows = zip(
            self.decides,
            (dict(zip(self.by_predictor, node_peaks, strict=True)) for node_peaks in peaks),
            self.decided(lambda columns: columns.reclaimable.amount).tolist(),
            self.decided(lambda columns: columns.reclaimable.peak).tolist(),
            np.stack([prod.amount for prod in prods], axis=1).tolist(),
            np.stack([prod.peak - prod.system for prod in prods], axis=1).tolist(),
            self._young(),
            (self.by_predictor[name].counts_requests for name in self.decides),
            strict=True,
        )
        return [PeakSummary(*row) for row in rows]

    def _young(self) -> list[Sequence[str]]:
        """The UIDs of each node's pods that were first measured recently, or never."""
        view = self.view
        first = view.models.first_ms.take(view.pods)
        recent = view.end_ms[view.node_index] - YOUNG_SECONDS * 1000
        is_young = ((first == NEVER) | (first > recent)).tolist()
        young: list[Sequence[str]] = []
        for pods, (start, end) in zip(self._listed, pairwise(self._starts), strict=True):
            flags = is_young[start:end]
            young.append(pods.uids if all(flags) else tuple(compress(pods.uids, flags)))
        return young

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, i: int) -> NodePeaks: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[NodePeaks]: ...

    def __getitem__(self, i: int | slice) -> NodePeaks | Sequence[NodePeaks]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        peaks = self._cached[i]
        if peaks is None:
            peaks = self._cached[i] = self._node(range(len(self))[i])
        return peaks

    def _node(self, i: int) -> NodePeaks:
        pods = slice(self._starts[i], self._starts[i + 1])
        listed = self._listed[i]
        return NodePeaks(
            node=self.names[i],
            end_ms=int(self.view.end_ms[i]),
            decides=self.decides[i],
            predictors={
                name: columns.select(i, pods) for name, columns in self.by_predictor.items()
            },
            samples=self._samples[0][i],
            first_ms=self._first_ms[i],
            last_ms=self._last_ms[i],
            drift_ms=self._drift_ms[i],
            drifts=self._drifts[i],
            pod_uids=listed.uids,
            pod_classes=listed.classes,
            pod_requests=listed.requests,
            pod_samples=self._samples[1][pods],
            pod_cold=self.view.cold[pods],
            pod_active=listed.active,
            pod_ended=listed.ended,
            allocatable=self._allocatable[i],
        )
