"""What a check of `springtide doctor` gives."""

from typing import Literal, NamedTuple

from pipeline.errors import SpringtideError

Status = Literal["ok", "warn", "fail", "unknown"]


class Check(NamedTuple):
    """One row: what was looked at, how it is, what was found and what to do about it."""

    name: str
    status: Status
    found: str
    todo: str = ""


def failed(name: str, error: SpringtideError, status: Status = "fail") -> Check:
    """The check that ended with this error."""
    return Check(name, status, error.message, error.hint or "")
