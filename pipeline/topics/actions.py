"""`springtide.actions`: what an actuator did, or did not do and why, keyed by node."""

from typing import Literal

import msgspec

from pipeline.topics.codec import Record

Outcome = Literal["done", "observed", "recommended", "failed", "refused", "intended"]


class ActionRecord(Record, frozen=True, kw_only=True):
    """One decision. `before` and `after` are by name of what changes, None where there is nothing.
    `outcome` is observed where the mode forbids to do it, failed with the reason in `error`,
    refused where something speaks against it, and intended just before it is done."""

    node: str
    at: str
    actuator: str
    action: str
    outcome: Outcome
    why: str
    before: dict[str, str | None] = msgspec.field(default_factory=dict)
    after: dict[str, str | None] = msgspec.field(default_factory=dict)
    error: str = ""
