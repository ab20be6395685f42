"""Koordinator's predictor: a quantile of each entity's decayed histogram."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS, RESOURCES
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.model.sparse_histograms import BUCKET_TERMS
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import Option, check_fraction, check_mapping, fraction
from pipeline.processors.predictors.stateless import Stateless

_EDGE: Final = "first * (ratio ** {} - 1) / (ratio - 1)"


def _check_classes(name: str, value: Mapping[str, Mapping[str, float]]) -> Mapping[str, Any]:
    """Fractions by class and resource."""
    for pod_class, fractions in check_mapping(name, value).items():
        which = f"{name}: {pod_class!r}"
        if pod_class not in CLASSES or not check_mapping(which, fractions).keys() <= {*RESOURCES}:
            raise ValueError(f"{which}: {dict(fractions)!r} is no class with cpu or memory")
        for resource, share in fractions.items():
            check_fraction(f"{which}: {resource}", share)
    return value


def _label(terms: Mapping[str, float]) -> str:
    edge = "end" if "end" in terms else "start"
    percent = 100.0 * terms["fraction"]
    return f"p{percent:.6g} of the histogram: {edge} of bucket {terms['bucket']:.0f}"


class Percentile(Stateless):
    """Predicts a quantile of each entity's decayed histogram, by class and resource. An entity that
    never used any has a peak of 0, not the end of the first bucket: five idle classes would
    otherwise cost every node 125 millicores and 25 MiB."""

    name = "percentile"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="a quantile of the histogram, as Koordinator does; 0 where all samples were 0",
        options=(
            fraction("cpu", 0.95, "quantile of cpu"),
            fraction("memory", 0.98, "quantile of memory"),
            Option(
                "classes", {}, "quantiles of a class: `{batch: {cpu: 0.9}}`",
                "classes with cpu, memory", _check_classes,
            ),
        ),
        terms=(
            Term("fraction", ""),
            Term("bucket", "", note="with the quantile"),
            Term("first", note="of the layout"),
            Term("ratio", "", note="of the layout"),
            Term("start", formula=_EDGE.format("bucket")),
            Term("end", formula=_EDGE.format("(bucket + 1)"), note="not of the last bucket"),
        ),
        formulas=(Formula("end", label=_label), Formula("start", label=_label)),
        pick="first",
        without_formula="all samples were 0",
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        usual = {"cpu": given["cpu"], "memory": given["memory"]}
        fractions = [usual | dict(given["classes"].get(entity, {})) for entity in ENTITIES]
        self._fractions: Final = np.array([[f["cpu"], f["memory"]] for f in fractions])

    def peak(self, view: View) -> Peaks:
        """Return the quantiles of all rows; 0 for a row whose samples were all 0."""
        entities = np.arange(view.entities.size) % len(ENTITIES)
        which = np.concatenate([entities, FIRST_CLASS + view.classes])
        fractions = self._fractions.take(which, axis=0)
        models, rows = view.models, view.all_rows
        buckets, idle = models.quantile_buckets(rows, fractions), models.idle(rows)
        peaks, pods = view.split(np.where(idle, 0.0, models.ends(rows, buckets)))
        deciding = np.where(view.split(idle)[0], -1, view.split(buckets)[0])
        terms = {
            "fraction": np.broadcast_to(self._fractions, peaks.shape),
            **_bucket_terms(models, view.entities, deciding),
        }
        return Peaks(peaks, pods, terms)


def _bucket_terms(
    models: EntityModels, rows: IntArray, buckets: IntArray
) -> Mapping[str, FloatArray]:
    """The terms of `buckets` (k, E, 2) of the `rows` (k, E); NaN for bucket -1."""
    profiles = models.profile.take(rows)
    terms = np.empty((len(BUCKET_TERMS), *buckets.shape))
    for r, histograms in enumerate(models.histograms):
        terms[..., r] = np.moveaxis(histograms.bucket_terms(buckets[..., r], profiles), -1, 0)
    return dict(zip(BUCKET_TERMS, terms, strict=True))


PREDICTOR: Final = Percentile
