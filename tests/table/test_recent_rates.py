"""Network and disk rates over the last minutes follow from the node states that were read."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from pipeline.table import Table
from pipeline.topics.resource_amounts import RATES
from tests.table.records import node_state

TRANSMIT, READ = "springtide.io/network-transmit", "springtide.io/disk-read"


def put(table: Table, age: float, offset: int, rates: dict[str, float], seconds: float) -> None:
    state = node_state("a", age=age, offset=offset, rates=rates)
    assert table.put_state(replace(state, window_seconds=seconds))


def table_after(*rates: dict[str, float], seconds: float = 30.0) -> Table:
    """A table that has read consecutive windows with these rates."""
    table = Table()
    for number, each in enumerate(rates):
        age = seconds * (len(rates) - number)
        put(table, age, number, each, seconds)
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
    table = table_after(*[{TRANSMIT: 10.0}, {}] * 500, seconds=1.0)
    recent = table.snapshot("a").rates
    assert recent is not None
    assert recent.rates.shape == (256, len(RATES))


@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 3.5, 4.0])
def test_short_windows_reach_over_every_span(seconds: float) -> None:
    """The rate rises by 1 with each minute."""
    windows = int(1000 / seconds)
    rates = [{TRANSMIT: (number + 0.5) * seconds / 60} for number in range(windows)]
    table, end = table_after(*rates, seconds=seconds), windows * seconds / 60
    for span, minutes in (("5m", 5), ("10m", 10), ("15m", 15)):
        assert value(table, "mean", span) == pytest.approx(end - minutes / 2, abs=0.1)
        assert value(table, "stdev", span) == pytest.approx(minutes / 12**0.5, abs=0.1)


def test_windows_are_not_merged_over_a_gap_or_with_unknown_ones() -> None:
    table = table_after({TRANSMIT: 1.0}, {TRANSMIT: 3.0}, {}, {TRANSMIT: 5.0}, seconds=1.0)
    put(table, -5.0, 9, {TRANSMIT: 9.0}, 1.0)
    recent = table.snapshot("a").rates
    assert recent is not None
    assert recent.spans[:, 1].tolist() == [2.0, 1.0, 1.0, 1.0]
    column = list(RATES).index(TRANSMIT)
    assert recent.rates[:, column].tolist() == pytest.approx([2.0, np.nan, 5.0, 9.0], nan_ok=True)
