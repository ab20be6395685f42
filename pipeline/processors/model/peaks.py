"""Peaks of nodes by predictor, for every entity, and what Prod leaves unused.

They are computed for many nodes at once, from the rows of their models and the pods of their last
windows. When a pod counts its request is decided in `cold_start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import compress, pairwise
from typing import Final, NamedTuple, overload

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model import reclaimable
from pipeline.processors.model.cold_start import cold
from pipeline.processors.model.entity_columns import NEVER, Rows
from pipeline.processors.model.model_config import FIRST_CLASS, NODE, SYSTEM, UNKNOWN
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.pairs import stacked
from pipeline.processors.model.predictor import (
    Peaks,
    Predictor,
    View,
    checked_peaks,
    may_decide,
    settings_of,
)
from pipeline.processors.model.reclaimable import TO_KUBERNETES, kubernetes_units
from pipeline.topics.node_state import YOUNG_SECONDS

_PROD, _NONE = (FIRST_CLASS + CLASS_CODES[name] for name in ("prod", "none"))


@dataclass(frozen=True, slots=True)
class ProdReclaimable:
    """Both views of one node, each (2,) millicores and bytes, NaN unknown; with `pair` both count,
    else only that of classes.

    `unpredicted` are requests of cold pods within `pods_peak`. For the same pods `surplus` was
    added to `classes_peak`, which included `held` already. `system` was added to `pods_peak`;
    `classes_peak` includes it. `left_out` is the number of pods, by resource, that `pods_peak`
    lacks because neither peak nor request is known.
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
    with it; `terms` are the numbers that `raw` was computed from.
    """

    raw: FloatArray
    peaks: FloatArray
    pod_raw: FloatArray
    terms: Mapping[str, FloatArray]
    reclaimable: ProdReclaimable


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


class Headline(NamedTuple):
    """The peaks that a node's state and resources use, each (cpu, memory), NaN unknown.

    `peaks` are those of the node by predictor, in cores. `amount` and `peak` are what Prod leaves
    unused and its peak by the predictor that `decides`, in millicores; `prod_amounts` and
    `prod_peaks` the same by all predictors in their order, without the system. `young` are the UIDs
    of pods of the last window that were first measured less than `YOUNG_SECONDS` ago.
    """

    decides: str
    peaks: dict[str, list[float]]
    amount: list[float]
    peak: list[float]
    prod_amounts: list[list[float]]
    prod_peaks: list[list[float]]
    young: Sequence[str]

    @property
    def deciding(self) -> int:
        """The position of the deciding predictor."""
        return list(self.peaks).index(self.decides)


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of `PredictorPeaks` for k nodes and their n pods: `raw` and `peaks` are
    (k, entities, 2), the arrays of `reclaimable` (k, 2)."""

    raw: FloatArray
    peaks: FloatArray
    pod_raw: FloatArray
    terms: Mapping[str, FloatArray]
    reclaimable: ProdReclaimable
    may_decide: bool

    def select(self, i: int, pods: slice) -> PredictorPeaks:
        """The peaks of the i-th node, which has these pods."""
        return PredictorPeaks(
            raw=self.raw[i],
            peaks=self.peaks[i],
            pod_raw=self.pod_raw[pods],
            terms={term: values[i] for term, values in self.terms.items()},
            reclaimable=self.reclaimable.select(i),
        )


