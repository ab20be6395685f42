"""Which pods are refused: pairs of QoS and priority that Koordinator forbids, and changes of them.

The rules about a pod itself apply when it is created, those about changes when it is updated. A
running pod that breaks a rule about pods can be updated all the same: it may be older than the
webhook, and its controller must be able to remove a finalizer.
"""

from collections.abc import Iterator
from typing import Any, Final

from pipeline.processors.kubernetes.objects import CONFIG_MIRROR, PodObject, convert_object
from pipeline.processors.kubernetes.pod_classes import (
    LABEL_QOS_CLASS,
    QOS_CLASSES,
    class_label,
    explicit_class,
)
from pipeline.processors.kubernetes.pod_resources import pod_resources
from pipeline.processors.node_qos.eviction_victims import LABEL_SUB_PRIORITY
from pipeline.topics.resource_amounts import BATCH

FORBIDDEN_CLASSES: Final = {
    "BE": ("none", "prod"),
    "LSR": ("none", "mid", "batch", "free"),
}
"""Classes that pods of a QoS may not have; `none`: neither label nor priority names one."""
_WHOLE_CPUS: Final = ("LSR", "LSE")


def creation_problems(pod: Any) -> list[str]:
    """Why a new pod is refused; empty if it is admitted. Raises `InvalidRecordError` for what is no
    pod."""
    return list(_creation_problems(convert_object(pod, PodObject, "Pod")))


def update_problems(old: Any, new: Any, *, checks_sub_priority: bool = True) -> list[str]:
    """Why an update of a pod is refused: QoS, class and, unless switched off, the priority within
    the class cannot change. Raises `InvalidRecordError` for what is no pod."""
    before, after = (convert_object(pod, PodObject, "Pod") for pod in (old, new))
    fields = [
        (f"labels[{LABEL_QOS_CLASS}]", _qos(before), _qos(after)),
        ("the priority class", _class_text(before), _class_text(after)),
    ]
    if checks_sub_priority:
        was, now = (pod.metadata.labels.get(LABEL_SUB_PRIORITY, "") for pod in (before, after))
        fields.append((f"labels[{LABEL_SUB_PRIORITY}]", was, now))
    return [
        f"{name} of a pod cannot change: it is {was or 'not set'}, and would be {now or 'not set'}"
        for name, was, now in fields
        if was != now
    ]


def _creation_problems(pod: PodObject) -> Iterator[str]:
    if CONFIG_MIRROR in pod.metadata.annotations:
        # The kubelet runs it whatever the API server says.
        return
    qos, priority_class = _qos(pod), _class(pod)
    requests = pod_resources(pod.spec)
    if qos != "BE" and any((requests.scalars or {}).get(name) for name in BATCH):
        yield f"labels[{LABEL_QOS_CLASS}] must be BE: the pod requests {' or '.join(BATCH)}"
    if priority_class in FORBIDDEN_CLASSES.get(qos, ()):
        yield (
            f"labels[{LABEL_QOS_CLASS}]={qos} and the priority class "
            f"{_class_text(pod) or 'none'} cannot be combined"
        )
    if qos in _WHOLE_CPUS:
        cpu = requests.requests.cpu_millicores
        if not cpu:
            yield f"a pod with {LABEL_QOS_CLASS}={qos} must request CPUs"
        elif cpu % 1000:
            yield f"a pod with {LABEL_QOS_CLASS}={qos} must request whole CPUs, it requests {cpu}m"


def _qos(pod: PodObject) -> str:
    label = pod.metadata.labels.get(LABEL_QOS_CLASS, "")
    return label if label in QOS_CLASSES else ""


def _class(pod: PodObject) -> str:
    return explicit_class(pod.metadata.labels, pod.spec.priority)


def _class_text(pod: PodObject) -> str:
    return class_label(_class(pod))
