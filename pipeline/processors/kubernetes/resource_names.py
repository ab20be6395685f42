"""Check names of resources that users write: whether a node can have such a resource."""

import re
from difflib import get_close_matches
from typing import Final

_KUBERNETES_NAMES: Final = ("cpu", "memory", "ephemeral-storage", "storage", "pods")
_SYNONYMS: Final = {"mem": "memory", "cpus": "cpu", "ram": "memory"}
_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KNOWN: Final = re.compile(
    rf"{'|'.join(_KUBERNETES_NAMES)}|(hugepages-|attachable-volumes-){_NAME}"
    rf"|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/{_NAME}"
)


def resource_name_problem(name: str) -> str | None:
    """The problem with a resource name; None if a node can have a resource of this name: one of
    Kubernetes' own, or a domain and a name.

    >>> resource_name_problem("example.com/gpu")
    >>> resource_name_problem("CPU")
    "'CPU' is no resource of a node: is it cpu?"
    >>> resource_name_problem("gpu")
    "'gpu' is no resource of a node: all but Kubernetes' own are domain/name, as example.com/gpu"
    """
    if _KNOWN.fullmatch(name):
        return None
    plain = name.strip().lower()
    near = (
        [_SYNONYMS[plain]]
        if plain in _SYNONYMS
        else get_close_matches(plain, _KUBERNETES_NAMES, n=1, cutoff=0.8)
    )
    if near:
        return f"{name!r:.80} is no resource of a node: is it {near[0]}?"
    return (
        f"{name!r:.80} is no resource of a node: all but Kubernetes' own are domain/name, as "
        "example.com/gpu"
    )
