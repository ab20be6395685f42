"""Fill in what a view leaves out of pods because it would be too large for a record."""

import msgspec

from pipeline.topics.node_views import NodeViewRecord, ViewPod


def with_former_details(view: NodeViewRecord, former: NodeViewRecord | None) -> NodeViewRecord:
    """`view` with the labels, annotations and containers that its cut pods had in `former`.

    A cut pod that `former` does not have, or has cut too, stays cut: nothing is known of what it
    asks for.
    """
    if not any(pod.cut for pod in view.pods):
        return view
    known = {pod.uid: pod for pod in former.pods if not pod.cut} if former else {}
    pods = tuple(_filled(pod, known.get(pod.uid)) for pod in view.pods)
    return msgspec.structs.replace(view, pods=pods)


def _filled(pod: ViewPod, known: ViewPod | None) -> ViewPod:
    if not pod.cut or known is None:
        return pod
    return msgspec.structs.replace(
        pod,
        labels=known.labels,
        annotations=known.annotations,
        containers=known.containers,
        init_containers=known.init_containers,
        container_ids=known.container_ids,
        cut=False,
    )
