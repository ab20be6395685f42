"""The state of a node with a container that is about to start.

So the features decide about it before it runs, as they will once it has a cgroup. What it asks for
is in the view of the node. A pod that the view does not have yet, or has without its details, is
known by what its runtime says: labels and annotations. Its native requests are unknown then, so
that nothing may be decided from them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS, QOS_CLASSES, pod_class
from pipeline.processors.node_qos.cgroup_values import Knob
from pipeline.processors.node_qos.extended_resource_spec import ANNOTATION
from pipeline.processors.node_qos.node_state import KubeQos, NodeState, PodState
from pipeline.processors.node_qos.view_facts import (
    container_state,
    pod_state,
    with_extended_pod_resources,
)
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container

ALL_KNOBS: Final = frozenset(Knob)
KNOBS_WITHOUT_VIEW: Final = frozenset(
    {Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.CPUSET, Knob.MEMORY_LIMIT}
)
"""What labels and annotations decide; protection of memory follows native requests, too."""


class StartingContainer(NamedTuple):
    """A container as its runtime announces it. `path` is the cgroup that it will have, below
    `pod_path`, which exists."""

    pod_uid: str
    namespace: str
    pod_name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    kube_qos: KubeQos
    pod_path: str
    name: str
    path: str


class StateWithContainer(NamedTuple):
    """The state with the container, and the knobs that may be decided from it."""

    state: NodeState
    knobs: frozenset[Knob]


def with_container(
    state: NodeState, view: NodeViewRecord, start: StartingContainer
) -> StateWithContainer | None:
    """`state` as if the container had its cgroup; None if nobody says what the pod is: its limits
    stay as they are until a view does.

    The state is that of an early round, in which nothing grows.
    """
    of_view = next((pod for pod in view.pods if pod.cgroup_uid == start.pod_uid), None)
    if of_view is not None and not of_view.cut:
        pod, knobs = of_view, ALL_KNOBS
    elif _says_what_it_is(start):
        pod, knobs = _announced(start), KNOBS_WITHOUT_VIEW
    else:
        return None
    pod = with_extended_pod_resources(pod)
    container = next((c for c in (*pod.init_containers, *pod.containers) if c.name == start.name),
                     None)  # fmt: skip
    if container is None:
        return None
    former = next((known for known in state.pods if known.path == start.pod_path), None)
    others = [c for c in former.containers if c.path != start.path] if former else []
    starting = _with_usage(pod_state(pod), former)
    starting = msgspec.structs.replace(
        starting,
        path=start.pod_path,
        kube_qos=start.kube_qos,
        containers=(*others, container_state(container, start.path)),
    )
    pods = tuple(known for known in state.pods if known.path != start.pod_path)
    with_pod = msgspec.structs.replace(state, pods=(*pods, starting), is_early=True, revision=None)
    return StateWithContainer(with_pod, knobs)


def _says_what_it_is(start: StartingContainer) -> bool:
    return start.labels.get(LABEL_QOS_CLASS) in QOS_CLASSES or ANNOTATION in start.annotations


def _announced(start: StartingContainer) -> ViewPod:
    known = pod_class(start.labels, None, start.kube_qos)
    return ViewPod(
        uid=start.pod_uid,
        cgroup_uid=start.pod_uid,
        namespace=start.namespace,
        name=start.pod_name,
        pod_class=known.priority_class,
        qos=known.qos,
        phase="Pending",
        containers=(Container(name=start.name),),
        labels=dict(start.labels),
        annotations=dict(start.annotations),
    )


def _with_usage(pod: PodState, former: PodState | None) -> PodState:
    if former is None:
        return pod
    return msgspec.structs.replace(
        pod,
        cpu_cores=former.cpu_cores,
        memory_bytes=former.memory_bytes,
        throttled_ratio=former.throttled_ratio,
        cpu_pressure=former.cpu_pressure,
    )
