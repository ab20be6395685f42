"""Bounds on requests of Mid and Batch by the newest record, however old the Node's offer is."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.overcommit.offer_bounds import (
    BatchPart,
    MidPart,
    OfferTerms,
    bounds_in_force,
    is_withdrawn,
    offer_bounds,
)
from pipeline.processors.overcommit.offer_decision import OfferInputs, offers_now
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.processors.policy.normalization import RATIO
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources
from tests.processors.overcommit.fleets import AS_OF, resources_record


def amount(cpu: int, memory: int) -> Resources:
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


TERMS = OfferTerms(
    mid=amount(900, 90), mid_lower_bound=amount(500, 95), batch=amount(4500, 45),
    mid_terms=MidPart(prod_peak=amount(4000, 40), buffer=amount(100, 10)),
    batch_terms=BatchPart(
        capacity=amount(10_000, 300), margin=amount(1000, 10), outside=amount(500, 5),
        buffer=amount(500, 5),
    ),
    strategy=Overcommit(),
)  # fmt: skip


def test_bounds_of_a_record() -> None:
    bounds = offer_bounds(TERMS, {})
    assert bounds.buffered == (1000, 100, 5000, 50)
    assert bounds.published == (900, 90, 4500, 45)
    # Batch: 10000 - 1000 - 500 - 4000 - 1000 of Mid - 500.
    assert bounds.certain == (500, 90, 3000, 45)


def test_batch_is_not_certain_beyond_a_peak_that_is_unknown() -> None:
    for peak in (Resources(), Resources(cpu_millicores=1)):
        terms = TERMS._replace(mid_terms=MidPart(prod_peak=peak))
        assert offer_bounds(terms, {}).certain == (500, 90, 0, 0)


def test_batch_does_not_yield_to_mid_where_the_policy_promises_capacity_twice() -> None:
    terms = TERMS._replace(strategy=Overcommit(promise_once=False))
    assert offer_bounds(terms, {}).certain == (500, 90, 4000, 45)


def test_unknown_amounts_are_not_offered() -> None:
    for unknown in (
        OfferTerms(None, None, None, MidPart(), BatchPart(), Overcommit()),
        TERMS._replace(mid=None, mid_lower_bound=None, batch=None),
    ):
        bounds = offer_bounds(unknown, {})
        assert bounds.buffered == bounds.published == bounds.certain == (0, 0, 0, 0)


def test_a_buffer_widens_no_amount_that_is_unknown() -> None:
    cpu = Resources(cpu_millicores=900)
    bounds = offer_bounds(TERMS._replace(mid=cpu, mid_lower_bound=None, batch=None), {})
    assert bounds.buffered == (1000, 0, 0, 0)
    memory = Resources(memory_bytes=45)
    bounds = offer_bounds(TERMS._replace(mid=None, mid_lower_bound=None, batch=memory), {})
    assert bounds.buffered == (0, 0, 0, 50)
    # Batch yields to no Mid: 300 - 10 - 5 - 40 - 5, at most the 45 that are published.
    assert bounds.certain == (0, 0, 0, 45)


def test_batch_is_in_normal_cpus_and_without_third_parties() -> None:
    taken = [{"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "1500"}}]
    annotations = {RATIO: "1.5", ALLOCATIONS: json.dumps({"allocations": taken})}
    bounds = offer_bounds(TERMS, annotations)
    assert bounds.published == (900, 90, 6750 - 1500, 45)
    assert bounds.buffered == (1000, 100, 7500 - 1500, 50)
    assert bounds.certain == (500, 90, 4500 - 1500, 45)
    assert offer_bounds(TERMS, {RATIO: "x", ALLOCATIONS: "{"}) == offer_bounds(TERMS, {})


@pytest.mark.parametrize(
    ("age", "stage"),
    [
        (0, "buffered"), (37, "buffered"), (-37, "buffered"), (37.5, "published"),
        (179, "published"), (-179, "published"), (180, "certain"), (900, "certain"), (901, ""),
        (-901, ""),
    ],
)  # fmt: skip
def test_the_older_a_record_the_less_it_allows(age: float, stage: str) -> None:
    bounds = offer_bounds(TERMS, {})
    rows = [np.array([each], float) for each in bounds]
    ages, windows, degrade = np.array([float(age)]), np.array([30.0]), np.array([900.0])
    result = bounds_in_force(rows[0], rows[1], rows[2], ages, windows, degrade, 180.0)
    assert tuple(result[0].tolist()) == (getattr(bounds, stage) if stage else (0, 0, 0, 0))


@pytest.mark.parametrize(
    ("window", "age", "is_offered"),
    [(30, 900, True), (30, 901, False), (900, 1500, True), (900, 1801, False)],
)
def test_extender_and_actuator_withdraw_an_old_record_together(
    window: float, age: float, is_offered: bool
) -> None:
    record = resources_record(
        mid=amount(900, 90), mid_lower_bound=amount(500, 50), batch=amount(4500, 45),
        window_seconds=float(window),
    )  # fmt: skip
    inputs = OfferInputs(Overcommit(), record, {}, (1, 1, 1, 1), 0.0)
    (offer,) = offers_now([inputs], AS_OF + age)
    assert (offer.amounts[0] >= 0) == is_offered
    row, of_node = np.ones((1, 4)), np.ones(1)
    bounds = bounds_in_force(row, row, row, age * of_node, window * of_node, 900 * of_node, 180.0)
    assert bounds.any() == is_offered


def test_nodes_without_a_record_have_no_bound() -> None:
    row, nothing = np.full((1, 4), np.nan), np.array([np.nan])
    assert np.isnan(bounds_in_force(row, row, row, nothing, nothing, nothing, 180.0)).all()


SIZES = st.builds(amount, st.integers(0, 10_000), st.integers(0, 1 << 40))
MAYBE = st.none() | SIZES


@given(
    st.builds(
        OfferTerms, MAYBE, MAYBE, MAYBE,
        st.builds(MidPart, prod_peak=SIZES | st.just(Resources()), buffer=SIZES),
        st.builds(BatchPart, capacity=SIZES, margin=SIZES, outside=SIZES, buffer=SIZES),
        st.builds(Overcommit, promise_once=st.booleans()),
    ),
    st.sampled_from([{}, {RATIO: "1.7"}, {RATIO: "0.5"}]),
)  # fmt: skip
def test_bounds_are_ordered(terms: OfferTerms, annotations: dict[str, str]) -> None:
    buffered, published, certain = offer_bounds(terms, annotations)
    for largest, middle, smallest in zip(buffered, published, certain, strict=True):
        assert largest >= middle >= smallest >= 0
    assert msgspec.json.encode(buffered)


@pytest.mark.parametrize("window", [1e308, 1.7e308, np.inf])
def test_an_impossible_length_of_a_window_withholds_no_withdrawal(window: float) -> None:
    ages, of_both = np.array([7199.0, 7201.0]), np.ones(2)
    withdrawn = is_withdrawn(ages, window * of_both, 900 * of_both)
    assert withdrawn.tolist() == [False, True]
    row = np.ones((2, 4))
    bounds = bounds_in_force(row, row, row, ages, window * of_both, 900 * of_both, 180.0)
    assert bounds.any(axis=1).tolist() == [True, False]


@pytest.mark.parametrize("window", [-30.0, -1.7e308, -np.inf, np.nan])
def test_a_window_of_unknown_length_makes_no_record_young(window: float) -> None:
    ages, of_both = np.array([0.0, 180.0]), np.ones(2)
    row = np.ones((2, 4))
    bounds = bounds_in_force(3 * row, 2 * row, row, ages, window * of_both, 900 * of_both, 180.0)
    assert bounds[:, 0].tolist() == [2.0, 1.0]
    assert is_withdrawn(np.array([901.0]), np.array([window]), np.array([900.0])).all()
