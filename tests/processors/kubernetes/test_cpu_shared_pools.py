"""Annotations about the CPUs that pods share."""

import pytest

from pipeline.processors.kubernetes.cpu_shared_pools import (
    SHARED_POOLS,
    cpu_shared_pools,
    numa_nodes,
)
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS


def test_pools_are_read_by_numa_node() -> None:
    text = """[{"socket": 0, "node": 0, "cpuset": "0-2"}, {"socket": 1, "node": 1, "cpuset": "5"},
        {"socket": 2, "node": 1, "cpuset": "7"}]"""
    assert cpu_shared_pools({SHARED_POOLS: text}) == {
        0: frozenset({0, 1, 2}), 1: frozenset({5, 7}),
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '[{"node":"a"}]', '[{"cpuset":"5-3"}]', "[[]]", "[" * 5000]
)
def test_an_invalid_annotation_has_no_pools(text: str) -> None:
    assert cpu_shared_pools({SHARED_POOLS: text}) == {}


def test_numa_nodes_of_a_pod_are_read_from_its_resource_status() -> None:
    text = '{"cpuset":"","numaNodeResources":[{"node":1,"resources":{"cpu":"2"}},{"node":3}]}'
    assert numa_nodes({RESOURCE_STATUS: text}) == {1, 3}


@pytest.mark.parametrize("text", ["", "[]", '{"numaNodeResources":3}', '{"cpuset":"0-3"}'])
def test_without_a_valid_annotation_a_pod_has_no_numa_node(text: str) -> None:
    assert numa_nodes({RESOURCE_STATUS: text}) == frozenset()
    assert numa_nodes({}) == frozenset()
