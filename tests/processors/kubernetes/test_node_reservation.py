"""Reservations in the annotation of a Node."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes import node_reservation
from pipeline.processors.kubernetes.node_reservation import (
    ANNOTATION,
    MOST_CPUS,
    Reservation,
    reservation,
)


def remaining(stated: Any) -> Reservation:
    return reservation({ANNOTATION: stated if isinstance(stated, str) else json.dumps(stated)})


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    result = remaining({"resources": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "1"}})
    assert result[:2] == (1500, 2**30)
    assert remaining({"resources": {"cpu": 2}})[:2] == (2000, None)
    assert reservation({}) == Reservation()


def test_cpus_by_number_override_an_amount() -> None:
    result = remaining({"resources": {"cpu": "5"}, "reservedCPUs": "0-2, 7,2"})
    assert (result.cpu_millicores, result.cpus) == (4000, frozenset({0, 1, 2, 7}))
    assert remaining({"resources": {"cpu": "5"}, "reservedCPUs": " "}).cpu_millicores == 5000


@pytest.mark.parametrize(
    ("policy", "trims"), [("", True), ("Default", True), ("ReservedCPUsOnly", False)]
)
def test_the_apply_policy_decides_whether_allocatable_is_trimmed(policy: str, trims: bool) -> None:
    assert remaining({"applyPolicy": policy}).trims_allocatable is trims


@pytest.mark.parametrize(
    "stated",
    [
        "", "null", "[]", {"resources": {"cpu": "much"}}, {"resources": {"cpu": "-1"}},
        {"resources": {"memory": "1e17"}}, {"resources": {"cpu": []}}, {"reservedCPUs": "3-1"},
        {"reservedCPUs": "0-"}, {"reservedCPUs": "a"}, {"reservedCPUs": "0-9999999"},
        {"reservedCPUs": "0-8192"}, {"reservedCPUs": "8192"}, {"reservedCPUs": "0," * 30_000 + "0"},
        {"reservedCPUs": 3},
    ],
)  # fmt: skip
def test_an_invalid_reservation_is_an_error_that_names_the_annotation(stated: Any) -> None:
    with pytest.raises(InvalidPolicyError, match=ANNOTATION):
        remaining(stated)


NUMBERS = st.integers(0, 10**7 - 1)
LISTS = st.lists(st.tuples(NUMBERS, NUMBERS) | st.tuples(st.integers(0, 9000), st.just(8191)))


@given(LISTS, st.integers(1, 5000))
def test_repeated_ranges_of_cpus_cost_no_more_than_their_union(
    parts: list[tuple[int, int]], times: int
) -> None:
    """Each part may say all of them, and an annotation has room for tens of thousands of parts."""
    text = ",".join(f"{first}-{last}" for first, last in parts * times)
    named: list[range] = []

    def counted(first: int, end: int) -> range:
        named.append(range(first, end))
        return named[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_reservation, "range", counted, raising=False)
        try:
            result = remaining({"reservedCPUs": text})
        except InvalidPolicyError:
            named.clear()
            result = Reservation()
    assert sum(map(len, named)) == len(result.cpus) <= MOST_CPUS
    if result.cpus:
        assert result.cpus == {cpu for first, last in set(parts) for cpu in range(first, last + 1)}


def test_every_possible_cpu_can_be_listed_by_number() -> None:
    every = ", ".join(map(str, range(MOST_CPUS)))
    assert remaining({"reservedCPUs": every}).cpu_millicores == 1000 * MOST_CPUS
    assert remaining({"reservedCPUs": "0-8191,0-8191"}).cpus == set(range(MOST_CPUS))


@given(st.text())
def test_any_text_is_a_reservation_or_an_error(text: str) -> None:
    try:
        result = remaining(text)
    except InvalidPolicyError:
        return
    assert result.cpu_millicores is None or result.cpu_millicores >= 0


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_cpus_has_each_number(cpus: set[int]) -> None:
    assert remaining({"reservedCPUs": ",".join(map(str, cpus))}).cpus == cpus
