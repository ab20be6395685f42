"""The access log of the extender."""

import logging

import pytest

from pipeline.http_server.access_log import AccessLog


@pytest.mark.parametrize(
    ("level", "is_enabled"), [("DEBUG", True), ("INFO", True), ("WARNING", False)]
)
def test_no_event_is_made_that_the_log_level_drops(
    caplog: pytest.LogCaptureFixture, level: str, is_enabled: bool
) -> None:
    with caplog.at_level(level, "pipeline.http_server.access"):
        assert AccessLog(logging.getLogger(), "").enabled is is_enabled
