"""Reclaimable resources and peaks of Prod on the metrics page, with Koordinator's names."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.agents import koordlet_metrics
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.metrics import REGISTRY
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.agents.logs import make_log
from tests.agents.owners import MODEL_RULES
from tests.agents.test_model_agent import cursor_over
from tests.processors.windows import GIB, Pod, warm_bank, window

Series = dict[tuple[str, str, str, str], float]


@pytest.fixture(autouse=True)
def nothing_left_on_the_page() -> Iterator[None]:
    yield
    koordlet_metrics.serve(None)


RECLAIMABLE, PEAK = koordlet_metrics.METRICS


def scraped(metric: str = RECLAIMABLE) -> Series:
    """Return the series of a metric by node, predictor, resource and unit."""
    series: Series = {}
    for family in text_string_to_metric_families(generate_latest(REGISTRY).decode()):
        if family.name == metric:
            assert family.type == "gauge"
            for sample in family.samples:
                labels = sample.labels
                key = (labels["node"], labels["predictor"], labels["resource"], labels["unit"])
                assert key not in series
                series[key] = sample.value
    return series


def shown(model: ModelCursor) -> Series:
    koordlet_metrics.serve(lambda: [model.prod_amounts])
    series = scraped()
    assert scraped(PEAK).keys() == series.keys()
    return series


def test_each_predictor_and_view_has_a_series_per_node_and_resource() -> None:
    bank = warm_bank()
    pods = [Pod("a", (1.0, GIB), requests=(4000.0, 8 * GIB)), Pod("b", (1.0, GIB), "batch")]
    nodes = ["node-a", "node-b"]
    bank.apply([window(0, pods, node=node) for node in nodes])
    peaks = bank.peaks(nodes)
    amounts_page = koordlet_metrics.ProdAmounts(
        koordlet_metrics.predictor_labels(bank.predictors), koordlet_metrics.prod_amounts(peaks)
    )
    koordlet_metrics.serve(lambda: [amounts_page])
    for metric, field in ((RECLAIMABLE, "amount"), (PEAK, "peak")):
        expected: Series = {}
        for of_node in peaks:
            percentile = of_node.predictors["percentile"].reclaimable
            nsigma = of_node.predictors["nsigma-v1"].reclaimable
            for name, amount in {
                "percentile": getattr(percentile, field),
                "nsigma-v1": getattr(nsigma, field),
                "podPredictor": getattr(percentile, f"pods_{field}"),
                "priorityPredictor": getattr(percentile, f"classes_{field}"),
                "minPredictor": getattr(percentile, field),
            }.items():
                cpu, memory = amount.tolist()
                expected[of_node.node, name, "cpu", "core"] = cpu / 1000.0
                expected[of_node.node, name, "memory", "byte"] = memory
        assert scraped(metric) == expected
        assert len(expected) == 20
    left, peak = scraped(RECLAIMABLE), scraped(PEAK)
    assert left["node-a", "podPredictor", "cpu", "core"] > 2.0
    assert left["node-a", "podPredictor", "memory", "byte"] > 4 * GIB
    # The pod of Prod used a core. `minPredictor` has the higher peak of both views.
    views = [peak["node-a", name, "cpu", "core"] for name in koordlet_metrics.VIEWS]
    assert 1.0 < views[0] < 1.3
    assert views[2] >= max(views[:2])


def test_without_the_percentile_predictor_there_are_no_views() -> None:
    bank = Bank(ModelConfig(predictors=("nsigma-v1",), strategy=Strategy(predictor="nsigma-v1")))
    bank.apply([window(0)])
    assert koordlet_metrics.predictor_labels(bank.predictors) == ("nsigma-v1",)
    assert koordlet_metrics.prod_amounts(bank.peaks(["node-a"]))["node-a"].shape == (2, 1, 2)


def test_amounts_of_a_node_do_not_keep_those_of_its_batch() -> None:
    bank = Bank()
    bank.apply([window(0, node=node) for node in ("node-a", "node-b")])
    rows = koordlet_metrics.prod_amounts(bank.peaks(bank.nodes))
    assert all(amounts.base is None for amounts in rows.values())


async def test_the_page_has_the_newest_amounts_and_no_departed_nodes() -> None:
    broker, log = make_log(3, "a", "b")
    model, _ = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    assert {node for node, *_ in shown(model)} == {"a", "b"}
    log.depart("a")
    await model.process(broker.records("t.windows")[6:])
    assert {node for node, *_ in shown(model)} == {"b"}


def test_a_replay_updates_the_page() -> None:
    broker, _ = make_log(2, "a")
    model, _ = cursor_over(broker)
    model.replay(broker.records("t.windows"), {})
    assert {node for node, *_ in shown(model)} == {"a"}


def test_unknown_amounts_have_no_series() -> None:
    bank = Bank()
    bank.apply([window(0, usage=(math.nan, GIB))])
    amounts = koordlet_metrics.prod_amounts(bank.peaks(["node-a"]))
    amounts_page = koordlet_metrics.ProdAmounts(
        koordlet_metrics.predictor_labels(bank.predictors), amounts
    )
    koordlet_metrics.serve(lambda: [amounts_page])
    for metric in koordlet_metrics.METRICS:
        units = [unit for _, name, *unit in scraped(metric) if name == "minPredictor"]
        assert units == [["memory", "byte"]]


def test_the_page_has_a_bounded_number_of_nodes() -> None:
    """The first by name, over all partitions."""
    amounts = np.ones((2, 1, 2))
    nodes = [f"node-{number:04}" for number in range(1000)]
    parts = [
        koordlet_metrics.ProdAmounts(("percentile",), dict.fromkeys(names, amounts))
        for names in (nodes[::2], nodes[1::2])
    ]
    koordlet_metrics.serve(lambda: parts)
    assert {node for node, *_ in scraped()} == {*nodes[:200]}
    assert "springtide_worker_node_metrics_left_out 800.0" in generate_latest(REGISTRY).decode()
    koordlet_metrics.serve(lambda: parts, 1000)
    assert {node for node, *_ in scraped()} == {*nodes}


async def test_the_metrics_can_be_disabled() -> None:
    broker, _ = make_log(2, "a")
    rules = dataclasses.replace(MODEL_RULES, node_metrics=False)
    cursor, _ = cursor_over(broker)
    model = ModelCursor(Ownership(0, 1), 0, Bank(), cursor.output, rules)
    await model.process(broker.records("t.windows"))
    assert shown(model) == {}


def test_without_a_worker_the_page_has_no_such_metric() -> None:
    assert not any(
        metric in generate_latest(REGISTRY).decode() for metric in koordlet_metrics.METRICS
    )
