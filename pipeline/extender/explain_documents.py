"""What would be said of a pod, as a JSON document: answered by the extender, printed by
`springtide score` and `springtide why-not`.

Keys are stable: more may come, none will go. None is unknown, or was not asked.
"""

import math
from typing import Final, Literal

import msgspec

from pipeline import API_VERSION
from pipeline.extender.decisions import ExplainResult, Rules
from pipeline.times import format_time
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

KIND: Final = "PlacementExplanation"

Verdict = Literal["passed", "refused", "unknown", "exempt"]
"""`unknown` passes without being judged by its usage, `exempt` whatever its usage is."""


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What would be said of one node.

    `score` is 0 to 100, the mean of `plugins` by weight, and `extender_score` what a scheduler
    would be told (0 to 10, unless scores are fine); both are None for a refused node, of which no
    scheduler asks. `curable` is a refusal that preemption may cure. `age_seconds` is
    since the end of the node's last window.
    """

    node: str
    verdict: Verdict
    reason: str | None = None
    curable: bool = False
    score: int | None = None
    extender_score: int | None = None
    plugins: dict[str, int] = {}
    age_seconds: float | None = None
    stale: bool = True

    @property
    def passes(self) -> bool:
        return self.verdict != "refused"


class ExplainedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod as it was understood; `node` is where it is already."""

    namespace: str
    name: str
    node: str
    pod_class: str
    requests: Resources
    limits: Resources

    @property
    def title(self) -> str:
        """`namespace/name` for people; what a manifest leaves open is `-`."""
        return f"{self.namespace or '-'}/{self.name or '-'}"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What would be said of a pod at `now`, were the mode `act`: `mode` is the one in force. The
    `items` lie in the order in which they were asked for."""

    apiVersion: str = API_VERSION  # noqa: N815
    kind: str = KIND
    now: str
    mode: str
    pod: ExplainedPod
    weights: dict[str, int]
    items: tuple[NodeExplanation, ...]


def explanation(
    found: ExplainResult, pod: PodRecord, rules: Rules, now: float, mode: str
) -> Explanation:
    """The document of what was found for this pod."""
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
        items=_items(found),
    )


def _items(found: ExplainResult) -> tuple[NodeExplanation, ...]:
    scored = found.scored
    by_place = {place: at for at, place in enumerate(found.kept.tolist())}
    plugins = {name: scores.tolist() for name, scores in scored.plugins.items()}
    percent, steps = scored.percent.tolist(), scored.scores
    ages, is_stale = found.ages.tolist(), found.is_stale.tolist()
    is_unjudged = found.is_unjudged.tolist()
    items = []
    for place, name in enumerate(found.names):
        age = round(ages[place], 3) if math.isfinite(ages[place]) else None
        refusal = found.refused.get(place)
        if refusal is not None:
            items.append(
                NodeExplanation(
                    node=name, verdict="refused", reason=refusal.reason, curable=refusal.curable,
                    age_seconds=age, stale=is_stale[place],
                )
            )  # fmt: skip
            continue
        at = by_place[place]
        judged: Verdict = "unknown" if is_unjudged[place] else "passed"
        items.append(
            NodeExplanation(
                node=name, verdict="exempt" if found.is_exempt else judged, score=percent[at],
                extender_score=steps[at], age_seconds=age, stale=is_stale[place],
                plugins={plugin: scores[at] for plugin, scores in plugins.items()},
            )
        )  # fmt: skip
    return tuple(items)
