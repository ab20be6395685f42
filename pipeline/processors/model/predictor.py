"""The protocol of predictors: what they see, and the peaks that they return.

A predictor is a small class, found by entry point (group `springtide.predictors`) and checked by
the suite `pipeline.processors.predictors.suite`. Usage arrays have two columns, cpu in cores and
memory in bytes; NaN is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.errors import PredictorError
from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.node_models import NodeModels

_T = TypeVar("_T", bound=np.generic)
_PROD_NEEDS: Final = frozenset(("system", "prod", "none"))
"""Entities whose peaks that of Prod needs."""


@dataclass(frozen=True, slots=True)
class PeakSettings:
    """Settings of the strategies of k nodes, columns (k,).

    A peak is multiplied by `margin` (1.1 for 10 percent). `nsigma_multiplier` is a number of
    deviations above the mean. The other two are for `cold_start`.
    """

    margin: FloatArray
    nsigma_multiplier: FloatArray
    cold_start_seconds: FloatArray
    cold_start_samples: IntArray


@dataclass(frozen=True, slots=True)
class View:
    """k nodes, their E entities (`ENTITIES`: node, system, classes) and the n pods that their last
    windows listed.

    `entities` (k, E) and `pods` (n,) are row numbers of `rows`; `node_of` (n,) says which of the k
    nodes a pod is on, ascending, `classes` (n,) its class code; `requests` (n, 2) are cores and
    bytes. `active` pods are neither being deleted nor `ended`. `cold` ones have too little history
    (`cold_start`): where a peak is a sum over pods, their request stands in. `horizon_seconds` (E,)
    is how long a peak is to hold; `end_ms` (k,) the end of each node's last window.
    """

    rows: Rows
    entities: IntArray
    pods: IntArray
    node_of: IntArray
    classes: ByteArray
    requests: FloatArray
    active: BoolArray
    ended: BoolArray
    cold: BoolArray
    end_ms: IntArray
    horizon_seconds: FloatArray
    settings: PeakSettings

    @property
    def all_rows(self) -> IntArray:
        """Every row: entities node by node, then pods, (k * E + n,)."""
        return np.concatenate([self.entities.ravel(), self.pods])

    def of_all_rows(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """The value of its node, of `values` (k,), for each of `all_rows`."""
        return np.concatenate([np.repeat(values, self.entities.shape[1]), values[self.node_of]])

    def split(self, values: npt.NDArray[_T]) -> tuple[npt.NDArray[_T], npt.NDArray[_T]]:
        """Split values (k * E + n, ..) of `all_rows` into entities (k, E, ..) and pods (n, ..)."""
        whole = self.entities.size
        return values[:whole].reshape(*self.entities.shape, *values.shape[1:]), values[whole:]


@dataclass(frozen=True, slots=True)
class Peaks:
    """A predictor's peaks before the safety margin, which is added for all predictors alike.

    `entities` are (k, E, 2), `pods` (n, 2), NaN unknown. `terms` are the numbers that the peaks of
    entities were computed from, each (k, E, 2), by published name. If peaks of entities include
    requests of cold pods, `bare` (k, E, 2) are the peaks without these, NaN where nothing is left;
    else None. The requests of cold pods beyond their own peaks are added to Prod's peak, less what
    the peaks of entities include.
    """

    entities: FloatArray
    pods: FloatArray
    terms: Mapping[str, FloatArray] = field(default_factory=dict)
    bare: FloatArray | None = None


class Predictor(Protocol):
    """What gives a peak.

    `name` is what it is published under. `columns` is what it keeps per row, beside histogram and
    moments; the bank empties, saves and restores them. `prod` says how the peak of Prod is found:
    by the classes' own peaks, or by these and the sum of the pods' (`pair`), the careful one.
    One that knows no peak of some entities by design names them in an attribute `never`, which
    need not be there; `never_known` reads it.
    """

    name: str
    prod: Literal["pair", "classes"]
    columns: Mapping[str, Column]

    def observe(
        self, rows: Rows, index: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        """Learn one sample `values` (m, 2) for each of the distinct rows `index` (m,), whose
        windows end at `end_ms` (m,); NaN is no sample. Called after histogram and moments have
        learned."""
        ...

    def peak(self, view: View) -> Peaks:
        """The peaks of all entities and pods in view; they depend on each row's own node alone."""
        ...


