"""The result of a check of `springtide doctor`."""

from typing import Literal, NamedTuple

from pipeline.errors import SpringtideError

Status = Literal["ok", "warn", "fail", "unknown"]


class Check(NamedTuple):
    """Name of the check, status, observation, and remedy (empty if none is needed)."""

    name: str
    status: Status
    found: str
    todo: str = ""


def failed(name: str, error: SpringtideError, status: Status = "fail") -> Check:
    """Return the check for this error."""
    return Check(name, status, error.message, error.hint or "")


def unread(name: str, what: str, error: SpringtideError | TimeoutError) -> Check:
    """Return the check that could not read `what`."""
    reason = str(error) or "no answer in time"
    return Check(name, "unknown", f"cannot read {what}: {reason}")
