"""Priority class and QoS class of a pod, by Koordinator's rules, and the codes of the classes.

The codes number the classes in the log and in the model bank. `none` is a pod that is known to have
no class, `unknown` a pod without a record.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pipeline.settings.model_settings import CLASSES as CLASSES

COUNTED_AS_PROD: Final = ("prod", "none", "unknown")
"""The classes whose pods count as Prod where usage of Prod is compared with thresholds of hot
nodes: a pod that may be Prod is not taken for less."""
CLASS_CODES: Final[Mapping[str, int]] = {name: code for code, name in enumerate(CLASSES)}

LABEL_PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
LABEL_QOS_CLASS: Final = "koordinator.sh/qosClass"

CLASS_OF_LABEL: Final[Mapping[str, str]] = {
    f"koord-{name}": name for name in ("prod", "mid", "batch", "free")
}
"""The class of each value of Koordinator's class label, and of each priority of host applications.
"""
_BY_PRIORITY: Final = (
    (9000, 9999, "prod"),
    (7000, 7999, "mid"),
    (5000, 5999, "batch"),
    (3000, 3999, "free"),
)
_BY_QOS: Final[Mapping[str, str]] = {
    "SYSTEM": "prod",
    "LSE": "prod",
    "LSR": "prod",
    "LS": "prod",
    "BE": "batch",
}
QOS_CLASSES: Final = frozenset(_BY_QOS)
"""Koordinator's QoS of a pod or host application."""
_BY_KUBE_QOS: Final[Mapping[str, str]] = {
    "Guaranteed": "LSR",
    "Burstable": "LS",
    "BestEffort": "BE",
}


class PodClass(NamedTuple):
    """`priority_class` is one of CLASSES; `qos` is LSE, LSR, LS, BE, SYSTEM or empty."""

    priority_class: str
    qos: str


def explicit_class(labels: Mapping[str, str], priority: int | None) -> str:
    """The class that label or priority name; `none` if neither does, or if the label has an unknown
    value, whatever the priority."""
    label = labels.get(LABEL_PRIORITY_CLASS)
    if label is not None:
        return CLASS_OF_LABEL.get(label, "none")
    for low, high, name in _BY_PRIORITY:
        if priority is not None and low <= priority <= high:
            return name
    return "none"


def qos_class(labels: Mapping[str, str], kube_qos: str | None) -> str:
    """The QoS class: the label if it has a known value, else from the Kubernetes QoS class."""
    label = labels.get(LABEL_QOS_CLASS, "")
    return label if label in _BY_QOS else _BY_KUBE_QOS.get(kube_qos or "", "")


def pod_class(labels: Mapping[str, str], priority: int | None, kube_qos: str | None) -> PodClass:
    """Class and QoS of a pod from its labels, `spec.priority` and `status.qosClass`."""
    qos = qos_class(labels, kube_qos)
    explicit = explicit_class(labels, priority)
    return PodClass(explicit if explicit != "none" else _BY_QOS.get(qos, "none"), qos)


def class_label(priority_class: str) -> str:
    """The value of Koordinator's class label; empty for the classes `none` and `unknown`."""
    return f"koord-{priority_class}" if f"koord-{priority_class}" in CLASS_OF_LABEL else ""
