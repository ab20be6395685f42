"""The protocol of predictors: their input (`View`) and their result (`Peaks`).

A predictor is a small class, found by entry point (group `springtide.predictors`) and checked by
the suite `pipeline.processors.predictors.suite`. Usage arrays have two columns, cpu in cores and
memory in bytes; NaN is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import PredictorError
from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES
from pipeline.topics.nodes import Strategy
from pipeline.topics.pool_outcomes import NodeOutcomes, PoolOutcomesRecord
from pipeline.topics.workload_histories import WorkloadHistoryRecord
from pipeline.topics.workloads import Workload

_T = TypeVar("_T", bound=np.generic)
_PROD_NEEDS: Final = frozenset(("system", "prod", "none"))
"""The entities that the peak of Prod is computed from."""


@dataclass(frozen=True, slots=True)
class View:
    """k nodes, their E entities (`ENTITIES`: node, system, classes) and the n pods that their last
    windows listed.

    `entities` (k, E) and `pods` (n,) are row numbers of `models`; `node_index` (n,) is the index of
    each pod's node, ascending, `classes` (n,) its class code; `requests` (n, 2) are cores and
    bytes. `active` pods are neither being deleted nor `ended`. `cold` ones have too little history
    (`cold_start`): where a peak is a sum over pods, their request stands in. `horizon_seconds` (E,)
    is how far ahead a peak applies; `end_ms` (k,) the end of each node's last window. `strategies`
    has an array (k,) for each field of `Strategy`, the nodes' prediction policies. `node_store` has
    the columns per node of predictors, and `node_rows` (k,) the rows of these nodes there.
    """

    models: EntityModels
    entities: IntArray
    pods: IntArray
    node_index: IntArray
    classes: ByteArray
    requests: FloatArray
    active: BoolArray
    ended: BoolArray
    cold: BoolArray
    end_ms: IntArray
    horizon_seconds: FloatArray
    strategies: Mapping[str, npt.NDArray[Any]]
    node_store: Columns
    node_rows: IntArray

    @property
    def margin(self) -> FloatArray:
        """The safety margin of each node as a factor, (k,): 1.1 for 10 percent."""
        return np.asarray((100.0 + self.strategies["safety_margin_percent"]) / 100.0)

    @property
    def all_rows(self) -> IntArray:
        """Every row: entities node by node, then pods, (k * E + n,)."""
        return np.concatenate([self.entities.ravel(), self.pods])

    def repeat_per_row(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """The value of its node, of `values` (k,), for each of `all_rows`."""
        return np.concatenate([np.repeat(values, self.entities.shape[1]), values[self.node_index]])

    def split(self, values: npt.NDArray[_T]) -> tuple[npt.NDArray[_T], npt.NDArray[_T]]:
        """Split values (k * E + n, ..) of `all_rows` into entities (k, E, ..) and pods (n, ..)."""
        whole = self.entities.size
        return values[:whole].reshape(*self.entities.shape, *values.shape[1:]), values[whole:]


@dataclass(frozen=True, slots=True)
class Peaks:
    """A predictor's peaks before the safety margin, which is added for all predictors alike.

    `entities` are (k, E, 2), `pods` (n, 2), NaN unknown. `terms` are the numbers that the peaks of
    entities were computed from, each (k, E, 2), by published name. If peaks of entities include
    requests of cold pods, `without_requests` (k, E, 2) are the peaks without these, NaN where
    nothing is left; else None. The requests of cold pods beyond their own peaks are added to Prod's
    peak, less what the peaks of entities include. `outcomes` are what each node tells its pool,
    None without: nothing for all of them if there are none.
    """

    entities: FloatArray
    pods: FloatArray
    terms: Mapping[str, FloatArray] = field(default_factory=dict)
    without_requests: FloatArray | None = None
    outcomes: Sequence[NodeOutcomes | None] = ()


class Predictor(Protocol):
    """A predictor: learns samples and returns peaks.

    `name` is the name in records. `columns` are its state per row, beside histogram and moments;
    the bank clears, saves and restores them. `prod` selects how the peak of Prod is computed: from
    the peaks of classes, or with `pair` from these and from the sum of the pods' peaks, whichever
    is higher. An optional attribute `no_peak_for` names the entities without a peak by design (see
    `entities_without_peak`), an optional method `check_horizon` refuses horizons (see there).
    """

    name: str
    prod: Literal["pair", "classes"]
    columns: Mapping[str, Column]

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        """Learn one sample `values` (m, 2) for each of the distinct `rows` (m,), whose windows end
        at `end_ms` (m,); NaN is no sample. Called after histogram and moments have learned."""

    def peak(self, view: View) -> Peaks:
        """Compute the peaks of all entities and pods in view. They depend only on the rows of the
        same node."""


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """What the last windows of the nodes in a view add to it: their lengths `window_ms` (k,); the
    usage of `entities` (k, E, 2) and `pods` (n, 2), cores and bytes, NaN unknown; of the pods of
    each node their `uids` and `workloads`, None where unknown, the same tuples until one of them
    changes; no workloads if all are unknown; the outcomes of each node's pool, None for a node
    whose window has none; and the histories of workloads that came to each node."""

    window_ms: IntArray
    entities: FloatArray
    pods: FloatArray
    uids: Sequence[tuple[str, ...]]
    workloads: Sequence[tuple[Workload | None, ...]]
    pool_outcomes: Sequence[PoolOutcomesRecord | None]
    workload_histories: Sequence[Sequence[WorkloadHistoryRecord]]


@runtime_checkable
class NodePredictor(Predictor, Protocol):
    """A predictor that also learns nodes as a whole.

    `node_columns` are its state per node, by name as `columns`; state of no fixed size is in an
    `object_column`.
    """

    node_columns: Mapping[str, Column]

    def learn(self, view: View, windows: WindowUsage) -> None:
        """Learn the windows of the nodes in view, after `observe`. It may write to its columns of
        these nodes, entities and pods. What it does with a node depends on that node alone."""


def entities_without_peak(predictor: Predictor) -> Collection[str]:
    """The entities without a peak by design."""
    names: Collection[str] = getattr(predictor, "no_peak_for", ())
    return names


def node_columns(predictor: Predictor) -> Mapping[str, Column]:
    """The state of a predictor per node."""
    return predictor.node_columns if isinstance(predictor, NodePredictor) else {}


def node_predictors(predictors: Iterable[Predictor]) -> list[NodePredictor]:
    """Those that have state per node."""
    return [one for one in predictors if isinstance(one, NodePredictor) and one.node_columns]


def check_horizon(predictor: Predictor, seconds: float) -> None:
    """Raise PredictorError if a predictor does not have peaks of Prod that hold for so long: its
    optional method `check_horizon` raises ValueError."""
    try:
        getattr(predictor, "check_horizon", lambda seconds: None)(seconds)
    except ValueError as error:
        raise PredictorError(
            f"model.horizon_seconds: predictor {predictor.name}: {error}",
            key="model.horizon_seconds",
            hint=f"choose another horizon, or leave {predictor.name} out of model.predictors",
        ) from error


def may_decide(predictor: Predictor) -> bool:
    """Whether its peaks suffice to offer anything of Prod."""
    return _PROD_NEEDS.isdisjoint(entities_without_peak(predictor))


def protocol_violation(predictor: object) -> str | None:
    """How an object differs from `Predictor`; None if it does not."""
    name, prod, columns = (
        getattr(predictor, attribute, None) for attribute in ("name", "prod", "columns")
    )
    no_peak_for = getattr(predictor, "no_peak_for", ())
    if not isinstance(name, str) or not name:
        return f"its name is {name!r:.100}"
    if prod not in ("pair", "classes"):
        return f"prod is {prod!r:.100}, not 'pair' or 'classes'"
    per_node = getattr(predictor, "node_columns", {})
    for declared in (columns, per_node):
        if not (
            isinstance(declared, Mapping) and all(isinstance(c, Column) for c in declared.values())
        ):
            return "columns are not `Column`s by name"
    if per_node and not callable(getattr(predictor, "learn", None)):
        return "it has columns per node, and no method learn"
    if (
        isinstance(no_peak_for, str)
        or not isinstance(no_peak_for, Collection)
        or set(no_peak_for) - {*ENTITIES}
    ):
        return f"no_peak_for is {no_peak_for!r:.100}, not some of {', '.join(ENTITIES)}"
    for method in ("observe", "peak"):
        if not callable(getattr(predictor, method, None)):
            return f"it has no method {method}"
    return None


def strategy_columns(strategies: Sequence[Strategy]) -> dict[str, npt.NDArray[Any]]:
    """Each field of k strategies as an array (k,), by name."""
    columns = zip(*map(msgspec.structs.astuple, strategies), strict=True)
    return dict(zip(Strategy.__struct_fields__, map(np.array, columns), strict=True))


@contextmanager
def named(predictor: Predictor) -> Iterator[None]:
    """Raise `PredictorError`, which names the predictor, for whatever it raises."""
    try:
        yield
    except AssertionError:  # of the shared suite
        raise
    except Exception as error:  # foreign code may raise anything
        raise PredictorError(f"predictor {predictor.name} failed: {error!r:.300}") from error


def checked_peaks(predictor: Predictor, view: View) -> Peaks:
    """The peaks of a predictor; negative and infinite ones count as unknown.

    Raises PredictorError, which names the predictor, if it fails or returns another shape.
    """
    shapes = ((*view.entities.shape, 2), (len(view.pods), 2))
    with named(predictor):
        peaks = predictor.peak(view)
        returned = (np.shape(peaks.entities), np.shape(peaks.pods))
        terms = {name: np.shape(term) for name, term in peaks.terms.items()}
        invalid = [(values < 0.0) | (values == np.inf) for values in (peaks.entities, peaks.pods)]
    if returned != shapes:
        raise PredictorError(
            f"predictor {predictor.name} returns entities and pods of the shapes {returned}, "
            f"not {shapes}"
        )
    for name, shape in terms.items():
        if shape != shapes[0]:
            raise PredictorError(
                f"predictor {predictor.name} returns the term {name!r:.100} of the shape "
                f"{shape}, not {shapes[0]}"
            )
    if len(peaks.outcomes) not in (0, shapes[0][0]):
        raise PredictorError(
            f"predictor {predictor.name} returns outcomes of {len(peaks.outcomes)} nodes, "
            f"not {shapes[0][0]}"
        )
    if not any(values.any() for values in invalid):
        return peaks
    return replace(
        peaks,
        entities=np.where(invalid[0], np.nan, peaks.entities),
        pods=np.where(invalid[1], np.nan, peaks.pods),
    )