def never_known(predictor: Predictor) -> Collection[str]:
    """The entities of which a predictor knows no peak by design."""
    named: Collection[str] = getattr(predictor, "never", ())
    return named


def may_decide(predictor: Predictor) -> bool:
    """Whether anything of Prod could be handed out by its peaks."""
    return _PROD_NEEDS.isdisjoint(never_known(predictor))


def fault_of(made: object) -> str | None:
    """What keeps something from being a `Predictor` by its looks, if anything does."""
    name, prod, columns, never = (
        getattr(made, of, usual)
        for of, usual in (("name", None), ("prod", None), ("columns", None), ("never", ()))
    )
    if not isinstance(name, str) or not name:
        return f"its name is {name!r:.100}"
    if prod not in ("pair", "classes"):
        return f"prod is {prod!r:.100}, not 'pair' or 'classes'"
    if not (isinstance(columns, Mapping) and all(isinstance(c, Column) for c in columns.values())):
        return "columns are not `Column`s by name"
    if isinstance(never, str) or not isinstance(never, Collection) or set(never) - {*ENTITIES}:
        return f"never is {never!r:.100}, not some of {', '.join(ENTITIES)}"
    if missing := [of for of in ("observe", "peak") if not callable(getattr(made, of, None))]:
        return f"it has no method {missing[0]}"
    return None


def settings_of(nodes: Sequence[NodeModels]) -> PeakSettings:
    """The settings of each node, in that order."""
    strategies = [node.strategy for node in nodes]
    percent = np.array([strategy.safety_margin_percent for strategy in strategies], np.float64)
    return PeakSettings(
        margin=(100.0 + percent) / 100.0,
        nsigma_multiplier=np.array([s.nsigma_multiplier for s in strategies], np.float64),
        cold_start_seconds=np.array([s.cold_start_seconds for s in strategies], np.float64),
        cold_start_samples=np.array([s.cold_start_samples for s in strategies], np.int64),
    )


def believed(predictor: Predictor, view: View) -> Peaks:
    """What a predictor answers, a peak that cannot be one (negative, infinite) as unknown. Raises
    PredictorError, which names it, if it fails or answers in another shape."""
    shapes = ((*view.entities.shape, 2), (len(view.pods), 2))
    try:
        found = predictor.peak(view)
        given = (np.shape(found.entities), np.shape(found.pods))
        terms = {name: np.shape(term) for name, term in found.terms.items()}
    except AssertionError:  # by the shared suite, which looks at answers before anybody else
        raise
    except Exception as error:  # somebody else's code: there is nothing that it cannot raise
        raise PredictorError(f"predictor {predictor.name} failed: {error!r:.300}") from error
    if given != shapes:
        raise PredictorError(
            f"predictor {predictor.name} answers entities and pods of the shapes {given}, "
            f"not {shapes}"
        )
    if odd := [name for name, shape in terms.items() if shape != shapes[0]]:
        raise PredictorError(
            f"predictor {predictor.name} answers the term {odd[0]!r:.100} of the shape "
            f"{terms[odd[0]]}, not {shapes[0]}"
        )
    bad = [(peaks < 0.0) | (peaks == np.inf) for peaks in (found.entities, found.pods)]
    if not any(of.any() for of in bad):
        return found
    entities, pods = (
        np.where(of, np.nan, peaks)
        for of, peaks in zip(bad, (found.entities, found.pods), strict=True)
    )
    return replace(found, entities=entities, pods=pods)
