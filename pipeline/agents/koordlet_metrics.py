"""The metrics `koordlet_node_predicted_resource_reclaimable` and `_peak`, by Koordinator's names.

Owes the rest: for each node in this worker's hands what its predictors said after its last window
of Prod: what it leaves unused, and its peak. Predictors go by our names; the views of `percentile`
beside them by Koordinator's: `podPredictor`, `priorityPredictor`, and `minPredictor` for the
careful one of both, the smaller amount and the higher peak. What is unknown has no series. Nothing
is kept but an array per node: the pages are made when asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.metrics import REGISTRY
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.peaks import AllPeaks
from pipeline.processors.model.reclaimable import TO_KUBERNETES

METRICS: Final = {
    "koordlet_node_predicted_resource_reclaimable": (
        "What Prod asked for and will not use, by the predictor that says so."
    ),
    "koordlet_node_predicted_resource_peak": (
        "The peak of Prod with the safety margin, by the predictor that says so."
    ),
}
VIEWS: Final = ("podPredictor", "priorityPredictor", "minPredictor")
_OF_VIEWS: Final = "percentile"
_UNITS: Final = (("cpu", "core"), ("memory", "byte"))


class Profile(NamedTuple):
    """Of one partition: what is said of each node, (metrics, predictors, 2) cores and bytes, NaN
    unknown, in the order of `METRICS` and `predictors`."""

    predictors: tuple[str, ...]
    nodes: Mapping[str, FloatArray]


def names_of(predictors: Sequence[str]) -> tuple[str, ...]:
    """The values of the label `predictor` where these run."""
    return (*predictors, *(VIEWS if _OF_VIEWS in predictors else ()))


def amounts_of(peaks: AllPeaks) -> Mapping[str, FloatArray]:
    """What is reclaimable on each node, and the peak, a row for each of `names_of`."""
    found = {name: answer.reclaimable for name, answer in peaks.answers.items()}
    amounts = [answer.amount for answer in found.values()]
    highest = [answer.peak for answer in found.values()]
    if views := found.get(_OF_VIEWS):
        amounts += [views.pods_amount, views.classes_amount, views.amount]
        highest += [views.pods_peak, views.classes_peak, views.peak]
    rows = np.stack([np.stack(amounts, axis=1), np.stack(highest, axis=1)], axis=1)
    rows /= TO_KUBERNETES
    # A view would keep the rows of all nodes of its batch for as long as one of them is not new.
    return {name: row.copy() for name, row in zip(peaks.names, rows, strict=True)}


class _ProfileCollector(Collector):
    """Reads what was last computed when the page is asked for."""

    profiles: Callable[[], Iterable[Profile]] | None = None

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if self.profiles is None:
            return
        families = [
            GaugeMetricFamily(name, about, labels=["node", "predictor", "resource", "unit"])
            for name, about in METRICS.items()
        ]
        for profile in self.profiles():
            for node, amounts in profile.nodes.items():
                for family, of_metric in zip(families, amounts.tolist(), strict=True):
                    _add(family, node, profile.predictors, of_metric)
        yield from families


def _add(
    family: GaugeMetricFamily, node: str, predictors: Sequence[str], rows: list[list[float]]
) -> None:
    for predictor, row in zip(predictors, rows, strict=True):
        for (resource, unit), amount in zip(_UNITS, row, strict=True):
            if amount == amount:
                family.add_metric([node, predictor, resource, unit], amount)


_COLLECTOR = _ProfileCollector()
REGISTRY.register(_COLLECTOR)


def watch(profiles: Callable[[], Iterable[Profile]] | None) -> None:
    """Show these on the metrics page of the process, in place of those shown before."""
    _COLLECTOR.profiles = profiles
