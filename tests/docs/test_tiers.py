"""The tables of tiers in docs state the rules that decide the tier of a pod."""

import re
from pathlib import Path

import pytest

from pipeline.processors.kubernetes.pod_classes import (
    LABEL_PRIORITY_CLASS,
    LABEL_QOS_CLASS,
    PodClass,
    class_label,
    pod_class,
)
from pipeline.topics.resource_amounts import BATCH, MID

TEXT = (Path(__file__).parents[2] / "docs" / "explanation" / "overcommit.md").read_text()


def table(head: str) -> list[list[str]]:
    """The cells of the rows of the table whose first line begins like this."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TIERS = {row[0].lower(): row for row in table("| tier | label")}


def test_four_tiers_have_the_resources_that_their_pods_request() -> None:
    assert list(TIERS) == ["prod", "mid", "batch", "free"]
    assert [quoted(TIERS[name][4]) for name in TIERS] == [["cpu", "memory"], [*MID], [*BATCH], []]


@pytest.mark.parametrize("name", TIERS)
def test_label_priority_and_qos_decide_in_this_order(name: str) -> None:
    _, label, priorities, qos = TIERS[name][:4]
    assert quoted(label) == [class_label(name)]
    low, high = map(int, priorities.split("-"))
    for priority in range(low - 1001, high + 1002):
        is_in = low <= priority <= high
        assert (pod_class({}, priority, None).priority_class == name) == is_in
        unknown = {LABEL_PRIORITY_CLASS: "koord-other"}
        assert pod_class(unknown, priority, None).priority_class == "none"
        assert pod_class({LABEL_PRIORITY_CLASS: quoted(label)[0]}, priority, None) == (name, "")
    for label_qos in ("SYSTEM", "LSE", "LSR", "LS", "BE"):
        in_tier = pod_class({LABEL_QOS_CLASS: label_qos}, None, None) == (name, label_qos)
        assert in_tier == (label_qos in quoted(qos))


def test_qos_follows_from_the_qos_of_kubernetes() -> None:
    rows = {quoted(kube)[0]: quoted(qos)[0] for kube, qos in table("| Kubernetes | QoS")}
    assert rows == {kube: pod_class({}, None, kube).qos for kube in rows}
    assert len(rows) == 3
    assert pod_class({}, None, None) == PodClass("none", "")
    for name in (LABEL_PRIORITY_CLASS, LABEL_QOS_CLASS):
        assert f"`{name}`" in TEXT
