"""The span of an action: from the record that caused it until its outcome is known."""

from pipeline.spans import Span
from pipeline.topics.actions import ActionRecord
from pipeline.tracing import Received


def action_span(action: ActionRecord, cause: Received, ended: float) -> Span:
    """The span of an action that ended at `ended` (UTC seconds), named like the action. An action
    that is repeated, as after a failure, has a span each time."""
    context = cause.context.child(action.action, ended)
    return Span(
        action.action,
        context,
        cause.context,
        cause.at,
        ended,
        {
            "k8s.node.name": action.node,
            "springtide.actuator": action.actuator,
            "springtide.outcome": action.outcome,
            "springtide.why": action.why,
            "springtide.before": _texts(action.before),
            "springtide.after": _texts(action.after),
            **({"springtide.plan": action.plan} if action.plan else {}),
        },
        error=action.error if action.outcome == "failed" else "",
    )


def _texts(values: dict[str, str | None]) -> list[str]:
    return [f"{name}={value or 'absent'}" for name, value in values.items()]
