"""`springtide.actions`: decisions of actuators and their outcomes, keyed by node."""

from typing import Literal

import msgspec

from pipeline.topics.codec import Record

Outcome = Literal["done", "observed", "recommended", "failed", "refused", "intended", "marked"]


class ActionRecord(Record, frozen=True, kw_only=True):
    """A decision of an actuator, at the time `at` (RFC 3339, UTC).

    `before` and `after` have the values that change, by name; None is an absent value. `outcome` is
    `observed` or `recommended` if the mode forbids the action, `refused` if a check forbids it,
    `intended` just before the action, so that a crash leaves a trace, then `done`, or `failed`: a
    pod whose eviction failed may have left. `marked` is a pod that another agent was asked to
    evict; `done` follows when it leaves, `refused` if it stays.
    `error` has the reason, or the limit for which an observed action would wait. Evictions name
    their `plan`, its `strategy`, by its uid the `waiting` pod, the `workload` of the pod as
    kind/namespace/name, and the checks that would forbid the eviction but were `skipped` by policy.
    The planner's verdict about a plan is `done` if the plan helped, else `failed`, with usage of
    the node in `after`.
    """

    node: str
    at: str
    actuator: str
    action: str
    outcome: Outcome
    why: str
    before: dict[str, str | None] = msgspec.field(default_factory=dict)
    after: dict[str, str | None] = msgspec.field(default_factory=dict)
    error: str = ""
    plan: str = ""
    waiting: str = ""
    strategy: str = ""
    workload: str = ""
    skipped: tuple[str, ...] = ()
