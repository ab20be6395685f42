"""The decision about a pod as a JSON document: answered by the extender at /v1/explain, printed by
`springtide score` and `springtide why-not`.

Keys are stable: more may come, none will be removed. None is unknown or does not apply.
"""

import math
from itertools import compress
from typing import Final, Literal

import msgspec

from pipeline import API_VERSION
from pipeline.extender.decisions import ExplainResult, Rules
from pipeline.times import format_time
from pipeline.topics.node_state import Dispute
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

KIND: Final = "PlacementExplanation"

Verdict = Literal["passed", "refused", "estimated", "unknown", "exempt"]
"""`estimated` passes by estimates of a resource's usage, `unknown` because it has no young window
to be judged by, `exempt` whatever its usage is."""


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one node.

    node: Name of the node.
    verdict: `passed`, `refused`, `estimated` (passes by estimates of a resource's usage), `unknown`
      (passes because it has no young window to be judged by) or `exempt` (passes whatever its usage
      is).
    reason: Text of the refusal that a scheduler gets, the same for many nodes.
    detail: The numbers of the refusal of this node.
    score: Score of 0 to 100, the mean of `plugins` by weight; null for a refused node, which a
      scheduler does not ask to score.
    extender_score: The score that a scheduler gets: 0 to 10, unless scores are fine.
    plugins: Score of 0 to 100 by plugin.
    estimated: Resources whose usage the last window lacks: estimates of the pods on the node count
      in its place.
    dispute: A second source that reports other usage of the node; null if there is none.
    age_seconds: Seconds since the end of the node's last window.
    stale: Whether that is too old to be judged.
    new: Whether the node never reported and all of its pods are young: it counts as empty.
    """

    node: str
    verdict: Verdict
    reason: str | None = None
    detail: str | None = None
    score: int | None = None
    extender_score: int | None = None
    plugins: dict[str, int] = {}
    estimated: tuple[str, ...] = ()
    dispute: Dispute | None = None
    age_seconds: float | None = None
    stale: bool = True
    new: bool = False

    @property
    def passes(self) -> bool:
        return self.verdict != "refused"


class ExplainedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod as it was read.

    namespace: Namespace.
    name: Name.
    node: The node that the pod is on already; empty for a pending pod.
    pod_class: Class of the pod: prod, mid, batch, free or none.
    requests: Effective requests of cpu and memory.
    limits: Effective limits of cpu and memory.
    """

    namespace: str
    name: str
    node: str
    pod_class: str
    requests: Resources
    limits: Resources

    @property
    def title(self) -> str:
        """`namespace/name` for people; `-` stands for what the manifest leaves out."""
        return f"{self.namespace or '-'}/{self.name or '-'}"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a pod, as in mode `act`.

    now: Time of the decision.
    mode: Mode of the extender.
    pod: The pod as it was read.
    weights: Weight by plugin.
    items: The decision about each node, in the order of the request.
    """

    apiVersion: str = API_VERSION
    kind: str = KIND
    now: str
    mode: str
    pod: ExplainedPod
    weights: dict[str, int]
    items: tuple[NodeExplanation, ...]


def explanation(
    result: ExplainResult, pod: PodRecord, rules: Rules, now: float, mode: str
) -> Explanation:
    """The document of a result for this pod."""
    return Explanation(
        now=format_time(now),
        mode=mode,
        pod=ExplainedPod(
            namespace=pod.namespace,
            name=pod.name,
            node=pod.node,
            pod_class=pod.pod_class,
            requests=pod.requests,
            limits=pod.limits,
        ),
        weights={score.plugin: score.weight for score in rules.placement.scores},
        items=_items(result),
    )


def _items(result: ExplainResult) -> tuple[NodeExplanation, ...]:
    scores = result.scores
    score_index = {position: index for index, position in enumerate(result.passed.tolist())}
    plugins = {name: of_plugin.tolist() for name, of_plugin in scores.plugins.items()}
    percent, steps = scores.percent.tolist(), scores.steps.tolist()
    ages, is_stale, is_new = (
        each.tolist() for each in (result.ages, result.is_stale, result.is_new)
    )
    is_fresh, is_estimated = result.is_fresh.tolist(), result.is_estimated.tolist()
    items = []
    for position, name in enumerate(result.names):
        refusal, index = result.refusals.kind(position), score_index.get(position)
        estimated = tuple(compress(result.resources, is_estimated[position]))
        passed: Verdict = "estimated" if estimated else "passed"
        passed = passed if is_fresh[position] else "unknown"
        passed = "exempt" if result.is_exempt else passed
        items.append(
            NodeExplanation(
                node=name,
                verdict=passed if refusal is None else "refused",
                reason=None if refusal is None else refusal.reason,
                detail=None if refusal is None else result.refusals.detail(position),
                score=None if index is None else percent[index],
                extender_score=None if index is None else steps[index],
                plugins={} if index is None else {p: s[index] for p, s in plugins.items()},
                estimated=estimated,
                dispute=result.disputes.get(position),
                age_seconds=round(ages[position], 3) if math.isfinite(ages[position]) else None,
                stale=is_stale[position],
                new=is_new[position],
            )
        )
    return tuple(items)