class AllPeaks(Sequence[NodePeaks]):
    """Peaks of k nodes in the order requested, computed for all as columns.

    `NodePeaks` of a node are cut out when they are read: most of their cost is small objects.
    """

    def __init__(
        self,
        names: Sequence[str],
        nodes: Sequence[NodeModels],
        view: View,
        answers: Mapping[str, Answer],
        default: str,
        changes: tuple[IntArray, IntArray],
    ) -> None:
        self.names = tuple(names)
        self.answers = answers
        allowed = {name for name, answer in answers.items() if answer.may_decide}
        preferred = (node.strategy.predictor for node in nodes)
        self.decides = [name if name in allowed else default for name in preferred]
        self._cached: list[NodePeaks | None] = [None] * len(self.names)
        self._view = view
        self._drift_ms, self._drifts = changes
        self._listed = [node.listed for node in nodes]
        self._allocatable = [node.allocatable for node in nodes]
        self._starts = np.cumsum([0, *(len(pods.uids) for pods in self._listed)]).tolist()
        self._samples = view.split(view.rows.samples.take(view.all_rows, axis=0))
        self._first_ms = view.rows.first_ms.take(view.entities)
        self._last_ms = view.rows.last_ms.take(view.entities)

    @property
    def end_ms(self) -> IntArray:
        """The end of each node's last window, (k,)."""
        return self._view.end_ms

    def decided(self, column: Callable[[Answer], FloatArray]) -> FloatArray:
        """A column of the answers, (k, ..), for each node by its deciding predictor."""
        first, *others = dict.fromkeys(self.decides)
        values = column(self.answers[first])
        for name in others:
            decides = np.array([predictor == name for predictor in self.decides])
            decides = decides.reshape(-1, *[1] * (values.ndim - 1))
            values = np.where(decides, column(self.answers[name]), values)
        return values

    def headline(self, i: int) -> Headline:
        """The headline of the i-th node."""
        return self._headlines[i]

    @cached_property
    def _headlines(self) -> list[Headline]:
        peaks = [answer.peaks[:, NODE].tolist() for answer in self.answers.values()]
        prods = [answer.reclaimable for answer in self.answers.values()]
        amounts = np.stack([prod.amount for prod in prods], axis=1).tolist()
        without_system = np.stack([prod.peak - prod.system for prod in prods], axis=1).tolist()
        return [
            Headline(decides, dict(zip(self.answers, node_peaks, strict=True)), *others)
            for decides, *node_peaks, others in zip(
                self.decides,
                *peaks,
                zip(
                    self.decided(lambda answer: answer.reclaimable.amount).tolist(),
                    self.decided(lambda answer: answer.reclaimable.peak).tolist(),
                    amounts,
                    without_system,
                    self._young(),
                    strict=True,
                ),
                strict=True,
            )
        ]

    def _young(self) -> list[Sequence[str]]:
        """The UIDs of each node's pods that were first measured recently, or never."""
        view = self._view
        first = view.rows.first_ms.take(view.pods)
        recent = view.end_ms[view.node_of] - YOUNG_SECONDS * 1000
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
            end_ms=int(self._view.end_ms[i]),
            decides=self.decides[i],
            predictors={name: answer.select(i, pods) for name, answer in self.answers.items()},
            samples=self._samples[0][i],
            first_ms=self._first_ms[i],
            last_ms=self._last_ms[i],
            drift_ms=self._drift_ms[i],
            drifts=self._drifts[i],
            pod_uids=listed.uids,
            pod_classes=listed.classes,
            pod_requests=listed.requests,
            pod_samples=self._samples[1][pods],
            pod_cold=self._view.cold[pods],
            pod_active=listed.active,
            pod_ended=listed.ended,
            allocatable=self._allocatable[i],
        )


def peaks_of(
    names: Sequence[str],
    nodes: Sequence[NodeModels],
    rows: Rows,
    predictors: Mapping[str, Predictor],
    horizon_seconds: FloatArray,
    default: str,
    changes: tuple[IntArray, IntArray],
) -> AllPeaks:
    """Peaks of `nodes`, at least one, whose names are `names`, in that order.

    The predictor `default` decides where a strategy names one that does not run or may not decide.
    `changes` are `drift_ms` and `drifts` of all nodes, (k, entities, 2).
    """
    view = view_of(nodes, rows, horizon_seconds)
    inputs = _prod_inputs(nodes, view)
    answers = {name: _answer(view, inputs, predictor) for name, predictor in predictors.items()}
    return AllPeaks(names, nodes, view, answers, default, changes)


@dataclass(frozen=True, slots=True)
class _ProdInputs:
    """Inputs of the views of Prod that depend on no predictor; `requests` and `allocatable` are
    (nodes, 2) millicores and bytes."""

    pods: reclaimable.Pods
    requests: FloatArray
    allocatable: FloatArray


