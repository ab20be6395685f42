"""Koordinator's predictor: a quantile of each entity's decayed histogram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.bucket_weights import BUCKET_TERMS
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_fraction, check_mapping
from pipeline.processors.predictors.stateless import Stateless


class Percentile(Stateless):
    """By default p95 of cpu and p98 of memory; `classes` gives other fractions to some classes.

    An entity that never used any has a peak of 0, not the first bucket's end: five idle classes
    would otherwise cost every node 125 millicores and 25 MiB.

    Raises ValueError for a fraction that is none, and for a class that there is not.
    """

    name = "percentile"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(
        self,
        cpu: float = 0.95,
        memory: float = 0.98,
        classes: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        usual = {"cpu": cpu, "memory": memory}
        fractions = dict.fromkeys(ENTITIES, usual)
        for name, own in check_mapping("classes", classes).items():
            own = check_mapping(f"classes: {name!r}", own)
            if name not in CLASSES or not own.keys() <= usual.keys():
                raise ValueError(f"classes: {name!r}: {dict(own)!r} is no class with cpu or memory")
            fractions[name] = usual | dict(own)
        for which, pair in fractions.items():
            for resource, fraction in pair.items():
                check_fraction(f"{resource} of {which}", fraction)
        self._entities: Final = np.array([[f["cpu"], f["memory"]] for f in fractions.values()])

    def peak(self, view: View) -> Peaks:
        """The quantiles of all rows; 0 where all samples were 0.

        Terms: the `fraction`, the `bucket` in which this quantile lies, and from where to where
        that goes, as `first` and `ratio` of the layout have it.
        """
        entities = np.arange(view.entities.size) % len(ENTITIES)
        which = np.concatenate([entities, FIRST_CLASS + view.classes])
        fractions = self._entities.take(which, axis=0)
        rows, at = view.rows, view.all_rows
        found, idle = rows.quantile_buckets(at, fractions), rows.idle(at)
        peaks, pods = view.split(np.where(idle, 0.0, rows.ends(at, found)))
        deciding = np.where(view.split(idle)[0], -1, view.split(found)[0])
        terms = {
            "fraction": np.broadcast_to(self._entities, peaks.shape),
            **_bucket_terms(rows, view.entities, deciding),
        }
        return Peaks(peaks, pods, terms)


def _bucket_terms(rows: Rows, at: IntArray, buckets: IntArray) -> Mapping[str, FloatArray]:
    """What is to be said of `buckets` (k, E, 2) of rows `at` (k, E); unknown of -1."""
    profiles = rows.profile.take(at)
    terms = np.empty((len(BUCKET_TERMS), *buckets.shape))
    for r, histograms in enumerate(rows.buckets):
        terms[..., r] = np.moveaxis(histograms.described(buckets[..., r], profiles), -1, 0)
    return dict(zip(BUCKET_TERMS, terms, strict=True))
