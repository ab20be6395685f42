"""The span of the round that takes up a new view: from the view until its values are written."""

from collections import Counter
from collections.abc import Sequence

from pipeline.processors.node_qos.cgroup_values import Value, text_of_value
from pipeline.processors.node_qos.changes import PLACES_NAMED, Change
from pipeline.spans import Span, SpanContext
from pipeline.tracing import Received

_NAME = "hold"


def round_context(cause: Received) -> SpanContext:
    """The context of the span that `cause` leads to."""
    return cause.context.child(_NAME)


def round_span(
    node: str, context: SpanContext, cause: Received, changes: Sequence[Change], ended: float
) -> Span:
    """The span of a round with these changes that ended at `ended` (UTC seconds)."""
    counts = Counter(
        f"{change.features[0] if change.features else 'restore'} {change.outcome}"
        for change in changes
    )
    named = changes[:PLACES_NAMED]
    return Span(
        _NAME,
        context,
        cause.context,
        cause.at,
        ended,
        {
            "k8s.node.name": node,
            "springtide.actuator": "node-actuator",
            "springtide.changes": len(changes),
            "springtide.features": [f"{name}={count}" for name, count in counts.items()],
            "springtide.before": [f"{each.place}={_text(each.before)}" for each in named],
            "springtide.after": [f"{each.place}={_text(each.after)}" for each in named],
        },
        error=next((change.error for change in changes if change.error), ""),
    )


def _text(value: Value | None) -> str:
    return "unknown" if value is None else text_of_value(value)
