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
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

KIND: Final = "PlacementExplanation"

Verdict = Literal["passed", "refused", "estimated", "unknown", "exempt"]
"""`estimated` passes by estimates of a resource's usage, `unknown` because it has no young window
to be judged by, `exempt` whatever its usage is."""


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one node.

    `score` is 0 to 100, the mean of `plugins` by weight, and `extender_score` what a scheduler gets
    (0 to 10, unless scores are fine); both are None for a refused node, which a scheduler does not
    ask to score. `reason` is the text that a scheduler gets, the same for many nodes; `detail` has
    the numbers of this node.
    `estimated` are resources whose usage the last window lacks: estimates of the pods on the node
    count in its place. `age_seconds` is since the end of the node's last window.
    """

    node: str
    verdict: Verdict
    reason: str | None = None
    detail: str | None = None
    score: int | None = None
    extender_score: int | None = None
    plugins: dict[str, int] = {}
    estimated: tuple[str, ...] = ()
    age_seconds: float | None = None
    stale: bool = True

    @property
    def passes(self) -> bool:
        return self.verdict != "refused"


class ExplainedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod as it was read; `node` is the node that it is on already."""

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
    """The decision about a pod at `now`, as in mode `act`; `mode` is the mode of the extender. The
    `items` are in the order of the request."""

    apiVersion: str = API_VERSION  # noqa: N815
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
    ages, is_stale = result.ages.tolist(), result.is_stale.tolist()
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
                age_seconds=round(ages[position], 3) if math.isfinite(ages[position]) else None,
                stale=is_stale[position],
            )
        )
    return tuple(items)
