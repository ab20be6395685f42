"""Network and disk rates over the last minutes follow from the node states that were read."""

import math

import numpy as np
import pytest

from pipeline.table import Table
from pipeline.topics.resource_amounts import RATES
from tests.table.records import node_state

TRANSMIT, READ = "springtide.io/network-transmit", "springtide.io/disk-read"


def table_after(*rates: dict[str, float], seconds: float = 30.0) -> Table:
    """A table that has read consecutive windows with these rates."""
    table = Table()
    for number, each in enumerate(rates):
        age = seconds * (len(rates) - number)
        state = node_state("a", age=age, offset=number, rates=each)
        table.put_state(state)
    return table


def value(table: Table, statistic: str, span: str, resource: str = TRANSMIT) -> float:
    return float(table[f"usage_{statistic}_{span}_{resource}"][table.lookup(["a"])][0])


def test_mean_and_deviation_are_over_the_windows_of_each_span() -> None:
    table = table_after(
        *[{TRANSMIT: 300.0}] * 10, *[{TRANSMIT: 0.0}] * 10, *[{TRANSMIT: 60.0}] * 10
    )
    assert [value(table, "mean", span) for span in ("5m", "10m", "15m")] == [60.0, 30.0, 120.0]
    assert value(table, "stdev", "5m") == 0.0
    assert value(table, "stdev", "10m") == 30.0
    assert value(table, "stdev", "15m") == pytest.approx(np.std([300.0, 0.0, 60.0]))
    assert math.isnan(value(table, "mean", "5m", READ))


def test_a_span_of_which_less_than_half_was_read_is_unknown() -> None:
    table = table_after(*[{TRANSMIT: 10.0}] * 12)
    known = {span: not math.isnan(value(table, "mean", span)) for span in ("5m", "10m", "15m")}
    assert known == {"5m": True, "10m": True, "15m": False}


def test_unknown_and_impossible_rates_do_not_count() -> None:
    rates = [{TRANSMIT: 8.0}, {TRANSMIT: -1.0}, {}, {TRANSMIT: 1e300}, {TRANSMIT: 8.0}]
    assert value(table_after(*rates * 2), "mean", "5m") == 8.0


def test_a_node_without_rates_has_none_and_a_deleted_one_starts_over() -> None:
    table = table_after({}, {})
    assert table.snapshot("a").rates is None
    table = table_after(*[{TRANSMIT: 10.0}] * 12)
    table.drop_state("a")
    table.put_state(node_state("a", offset=99, rates={TRANSMIT: 1.0}))
    assert math.isnan(value(table, "mean", "5m"))


def test_rates_of_a_node_take_little_memory_however_many_windows_it_sends() -> None:
    table = table_after(*[{TRANSMIT: 10.0}] * 2000, seconds=1.0)
    recent = table.snapshot("a").rates
    assert recent is not None
    assert recent.rates.shape == (256, len(RATES))
