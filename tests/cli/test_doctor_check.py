"""A check that cannot read says why, also after a time-out, which has no text of its own."""

import pytest

from pipeline.cli.doctor_check import unread
from pipeline.errors import BrokerUnavailableError, SpringtideError


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError(), "no answer in time"), (BrokerUnavailableError("no broker"), "no broker")],
)
def test_a_check_that_cannot_read_says_why(
    error: SpringtideError | TimeoutError, reason: str
) -> None:
    check = unread("usage", "springtide.node-state", error)
    assert check.status == "unknown"
    assert check.found.startswith(f"cannot read springtide.node-state: {reason}")
