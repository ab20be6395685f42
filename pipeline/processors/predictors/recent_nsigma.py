"""N-sigma over recent usage: mean and deviation of what the present pods used together.

From the simulator of Bashir et al., Take it to the limit: peak prediction for resource
overcommitment in datacenters (EuroSys 2021). The history of a node is that of the pods that it has
now: pods that left do not raise its peak, and a pod that came lately counts from its first slot on.
"""

import math
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model import day_slots
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS, NODE, SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import between
from pipeline.processors.predictors.pod_sums import pod_sums
from pipeline.processors.predictors.stateless import Stateless

_SLOT_SECONDS: Final = day_slots.SLOT_MS / 1000
_DAY_SECONDS: Final = day_slots.SLOTS * _SLOT_SECONDS
_PODS: Final = "together + alone + requests"


class _Shares(NamedTuple):
    """Of groups of pods, (groups,) each: mean and deviation of usage / requests, and the requests
    of all pods of the group."""

    mean: FloatArray
    stdev: FloatArray
    asked: FloatArray


class RecentNSigma(Stateless):
    """Predicts (mean + N standard deviations of usage / requests, at most 1) * requests of the
    present pods together. Usage and requests of a slot are those of the pods that have a value
    there. Cold pods count their requests, and pods without a request add their own mean + N
    standard deviations, as the system does."""

    name = "recent-nsigma"
    prod: Literal["pair", "classes"] = "classes"
    declaration: Final = Declaration(
        summary="(mean + N * standard deviation of recent usage / requests, at most 1) * requests, "
        "of the present pods together",
        options=(
            between(
                "history_seconds", _DAY_SECONDS, _SLOT_SECONDS, _DAY_SECONDS,
                "how far back usage counts",
            ),
        ),
        terms=(
            Term("mean", "", note="of usage / requests"),
            Term("stdev", "", note="of usage / requests"),
            Term("asked", note="requests of these pods"),
            Term("together", formula="min(mean + N * stdev, 1) * asked"),
            Term("alone", note="peaks of pods without a request"),
            Term("requests", adds="missing peaks"),
            Term("counted", ""),
            Term("left_out", ""),
            Term("system", note="node only"),
        ),
        formulas=(
            Formula(f"{_PODS} + system", entities=("node",)),
            Formula(_PODS, entities=CLASSES),
        ),
        without_formula="mean and deviation of the slots of its history",
        unknown="no recent samples",
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._slots = math.ceil(given["history_seconds"] / _SLOT_SECONDS)

    def peak(self, view: View) -> Peaks:
        k, n = len(view.end_ms), len(view.pods)
        sigmas = view.strategies["nsigma_multiplier"].astype(np.float64)
        system, own = np.full((k, 2), np.nan), np.full((n, 2), np.nan)
        together = np.zeros((n, 2), np.bool_)
        terms = {
            name: np.full((k, len(ENTITIES), 2), np.nan)
            for name in ("mean", "stdev", "asked", "together", "alone", "system")
        }
        for r in range(2):
            usage = self._usage(view.models, view.entities[:, SYSTEM], view.end_ms, r)
            system[:, r] = _own_peaks(usage, sigmas, np.full(k, np.nan))
            usage = self._usage(view.models, view.pods, view.end_ms[view.node_index], r)
            requests = view.requests[:, r]
            own[:, r] = _own_peaks(usage, sigmas[view.node_index], requests)
            with_request = ~np.isnan(own[:, r]) & (requests > 0.0)
            together[:, r] = with_request & ~view.cold & ~view.ended
            for entities, groups, count in _groupings(view):
                shares = _shares(usage, requests, groups, together[:, r], count)
                limited = np.minimum(shares.mean + np.repeat(sigmas, count // k) * shares.stdev, 1)
                peaks = np.where(shares.asked > 0.0, limited * shares.asked, 0.0)
                values = {**shares._asdict(), "together": peaks}
                for name, value in values.items():
                    terms[name][:, entities, r] = value.reshape(k, -1)
        sums = pod_sums(view, np.where(together, 0.0, own))
        totals = terms["together"] + sums.pods + sums.requests
        totals[:, NODE] += system
        totals[:, SYSTEM] = system
        terms["system"][:, NODE] = system
        terms["alone"] = sums.pods
        terms |= {name: getattr(sums, name) for name in ("requests", "counted", "left_out")}
        return Peaks(totals, own, terms, without_requests=np.full_like(totals, np.nan))

    def _usage(
        self, models: EntityModels, rows: IntArray, end_ms: IntArray, resource: int
    ) -> FloatArray:
        """The usage of rows in the slots of the history that ends at `end_ms` (n,), (n, slots), the
        newest first; NaN where there is none."""
        recent, newest = models.store["recent"], models.store["recent_slot"]
        ages = np.arange(self._slots)
        slots = ((end_ms - 1) // day_slots.SLOT_MS)[:, None] - ages
        codes = recent[rows[:, None], resource, slots % day_slots.SLOTS]
        # Slots after the row's newest one still hold those of the day before.
        return np.where(
            slots <= newest[rows][:, None], day_slots.CODE_VALUES[resource][codes], np.nan
        )


def _groupings(view: View) -> list[tuple[slice, IntArray, int]]:
    """The groups of pods: by node, and by node and class, with the entities that they are."""
    nodes, classes = len(view.end_ms), len(CLASSES)
    return [
        (slice(NODE, NODE + 1), view.node_index, nodes),
        (slice(FIRST_CLASS, None), view.node_index * classes + view.classes, nodes * classes),
    ]


def _own_peaks(usage: FloatArray, sigmas: FloatArray, requests: FloatArray) -> FloatArray:
    """Mean + N standard deviations of each row of `usage` (n, slots), at most its request (n,) if
    it has one above 0; NaN without a value."""
    mean, stdev = _moments(usage, ~np.isnan(usage))
    limits = np.where(requests > 0.0, requests, np.inf)
    peaks = mean + sigmas * stdev
    return np.where(np.isnan(peaks), np.nan, np.minimum(peaks, limits))


def _shares(
    usage: FloatArray, requests: FloatArray, groups: IntArray, counts: BoolArray, number: int
) -> _Shares:
    """The shares of the pods that count, (n,), by group; NaN for a group without any."""
    rows = np.flatnonzero(counts)
    order = rows[np.argsort(groups[rows], kind="stable")]
    present, starts = np.unique(groups[order], return_index=True)
    mean, stdev, asked = np.full(number, np.nan), np.full(number, np.nan), np.zeros(number)
    if len(order):
        known = ~np.isnan(usage[order])
        used = np.add.reduceat(np.where(known, usage[order], 0.0), starts, axis=0)
        base = np.add.reduceat(np.where(known, requests[order, None], 0.0), starts, axis=0)
        has_any = base > 0.0
        share = np.divide(used, base, out=np.zeros_like(used), where=has_any)
        mean[present], stdev[present] = _moments(share, has_any)
        asked[present] = np.add.reduceat(requests[order], starts)
    return _Shares(mean, stdev, asked)


def _moments(values: FloatArray, known: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Mean and sample deviation (n - 1; 0 for a single value) of the known values of each row;
    NaN without one."""
    count = known.sum(axis=1)
    some = count > 0
    mean = np.full(len(values), np.nan)
    np.divide(np.where(known, values, 0.0).sum(axis=1), count, out=mean, where=some)
    deviations = np.where(known, values - np.where(some, mean, 0.0)[:, None], 0.0)
    variance = (deviations * deviations).sum(axis=1) / np.maximum(count - 1, 1)
    return mean, np.where(some, np.sqrt(variance), np.nan)


PREDICTOR: Final = RecentNSigma