def _prod_inputs(nodes: Sequence[NodeModels], view: View) -> _ProdInputs:
    pods = reclaimable.Pods(
        node_of=view.node_of,
        classes=view.classes,
        requests=np.concatenate([node.listed.requests for node in nodes]),
        cold=view.cold,
        active=view.active,
        ended=view.ended,
    )
    allocatable = stacked([node.allocatable for node in nodes])
    return _ProdInputs(pods, pods.request_sums(len(nodes)), allocatable)


def _answer(view: View, inputs: _ProdInputs, predictor: Predictor) -> Answer:
    peaks = checked_peaks(predictor, view)
    return Answer(
        raw=peaks.entities,
        peaks=peaks.entities * view.settings.margin[:, None, None],
        pod_raw=peaks.pods,
        terms=peaks.terms,
        reclaimable=_reclaimable(view, inputs, peaks, predictor.prod == "pair"),
        may_decide=may_decide(predictor),
    )


def view_of(nodes: Sequence[NodeModels], rows: Rows, horizon_seconds: FloatArray) -> View:
    """The input of predictors for these nodes."""
    settings = settings_of(nodes)
    node_of = np.arange(len(nodes)).repeat([len(node.rows) for node in nodes])
    pods = np.concatenate([node.rows for node in nodes])
    end_ms = np.array([node.end_ms for node in nodes], np.int64)
    ages = np.concatenate([node.ages for node in nodes])
    requests = np.concatenate([node.listed.requests for node in nodes])
    requests[:, 0] /= TO_KUBERNETES[0]
    return View(
        rows=rows,
        entities=stacked([node.fixed for node in nodes]),
        pods=pods,
        node_of=node_of,
        classes=np.concatenate([node.listed.classes for node in nodes]),
        requests=requests,
        active=np.concatenate([node.listed.active for node in nodes]),
        ended=np.concatenate([node.listed.ended for node in nodes]),
        cold=cold(rows, pods, ages, end_ms[node_of], node_of, settings),
        end_ms=end_ms,
        horizon_seconds=horizon_seconds,
        settings=settings,
    )


def _reclaimable(view: View, inputs: _ProdInputs, peaks: Peaks, pair: bool) -> ProdReclaimable:
    """What Prod leaves unused of all nodes, arrays (nodes, 2)."""
    requests, allocatable, margin = inputs.requests, inputs.allocatable, view.settings.margin
    pod_peaks, entities = kubernetes_units(peaks.pods), kubernetes_units(peaks.entities)
    pods, surplus = reclaimable.pod_view(inputs.pods, pod_peaks, allocatable, margin)
    begun = view.rows.last_ms.take(view.entities[:, UNKNOWN]) != NEVER
    used = _used_by_prod(entities, begun)
    held = np.zeros_like(surplus)
    if peaks.bare is not None:
        bare = _used_by_prod(kubernetes_units(peaks.bare), begun)
        held = reclaimable.surplus_in_peaks(
            surplus=surplus, peaks=used, peaks_without_requests=bare, margin=margin
        )
    surplus = surplus - held
    classes = reclaimable.class_view(
        peaks=used,
        surplus=surplus,
        requests=requests,
        allocatable=allocatable,
        margin=margin,
    )
    system = reclaimable.with_margin(entities[:, SYSTEM], margin)
    result = reclaimable.combine(pods, classes, system) if pair else classes
    return ProdReclaimable(
        pair=pair,
        amount=result.amount,
        peak=result.peak,
        unpredicted=pods.unpredicted,
        requests=requests,
        pods_amount=pods.amount,
        pods_peak=pods.peak,
        classes_amount=classes.amount,
        classes_peak=classes.peak,
        surplus=surplus,
        held=held,
        system=system,
        left_out=reclaimable.left_out(inputs.pods, pod_peaks, len(allocatable)),
    )


def _used_by_prod(entities: FloatArray, begun: BoolArray) -> FloatArray:
    """The sum (nodes, 2) of the peaks (nodes, E, 2) of system, prod, none and unknown; unknown if
    one is. `begun` (nodes,) is False where the node never had a pod of unknown class."""
    known = entities[:, SYSTEM] + entities[:, _PROD] + entities[:, _NONE]
    return known + np.where(begun[:, None], entities[:, UNKNOWN], 0.0)
