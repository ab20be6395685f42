"""Read the names of pods and workloads that people type, as `kubectl` takes them."""

from typing import Final, NamedTuple

from pipeline.errors import UsageError
from pipeline.topics.workloads import Workload

_SHORT: Final = {
    "cronjob": ("cj",), "daemonset": ("ds",), "deployment": ("deploy",), "job": (),
    "pod": ("po",), "replicaset": ("rs",), "replicationcontroller": ("rc",), "rollout": (),
    "statefulset": ("sts",),
}  # fmt: skip
_KINDS: Final = {
    typed: kind for kind, short in _SHORT.items() for typed in (kind, f"{kind}s", *short)
}


class TypedName(NamedTuple):
    """A name, or the beginning of one. `kind` is in lower case; it and `namespace` are empty if
    they were not typed."""

    kind: str
    namespace: str
    name: str

    def has_kind(self, kind: str) -> bool:
        """Whether an object of this kind may be meant."""
        return self.kind in ("", kind.casefold())

    def could_be(self, workload: Workload) -> bool:
        """Whether kind and namespace are those of the workload, as far as they were typed."""
        return self.has_kind(workload.kind) and self.namespace in ("", workload.namespace)


def read_typed_name(text: str) -> TypedName:
    """Read `web`, `shop/web`, `deploy/web` or `Deployment/shop/web`.

    Of two parts the first is a kind if it is one of Kubernetes, or has a group, as in
    `deployment.apps/web`, else a namespace. Raises `UsageError` for another text.
    """
    parts = text.split("/")
    if len(parts) > 3 or not all(parts):
        raise UsageError(
            f"{text!r:.100} is not the name of a pod or workload",
            hint="give name, namespace/name, kind/name or kind/namespace/name",
        )
    *before, name = parts
    kind = namespace = ""
    if len(before) == 2:
        kind, namespace = before
    elif before and ("." in before[0] or before[0].casefold() in _KINDS):
        kind = before[0]
    elif before:
        namespace = before[0]
    kind = kind.casefold().partition(".")[0]
    return TypedName(_KINDS.get(kind, kind), namespace, name)
