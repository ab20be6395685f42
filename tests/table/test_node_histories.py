"""Histories of nodes from predictions: order of records, what counts, pools."""

from typing import Any

import msgspec
import numpy as np
import pytest

from actuators.planner import threshold_proposals
from actuators.planner.threshold_proposals import PROPOSED, set_proposals
from pipeline.errors import RecordError
from pipeline.processors.hot_nodes.threshold_advice import advise
from pipeline.table import Table
from pipeline.table.limits import OLDEST_PREDICTION_SECONDS
from pipeline.table.node_histories import (
    HistoryStore,
    PoolHistory,
    pool_histories,
    whole_cluster,
)
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.predictions import Counts, EntityPeaks, ModelTerms, PredictionRecord
from pipeline.topics.resource_amounts import ByResource
from pipeline.topics.result_header import position_headers
from tests.planner.test_pool_means_publisher import put_node
from tests.table.records import GIB, NOW, node_state, table_of

GOLD = HotNodePolicy(pool="gold", high_percent={"cpu": 65.0}, low_percent={"cpu": 30.0})


def entity(
    cores: float | None, stdev: float | None = 0.5, *, days: float = 2.0, samples: int = 10_000,
    predictor: str = "nsigma-v1",
) -> EntityPeaks:  # fmt: skip
    """A model of so many cores and 8 GiB."""
    terms = {
        "mean": ByResource(cpu=cores, memory=8 * GIB), "stdev": ByResource(cpu=stdev, memory=GIB),
    }  # fmt: skip
    model = ModelTerms(
        samples=Counts(cpu=samples, memory=samples),
        first_at=format_time(NOW - days * 86_400), last_at=format_time(NOW),
    )  # fmt: skip
    return EntityPeaks(terms={predictor: terms}, model=model)


def prediction(node: str = "a", offset: int = 1, age: float = 10.0, **fields: Any) -> bytes:
    return encode_json(
        PredictionRecord(
            node=node, as_of=format_time(NOW - age), generation=1, offset=offset, epoch=1,
            safety_margin_percent=10.0, cold_start_seconds=1.0, nsigma_multiplier=5.0,
            **({"node_peaks": entity(2.0)} | fields),
        )
    )  # fmt: skip


def store_of(**records: bytes) -> HistoryStore:
    store = HistoryStore()
    for node, value in records.items():
        assert store.apply(node.encode(), value)
    return store


def pools_of(table: Table, store: HistoryStore) -> dict[str, PoolHistory]:
    return {pool.name: pool for pool in pool_histories(table, store, NOW, 180.0)}


def of_default(store: HistoryStore) -> Any:
    """The history of node `a`, with 4 cores and 16 GiB, which is in no pool."""
    return pools_of(table_of(node_state("a")), store)[DEFAULT_POOL].nodes


# -- records


def test_newer_record_counts_whatever_the_order() -> None:
    old, new = prediction(offset=1), prediction(offset=2, node_peaks=entity(3.0))
    store = store_of(a=new)
    assert not store.apply(b"a", old)
    assert of_default(store).mean[0, 0] == 75.0
    assert not store.apply(b"a", None, position_headers((1, 1)))
    assert store.apply(b"a", None, position_headers((1, 2)))
    assert not store.apply(b"a", None)
    assert np.isnan(of_default(store).mean).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, prediction()), (b"b", prediction()), (b"\xff", prediction()), (b"a", b"no JSON"),
        (b"a", b'{"node": "a"}'), (b"a", prediction(node_peaks=entity(2.0, samples=10**400))),
        (b"a", prediction().replace(b'"as_of":"', b'"as_of":"x')),
    ],
)  # fmt: skip
def test_invalid_record_is_refused_and_changes_nothing(key: bytes | None, value: bytes) -> None:
    store = store_of(a=prediction())
    with pytest.raises(RecordError):
        store.apply(key, value)
    assert of_default(store).mean[0, 0] == 50.0


def test_predictions_of_a_topic_that_was_recreated_are_forgotten() -> None:
    store = store_of(a=prediction(age=50.0), b=prediction("b", age=40.0))
    store.forget(NOW - 45.0)
    assert not np.isnan(store.values("b", NOW)).all()
    assert np.isnan(store.values("a", NOW)).all()


# -- what counts


def test_history_is_in_percent_of_the_allocatable_of_the_node() -> None:
    nodes = of_default(store_of(a=prediction()))
    assert nodes.mean[0, :2].tolist() == [50.0, 50.0]
    assert nodes.stdev[0, :2].tolist() == [12.5, 6.25]
    assert nodes.seconds[0, :2].tolist() == [2 * 86_400.0] * 2
    assert nodes.usage[0].tolist() == [25.0, 25.0, 0.0, 0.0]
    assert nodes.is_fresh.tolist() == [True]


