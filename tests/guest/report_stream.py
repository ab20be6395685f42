"""A pytest plugin inside the guest: writes each report as a line of JSON to the report device.

    {"started": node id}   {"report": serialized report}   {"finished": node id}

Captured output of a test is cut to its end.
"""

import json
import os
from typing import Any, Final

import pytest

from tests.guest.initramfs import REPORT_DEVICE

SECTION_CHARACTERS: Final = 20_000


class ReportStream:
    """Writes the reports of one run."""

    def __init__(self, config: pytest.Config, descriptor: int) -> None:
        self._config = config
        self._descriptor = descriptor

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        report.sections = [(name, text[-SECTION_CHARACTERS:]) for name, text in report.sections]
        hook = self._config.hook
        self._write(report=hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(finished=nodeid)

    def _write(self, **line: Any) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def pytest_configure(config: pytest.Config) -> None:
    descriptor = os.open(REPORT_DEVICE, os.O_WRONLY | os.O_NOCTTY)
    config.pluginmanager.register(ReportStream(config, descriptor), "report_stream")
