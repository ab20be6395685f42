"""How kube-scheduler reads an extender's replies, in plain Python, for the tests.

Go matches keys in any letter case; the rules are those of its HTTP extender client, and
tests/vectors/extender.py holds this reader against recorded cases.
"""

from collections import Counter
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    error: bool
    ignored: bool
    feasible: list[str] | None
    unschedulable: dict[str, str]
    unresolvable: dict[str, str]


def read_filter(
    status: int, reply: Any, *, sent: list[str], node_cache_capable: bool, ignorable: bool = False
) -> Outcome:
    failed = Outcome(True, ignorable, sent if ignorable else None, {}, {})
    if status != 200:
        return failed
    keys = {key.lower(): value for key, value in reply.items()}
    if keys.get("error"):
        return failed
    names, nodes = keys.get("nodenames"), keys.get("nodes")
    if node_cache_capable and names is not None:
        feasible = list(names)
        if not set(feasible) <= set(sent):
            return failed
    else:
        feasible = [node["metadata"]["name"] for node in (nodes or {}).get("items") or ()]
    return Outcome(
        False, False, feasible, keys.get("failednodes") or {},
        keys.get("failedandunresolvablenodes") or {},
    )  # fmt: skip


def unschedulable_message(outcome: Outcome, nodes: int) -> str:
    """The message of the condition `PodScheduled` of a pod that no node takes: nodes by reason.
    Source: `FitError` of kube-scheduler's framework."""
    reasons = Counter((outcome.unschedulable | outcome.unresolvable).values())
    counts = sorted(f"{number} {reason}" for reason, number in reasons.items())
    return f"0/{nodes} nodes are available: {', '.join(counts)}."


def add_scores(totals: dict[str, int], replies: list[tuple[int, int, Any]]) -> dict[str, int]:
    """Plugin totals plus score * weight * 10 of each (weight, status, reply)."""
    summed = dict(totals)
    for weight, status, reply in replies:
        scores = [entry.get("Score") or 0 for entry in reply]
        if status != 200 or any(type(score) is not int for score in scores):
            continue
        for entry, score in zip(reply, scores, strict=True):
            if entry["Host"] in summed:
                summed[entry["Host"]] += score * weight * 10
    return summed


def is_interested(managed: list[str], containers: list[dict[str, Any]]) -> bool:
    """Whether a scheduler asks the extender about a pod: always if it manages no resources, else if
    a container or init container names a managed resource."""
    named = {name for container in containers for amounts in container.values() for name in amounts}
    return not managed or not named.isdisjoint(managed)
