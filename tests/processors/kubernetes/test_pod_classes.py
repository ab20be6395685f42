import pytest

from pipeline.processors.kubernetes.pod_classes import (
    CLASS_CODES,
    CLASSES,
    PodClass,
    class_label,
    explicit_class,
    pod_class,
    qos_class,
)

PRIORITY_CLASS = "koordinator.sh/priority-class"
QOS = "koordinator.sh/qosClass"


def test_codes_are_those_of_the_log() -> None:
    assert CLASSES == ("prod", "mid", "batch", "free", "none", "unknown")
    assert [CLASS_CODES[name] for name in CLASSES] == list(range(6))


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(9000, 9999, "prod"), (7000, 7999, "mid"), (5000, 5999, "batch"), (3000, 3999, "free")],
)
def test_both_ends_of_a_priority_range_are_included(low: int, high: int, name: str) -> None:
    assert explicit_class({}, low) == explicit_class({}, high) == name
    assert explicit_class({}, low - 1) == explicit_class({}, high + 1) == "none"


def test_an_unknown_class_label_hides_the_priority_but_not_the_qos() -> None:
    labels = {PRIORITY_CLASS: "gold"}
    assert explicit_class(labels, 7500) == "none"
    assert pod_class(labels, 7500, "Burstable") == PodClass("prod", "LS")


@pytest.mark.parametrize(
    ("label", "kube_qos", "expected"),
    [
        ("LSE", "BestEffort", "LSE"), ("SYSTEM", "Burstable", "SYSTEM"),
        ("nonsense", "Guaranteed", "LSR"), (None, "Guaranteed", "LSR"), (None, "Burstable", "LS"),
        (None, "BestEffort", "BE"), (None, None, ""), (None, "Best", ""),
    ],
)  # fmt: skip
def test_qos_label_overrides_the_kubernetes_qos_class(
    label: str | None, kube_qos: str | None, expected: str
) -> None:
    assert qos_class({} if label is None else {QOS: label}, kube_qos) == expected


def test_a_pod_without_label_priority_and_qos_has_no_class() -> None:
    assert pod_class({}, None, None) == PodClass("none", "")


@pytest.mark.parametrize("qos", ["SYSTEM", "LSE", "LSR", "LS"])
def test_latency_sensitive_pods_are_prod(qos: str) -> None:
    assert pod_class({QOS: qos}, 0, "BestEffort").priority_class == "prod"


def test_labels_of_classes() -> None:
    assert [class_label(name) for name in CLASSES] == [
        "koord-prod", "koord-mid", "koord-batch", "koord-free", "", "",
    ]  # fmt: skip
