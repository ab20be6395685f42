"""Give each class its group identity: the kernel runs a higher one first.

Only kernels with the group identity of Anolis OS have it. The kernel of others reports the file as
missing.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import KubeQos, NodeState, PodState
from pipeline.processors.node_qos.pod_annotations import read_annotation
from pipeline.processors.slo.nodeslo import CpuQos, QosClass, QosStrategy

CPU_QOS_ANNOTATION: Final = "koordinator.sh/cpuQOS"
_NAME: Final = "cpu_identity"
_NONE: Final = 0
_CLASS_OF_KUBE_QOS: Final[Mapping[KubeQos, str]] = {
    "Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE",
}  # fmt: skip


class CpuIdentity:
    """Koordinator's [group identity](https://koordinator.sh/docs/user-manuals/cpu-qos).

    A pod has the value of its class, without a label that of its Kubernetes QoS. The directory of
    Guaranteed pods has 0, because it is the parent of the others. Classes that are switched off
    have 0 while another one is on.
    """

    name = _NAME
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        """The identity of directories, pods and host applications; none while all classes are
        off."""
        if state.slo is None:
            return held(former, _NAME)
        strategy = state.slo.resource_qos_strategy
        values = _values(strategy) if strategy is not None else {}
        if all(value is None for value in values.values()):
            return []
        unknown = {pod.path for pod in state.pods if not pod.listed}
        return [*_claims(state, values), *held(former, _NAME, unknown)]


def _values(strategy: QosStrategy) -> dict[str, int | None]:
    """The identity of each class; None where it is switched off."""
    policy = None if strategy.policies is None else strategy.policies.cpu_policy
    lsr = _value(strategy.lsr_class, policy)
    return {
        "LSE": lsr,
        "LSR": lsr,
        "LS": _value(strategy.ls_class, policy),
        "BE": _value(strategy.be_class, policy),
        "SYSTEM": _value(strategy.system_class, policy),
    }


def _value(rules: QosClass | None, policy: str | None) -> int | None:
    cpu = None if rules is None else rules.cpu_qos
    is_on = cpu is not None and cpu.enable and policy in (None, "groupIdentity")
    return cpu.group_identity if cpu is not None and is_on else None


def _claims(state: NodeState, values: Mapping[str, int | None]) -> Iterator[Claim]:
    yield _claim(state.kubepods_path, _NONE, "parent of all pods")
    yield _claim(state.burstable_path, values["LS"], "class LS")
    yield _claim(state.best_effort_path, values["BE"], "class BE")
    for pod in state.listed_pods():
        qos = pod.qos_label if pod.qos_label in values else _CLASS_OF_KUBE_QOS[pod.kube_qos]
        own = _own_value(pod) if values["LS"] is not None and pod.qos_label == "LS" else None
        yield _claim(pod.path, values[qos] if own is None else own, f"class {qos}")
    for app in state.host_apps:
        if app.qos in values:
            yield _claim(app.path, values[app.qos], f"class {app.qos}")


def _own_value(pod: PodState) -> int | None:
    """The identity that an annotation of the pod states; None if it states none that is valid."""
    own = read_annotation(pod.annotations, CPU_QOS_ANNOTATION, CpuQos)
    return None if own is None else own.group_identity


def _claim(path: str, value: int | None, why: str) -> Claim:
    return Claim(Place(path, Knob.CPU_IDENTITY), _NONE if value is None else value, _NAME, why)
