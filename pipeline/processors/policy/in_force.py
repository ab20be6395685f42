"""From the ConfigMap to what a node's record carries: the policy in force, resolved.

Owes the rest: one pure function from policies and a Node to its record, for whichever source; what
cannot be used keeps what was in force, and is named.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.processors.policy.colocation import COLOCATION, DEFAULTS, Colocation, PredictPolicy
from pipeline.processors.policy.contradictions import contradictions
from pipeline.processors.policy.effective import effective
from pipeline.processors.policy.loading import Policy, Problem, annotated, load
from pipeline.processors.policy.sections import Said, Section, document, merged
from pipeline.processors.policy.springtide import ANNOTATION, SPRINGTIDE, Own
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.overcommit import Overcommit

_MOST_PERCENT: Final = 1_000_000
_YEAR_SECONDS: Final = 31_536_000


class Policies(NamedTuple):
    """What each section of the ConfigMap says; None while there was no usable one."""

    colocation: Policy[Colocation] | None = None
    springtide: Policy[Own] | None = None


def load_policies(
    data: Mapping[str, str] | None, last: Policies | None = None
) -> tuple[Policies, tuple[Problem, ...]]:
    """The policies after reading the data of the ConfigMap, None if there is no such object, and
    all that is wrong in it."""
    last = last or Policies()
    colocation = load(COLOCATION, data, last.colocation)
    springtide = load(SPRINGTIDE, data, last.springtide)
    problems = list(dict.fromkeys(colocation.problems + springtide.problems))
    if colocation.policy is not None and springtide.policy is not None:
        problems += [
            Problem(SPRINGTIDE.key, text, taken=True)
            for text in contradictions(colocation.policy.cluster, springtide.policy.cluster)
        ]
    return Policies(colocation.policy, springtide.policy), tuple(problems)


def with_policy(
    record: NodeRecord, policies: Policies, before: NodeRecord | None = None
) -> tuple[NodeRecord, tuple[Problem, ...]]:
    """The record of a node with what is in force for it, and what of its own is wrong.

    While there is no usable policy, as after a start with a broken ConfigMap, that of `before`
    stays, which is what was last published of the node.
    """
    if policies.colocation is None or policies.springtide is None:
        if before is None:
            return record, ()
        kept = {name: getattr(before, name) for name in _FILLED}
        return msgspec.structs.replace(record, **kept), ()
    found = effective(policies.colocation, record.labels, record.annotations)
    own, problems = _of_node(SPRINGTIDE, policies.springtide, ANNOTATION, record)
    strategy = node_strategy(found.strategy, own)
    overcommit = overcommit_of(found.strategy, own) if found.is_on else None
    filled = {
        "strategy": strategy,
        "overcommit": overcommit,
        "colocation": document(found.strategy),
        "springtide": document(own),
    }
    return (
        msgspec.structs.replace(record, **filled, strategy_hash=_hash(filled)),
        (*found.problems, *problems),
    )


_FILLED: Final = ("strategy", "overcommit", "colocation", "springtide", "strategy_hash")


def _of_node(
    section: Section[Said], policy: Policy[Said], annotation: str, record: NodeRecord
) -> tuple[Said, list[Problem]]:
    own, problems = annotated(section, annotation, record.annotations.get(annotation))
    return merged(policy.of_labels(record.labels), own), problems


def node_strategy(strategy: Colocation, own: Own) -> NodeStrategy | None:
    """What is different for a node in how it is predicted; None if nothing is. A period that is
    Koordinator's default says nothing: the worker's setting holds."""
    predict = strategy.node_predict_policy or PredictPolicy()
    interval = strategy.metric_report_interval_seconds
    if interval == DEFAULTS.metric_report_interval_seconds:
        interval = None
    cold = predict.cold_start_period_seconds
    threshold = predict.resource_diff_threshold_percent
    found = NodeStrategy(
        safety_margin_percent=own.safety_margin_percent,
        cold_start_seconds=None if cold is None else float(min(cold, _YEAR_SECONDS)),
        cold_start_samples=own.cold_start_samples,
        nsigma_multiplier=own.nsigma_multiplier,
        predictor=own.predictor,
        resource_diff_threshold_percent=None if threshold is None else float(min(threshold, 1000)),
        report_interval_seconds=None if interval is None else float(min(interval, _YEAR_SECONDS)),
    )
    return None if found == NodeStrategy() else found


def overcommit_of(strategy: Colocation, own: Own) -> Overcommit:
    """How Mid and Batch are worked out where both say something, or their defaults do."""
    said: dict[str, Any] = {}
    for of in (strategy, own):
        said |= {n: v for n, v in msgspec.structs.asdict(of).items() if v is not None}
    fields = Overcommit.__struct_fields__
    values = {name: _bounded(name, value) for name, value in said.items() if name in fields}
    return Overcommit(**values)


def _bounded(name: str, value: Any) -> Any:
    """What a record takes: more than a year, or ten thousand times as much, means no more."""
    if name.endswith("_percent"):
        return min(value, _MOST_PERCENT)
    if name == "degrade_time_minutes":
        return min(value, _YEAR_SECONDS // 60)
    return min(value, _YEAR_SECONDS) if name.endswith("_seconds") else value


def _hash(filled: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(filled, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]
