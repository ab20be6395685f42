"""The metric `koordlet_node_predicted_resource_reclaimable`, by Koordinator's name.

Owes the rest: for each node in this worker's hands what its predictors said after its last window
that Prod leaves unused. Predictors go by our names; the views of `percentile` beside them by
Koordinator's: `podPredictor`, `priorityPredictor`, and `minPredictor` for the smaller of the two.
What is unknown has no series. Nothing is kept but an array per node: the page is made when asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.metrics import REGISTRY
from pipeline.processors.peaks import AllPeaks
from pipeline.processors.reclaimable import TO_KUBERNETES

Floats = npt.NDArray[np.float64]

METRIC: Final = "koordlet_node_predicted_resource_reclaimable"
VIEWS: Final = ("podPredictor", "priorityPredictor", "minPredictor")
_OF_VIEWS: Final = "percentile"
_UNITS: Final = (("cpu", "core"), ("memory", "byte"))


class Profile(NamedTuple):
    """Of one partition: what is reclaimable by node, (predictors, 2) cores and bytes, NaN
    unknown, a row for each of the `predictors`."""

    predictors: tuple[str, ...]
    nodes: Mapping[str, Floats]


def names_of(predictors: Sequence[str]) -> tuple[str, ...]:
    """The values of the label `predictor` where these run."""
    return (*predictors, *(VIEWS if _OF_VIEWS in predictors else ()))


def amounts_of(peaks: AllPeaks) -> Mapping[str, Floats]:
    """What is reclaimable on each node, a row for each of `names_of`."""
    found = {name: answer.reclaimable for name, answer in peaks.answers.items()}
    amounts = [answer.amount for answer in found.values()]
    if views := found.get(_OF_VIEWS):
        amounts += [views.pods_amount, views.classes_amount, views.amount]
    rows = np.stack(amounts, axis=1) / TO_KUBERNETES
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
        family = GaugeMetricFamily(
            METRIC,
            "What Prod asked for and will not use, by the predictor that says so.",
            labels=["node", "predictor", "resource", "unit"],
        )
        for profile in self.profiles():
            for node, amounts in profile.nodes.items():
                for predictor, row in zip(profile.predictors, amounts.tolist(), strict=True):
                    for (resource, unit), amount in zip(_UNITS, row, strict=True):
                        if amount == amount:
                            family.add_metric([node, predictor, resource, unit], amount)
        yield family


_COLLECTOR = _ProfileCollector()
REGISTRY.register(_COLLECTOR)


def watch(profiles: Callable[[], Iterable[Profile]] | None) -> None:
    """Show these on the metrics page of the process, in place of those shown before."""
    _COLLECTOR.profiles = profiles
