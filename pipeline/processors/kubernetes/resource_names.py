"""Names of resources as users write them: such that a node can have, or no.

Owes the rest: a complaint that helps, for a name that would never match is judged by nobody.
"""

import re
from difflib import get_close_matches
from typing import Final

_OWN: Final = ("cpu", "memory", "ephemeral-storage", "storage", "pods")
_MEANT: Final = {"mem": "memory", "cpus": "cpu", "ram": "memory"}
_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KNOWN: Final = re.compile(
    rf"{'|'.join(_OWN)}|(hugepages-|attachable-volumes-){_NAME}"
    rf"|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/{_NAME}"
)


def objection(name: str) -> str | None:
    """Why no node can have a resource of this name; None where one can: it is Kubernetes' own, or
    a domain and a name.

    >>> objection("example.com/gpu")
    >>> objection("CPU")
    "'CPU' is no resource of a node: is it cpu?"
    >>> objection("gpu")
    "'gpu' is no resource of a node: all but Kubernetes' own are domain/name, as example.com/gpu"
    """
    if _KNOWN.fullmatch(name):
        return None
    plain = name.strip().lower()
    near = [_MEANT[plain]] if plain in _MEANT else get_close_matches(plain, _OWN, n=1, cutoff=0.8)
    if near:
        return f"{name!r:.80} is no resource of a node: is it {near[0]}?"
    return (
        f"{name!r:.80} is no resource of a node: all but Kubernetes' own are domain/name, as "
        "example.com/gpu"
    )
