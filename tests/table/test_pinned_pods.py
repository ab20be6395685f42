"""Pods with CPUs of their own in the state table."""

import msgspec
import pytest

from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.pods import PodRecord
from tests.table.records import any_pod, running


def reserving(node: str, cpus: str) -> TableNode:
    annotation = f'{{"reservedCPUs": "{cpus}"}}'
    return TableNode(node=node, annotations={"node.koordinator.sh/reservation": annotation})


def on(node: str, uid: str, cpus: str) -> PodRecord:
    status = {"scheduling.koordinator.sh/resource-status": f'{{"cpuset": "{cpus}"}}'}
    return running(any_pod(uid, annotations=status), node)


def test_reserved_cpus_of_pods_follow_nodes_and_pods_in_any_order() -> None:
    table = Table()
    table.put_pod(on("n", "a", "0-3"))
    assert table.taken_cpus() == {}
    table.put_node(reserving("n", "2-5"))
    assert table.taken_cpus() == {"n": {2, 3}}
    table.put_pod(on("n", "b", "5,9"))
    assert table.taken_cpus() == {"n": {2, 3, 5}}
    table.put_pod(on("n", "a", "3"))
    assert table.taken_cpus() == {"n": {3, 5}}
    table.put_node(reserving("n", "5-6"))
    assert table.taken_cpus() == {"n": {5}}
    table.drop_pod("n", "b")
    assert table.taken_cpus() == {}


@pytest.mark.parametrize("end", ["phase", "annotation", "node"])
def test_nothing_is_taken_without_pod_annotation_or_node(end: str) -> None:
    table = Table()
    table.put_node(reserving("n", "0"))
    table.put_pod(on("n", "a", "0"))
    table.put_pod(on("other", "b", "0"))
    assert table.taken_cpus() == {"n": {0}}
    if end == "phase":
        table.put_pod(msgspec.structs.replace(on("n", "a", "0"), phase="Succeeded"))
    elif end == "annotation":
        table.put_pod(running(any_pod("a"), "n"))
    else:
        table.drop_node("n")
    assert table.taken_cpus() == {}
