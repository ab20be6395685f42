"""Batch of zones against the oracle of Batch, zone by zone, and the laws that shares keep."""

import json
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.overcommit.batch import Batch
from pipeline.processors.overcommit.numa import (
    RESOURCE_STATUS,
    Bindings,
    Zones,
    bound_zones,
    shares,
    zone_batch,
)
from pipeline.processors.policy.colocation_config import Colocation
from tests.processors.overcommit.fleets import AMOUNT, FLEET, NODE, POD, Node, Pod, columns
from tests.processors.overcommit.test_batch import oracle

NUMBER = st.integers(0, 4)


class Machine(NamedTuple):
    """A node, its zones by number, and its pods with the zones that they say they are bound to."""

    node: Node
    mid: tuple[int, int]
    zones: dict[int, tuple[int, int]]
    pods: list[tuple[Pod, list[int]]]


# No zone has such a number.
ELSEWHERE = st.sampled_from([-(2**31), -1, 2**31, 2**40])
MACHINE = st.builds(
    Machine,
    NODE,
    AMOUNT,
    st.dictionaries(NUMBER, AMOUNT, max_size=3),
    st.lists(st.tuples(POD, st.lists(NUMBER | ELSEWHERE)), max_size=4),
)


def part(amounts: tuple[int, int], among: int) -> tuple[int, int]:
    cpu, memory = amounts
    return -(-cpu // among), -(-memory // among)


def zone_of(machine: Machine, number: int) -> tuple[Node, list[Pod]]:
    """A zone as a node of its own with its part of everything, in words."""
    node, zones = machine.node, machine.zones
    system, *apps = node.system, node.prod_apps, node.mid_apps
    outside = (system[0] + sum(a[0] for a in apps), system[1] + sum(a[1] for a in apps))
    pods = []
    for pod, said in machine.pods:
        of = (set(said) & set(zones)) or set(zones)
        if number in of:
            usage = None if pod.usage is None else part(pod.usage, len(of))
            pods.append(pod._replace(request=part(pod.request, len(of)), usage=usage))
    alone = node._replace(
        capacity=zones[number],
        kubelet=part(node.kubelet, len(zones)),
        annotated=part(node.annotated, len(zones)),
        system=part(outside, len(zones)),
        prod_apps=(0, 0),
        mid_apps=(0, 0),
    )
    return alone, pods


def work_out(
    fleet: list[Machine], *, reverse: bool = False, promise: bool = False
) -> tuple[list[tuple[int, int]], Batch]:
    """The zones by node and number, in an order or another, and what they have, with or without a
    promise to Mid."""
    nodes, pods, strategies = columns([(m.node, [pod for pod, _ in m.pods]) for m in fleet])
    found = [(row, number) for row, m in enumerate(fleet) for number in m.zones]
    if reverse:
        found.reverse()
    zones = Zones(
        node=np.array([row for row, _ in found], np.int64),
        number=np.array([number for _, number in found], np.int64),
        allocatable=np.array([fleet[row].zones[number] for row, number in found], np.int64).reshape(
            len(found), 2
        ),
    )
    said = [numbers for m in fleet for _, numbers in m.pods]
    pairs = [(pod, number) for pod, numbers in enumerate(said) for number in numbers]
    bindings = Bindings(
        np.array([pod for pod, _ in pairs], np.int64),
        np.array([number for _, number in pairs], np.int64),
    )
    mid = np.array([m.mid for m in fleet], np.int64).reshape(len(fleet), 2) if promise else None
    return found, zone_batch(nodes, pods, strategies, zones, bindings, mid)


@given(st.lists(MACHINE, max_size=3), st.booleans(), st.booleans())
def test_each_zone_has_what_the_words_say(
    fleet: list[Machine], reverse: bool, promise: bool
) -> None:
    found, amounts = work_out(fleet, reverse=reverse, promise=promise)
    expected = []
    for row, number in found:
        mid = part(fleet[row].mid, len(fleet[row].zones)) if promise else (0, 0)
        expected.append([oracle(*zone_of(fleet[row], number), r, mid[r]) for r in range(2)])
    assert amounts.amount.tolist() == expected


@given(FLEET)
def test_a_node_of_one_zone_has_what_the_node_has(fleet: list[tuple[Node, list[Pod]]]) -> None:
    one = [
        Machine(node, (0, 0), {0: node.capacity}, [(pod, []) for pod in on]) for node, on in fleet
    ]
    _, amounts = work_out(one)
    expected = [[oracle(node, pods, r) for r in range(2)] for node, pods in fleet]
    assert amounts.amount.tolist() == expected


@given(st.lists(MACHINE, max_size=3))
def test_what_pods_use_is_not_less_for_being_divided(fleet: list[Machine]) -> None:
    found, of_zones = work_out(fleet)
    _, whole = work_out([m._replace(zones={0: (0, 0)}) for m in fleet])
    sums = np.zeros((len(fleet), 2), np.int64)
    np.add.at(sums, [row for row, _ in found], of_zones.used)
    for row, machine in enumerate(fleet):
        if machine.zones:
            assert (sums[row] >= whole.used[row]).all()
            assert (sums[row] <= whole.used[row] + len(machine.pods) * len(machine.zones)).all()


def test_zones_are_known_by_number_and_not_by_place() -> None:
    """Upstream takes a number for a place in the list, and would ignore that of the second."""
    node = Node((0, 0), *[(0, 0)] * 7, None, None, Colocation())
    pod = Pod("prod", False, True, (100, 100), None)
    _, found = work_out([Machine(node, (0, 0), {0: (500, 500), 2: (500, 500)}, [(pod, [2])])])
    assert found.used.tolist() == [[0, 0], [100, 100]]


@given(AMOUNT, st.integers(1, 64))
def test_shares_come_to_the_whole_and_less_than_a_unit_each_more(
    amounts: tuple[int, int], among: int
) -> None:
    found = shares(np.array([amounts]), np.array([among]))[0].tolist()
    for share, whole in zip(found, amounts, strict=True):
        assert whole <= share * among < whole + among


def test_divided_among_none_it_is_whole() -> None:
    assert shares(np.array([[7, 8]]), np.array([0])).tolist() == [[7, 8]]


def status(*numbers: Any) -> str:
    return json.dumps({"cpuset": "0-3", "numaNodeResources": [{"node": n} for n in numbers]})


@pytest.mark.parametrize(
    ("text", "zones"),
    [
        (status(0, 1, 1), {0, 1}),
        (status(-1, 2**40, 3), {3}),
        (status(), set()),
        ("{}", set()),
        ('{"numaNodeResources":null}', set()),
        ("", set()),
    ],
)
def test_a_pod_is_bound_to_what_its_annotation_says(text: str, zones: set[int]) -> None:
    assert bound_zones({RESOURCE_STATUS: text}) == zones
    assert bound_zones({}) == set()


@pytest.mark.parametrize("text", ["null", "[]", "{", status("a"), status(1.5), "{" * 100_000])
def test_an_annotation_that_cannot_be_read_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match=RESOURCE_STATUS):
        bound_zones({RESOURCE_STATUS: text})