def test_history_is_no_longer_than_its_samples() -> None:
    nodes = of_default(store_of(a=prediction(node_peaks=entity(2.0, samples=100))))
    assert nodes.seconds[0, 0] == 100 * 30.0


@pytest.mark.parametrize(
    "value",
    [
        prediction(node_peaks=EntityPeaks()),
        prediction(node_peaks=entity(2.0, predictor="percentile")),
        prediction(age=OLDEST_PREDICTION_SECONDS),
        prediction(node_peaks=entity(None, None)),
    ],
)
def test_unknown_history_is_not_zero(value: bytes) -> None:
    nodes = of_default(store_of(a=value))
    assert np.isnan([nodes.mean[0, 0], nodes.stdev[0, 0]]).all()


@pytest.mark.parametrize(
    ("entity_of_node", "cores"),
    [(entity(1e308), 4.0), (entity(-1e308), 4.0), (entity(2.0, 1e308), 4.0), (entity(2.0), 5e-324)],
)
def test_absurd_amounts_are_unknown(entity_of_node: EntityPeaks, cores: float) -> None:
    store = store_of(a=prediction(node_peaks=entity_of_node))
    (pool,) = pool_histories(table_of(node_state("a", cores=cores)), store, NOW, 180.0)
    cpu = advise(pool.nodes, pool.present)[0]
    assert cpu.excluded_nodes == {"stale": 0, "short": 0, "unknown": 1}


def test_nodes_without_allocatable_or_prediction_are_unknown() -> None:
    table = table_of(node_state("a", cores=None), node_state("b"), node_state("c", cores=0.0))
    nodes = pools_of(table, store_of(a=prediction(), c=prediction("c")))[DEFAULT_POOL].nodes
    assert np.isnan(nodes.mean[:, 0]).tolist() == [True, True, True]


def test_pods_without_a_class_count_as_prod() -> None:
    classes = {"prod": entity(1.0, 0.1), "none": entity(0.5, 0.2, days=1.0), "batch": entity(3.0)}
    nodes = of_default(store_of(a=prediction(classes=classes)))
    assert nodes.mean[0, 2] == pytest.approx(37.5)
    assert nodes.stdev[0, 2] == pytest.approx(7.5)
    assert nodes.seconds[0, 2] == 86_400.0
    classes["unknown"] = entity(None)
    assert np.isnan(of_default(store_of(a=prediction(classes=classes))).mean[0, 2])


# -- pools


def cluster(*ages: float) -> tuple[Table, HistoryStore]:
    """Nodes of pool gold, whose last windows are so old, and one without thresholds."""
    table, store = table_of(node_state("other")), HistoryStore()
    for number, age in enumerate(ages):
        put_node(table, f"n{number}", GOLD)
        assert table.put_state(node_state(f"n{number}", age=age))
        assert store.apply(f"n{number}".encode(), prediction(f"n{number}"))
    return table, store


def test_pools_have_their_nodes_and_their_thresholds() -> None:
    table, store = cluster(10.0, 180.0, 10.0)
    put_node(table, "n2", msgspec.structs.replace(GOLD, high_percent={"cpu": 70.0}))
    pools = pools_of(table, store)
    assert [*pools] == [DEFAULT_POOL, "gold"]
    gold = pools["gold"]
    assert gold.nodes.is_fresh.tolist() == [True, False, True]
    # A Node of 10 cores.
    assert gold.nodes.mean[:, 0].tolist() == [20.0] * 3
    assert gold.present.high[0] == 65.0  # of most nodes
    assert gold.present.low[0] == 30.0
    assert np.isnan(pools[DEFAULT_POOL].present.high).all()
    assert len(whole_cluster([*pools.values()]).mean) == 4


# -- the planner's metric


def proposals() -> dict[tuple[str, ...], float]:
    (metric,) = PROPOSED.collect()
    return {(s.labels["pool"], s.labels["rule"]): s.value for s in metric.samples}


def test_metric_has_the_proposals_of_now_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = cluster(*[10.0] * 6)
    for number in range(6):
        # 55% and 5% of ten cores: 3 sigma is at 70%.
        value = prediction(f"n{number}", offset=2, node_peaks=entity(5.5, 0.5))
        assert store.apply(f"n{number}".encode(), value)
    set_proposals(table, store, NOW, 180.0)
    assert proposals() == {("gold", "node_cpu"): 0.7}
    monkeypatch.setattr(threshold_proposals, "MOST_POOLS", 0)
    set_proposals(table, store, NOW, 180.0)
    assert proposals() == {}
    monkeypatch.undo()
    set_proposals(table, store, NOW + 200.0, 180.0)  # no usage is fresh
    assert proposals() == {}
