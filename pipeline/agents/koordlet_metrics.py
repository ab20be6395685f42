"""The metrics `koordlet_node_predicted_resource_reclaimable` and `_peak`, as in Koordinator.

For each node of this worker they have what each predictor expects of Prod after the node's last
window: its unused requests, and its peak. Our predictors have their own names. The views of
`percentile` have Koordinator's names: `podPredictor`, `priorityPredictor`, and `minPredictor` for
the smaller amount and the higher peak of both. Unknown values have no series. Series are created
from the newest values at each scrape, so nodes that departed need no clean-up.

A node has about twenty series of 120 bytes, and a scrape formats all of them while the worker
waits. So the page has a bounded number of nodes: the first by name, which change seldom.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.metrics import REGISTRY, foreign_scraped_gauge, scraped_gauge
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.settings import WorkerSettings

_AMOUNT: Final = ("node", "predictor", "resource", "unit")
METRICS: Final = {
    name: foreign_scraped_gauge(name, documentation, _AMOUNT)
    for name, documentation in (
        ("koordlet_node_predicted_resource_reclaimable",
         "Requested by Prod and predicted to stay unused, by predictor."),
        ("koordlet_node_predicted_resource_peak",
         "Predicted peak of Prod with the safety margin, by predictor."),
    )
}  # fmt: skip
_LEFT_OUT: Final = scraped_gauge(
    "worker_node_metrics_left_out",
    "Nodes without koordlet_ series, because worker.node_metrics are shown already.",
)
DEFAULT_NODES: Final = WorkerSettings().node_metrics
VIEWS: Final = ("podPredictor", "priorityPredictor", "minPredictor")
_VIEWS_OF: Final = "percentile"
_UNITS: Final = (("cpu", "core"), ("memory", "byte"))


class ProdAmounts(NamedTuple):
    """The values of one partition.

    Each node has an array (metric, predictor, 2) of cores and bytes, NaN if unknown, in the order
    of `METRICS` and `predictors`.
    """

    predictors: tuple[str, ...]
    nodes: Mapping[str, FloatArray]


def predictor_labels(predictors: Sequence[str]) -> tuple[str, ...]:
    """Return the values of the label `predictor` for these predictors."""
    return (*predictors, *(VIEWS if _VIEWS_OF in predictors else ()))


def prod_amounts(peaks: PeakBatch) -> Mapping[str, FloatArray]:
    """Return (metric, predictor, 2) per node, a row for each of `predictor_labels`."""
    reclaimable = {name: columns.reclaimable for name, columns in peaks.by_predictor.items()}
    amounts = [answer.amount for answer in reclaimable.values()]
    peaks_of_prod = [answer.peak for answer in reclaimable.values()]
    if views := reclaimable.get(_VIEWS_OF):
        amounts += [views.pods_amount, views.classes_amount, views.amount]
        peaks_of_prod += [views.pods_peak, views.classes_peak, views.peak]
    rows = np.stack([np.stack(amounts, axis=1), np.stack(peaks_of_prod, axis=1)], axis=1)
    rows /= TO_KUBERNETES
    # A view would keep the rows of all nodes of its batch in memory.
    return {name: row.copy() for name, row in zip(peaks.names, rows, strict=True)}


class _Collector(Collector):
    """Creates the series when the metrics page is requested."""

    partitions: Callable[[], Iterable[ProdAmounts]] | None = None
    most_nodes = 0

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if self.partitions is None:
            return
        families = [declared() for declared in METRICS.values()]
        nodes = {
            node: (partition.predictors, amounts)
            for partition in self.partitions()
            for node, amounts in list(partition.nodes.items())
        }
        shown = heapq.nsmallest(self.most_nodes, nodes)
        for node in shown:
            predictors, amounts = nodes[node]
            for family, values in zip(families, amounts.tolist(), strict=True):
                _add(family, node, predictors, values)
        yield from families
        left_out = _LEFT_OUT()
        left_out.add_metric([], float(len(nodes) - len(shown)))
        yield left_out


def _add(
    family: GaugeMetricFamily, node: str, predictors: Sequence[str], rows: list[list[float]]
) -> None:
    for predictor, row in zip(predictors, rows, strict=True):
        for (resource, unit), amount in zip(_UNITS, row, strict=True):
            if amount == amount:
                family.add_metric([node, predictor, resource, unit], amount)


_COLLECTOR = _Collector()
REGISTRY.register(_COLLECTOR)


def serve(
    partitions: Callable[[], Iterable[ProdAmounts]] | None, most_nodes: int = DEFAULT_NODES
) -> None:
    """Serve these values on the metrics page, of at most so many nodes; None serves no values."""
    _COLLECTOR.partitions, _COLLECTOR.most_nodes = partitions, most_nodes
