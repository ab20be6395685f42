"""Models and results of an archive are those of the log, bit by bit."""

from pathlib import Path

import pytest

from pipeline.archive.archive_reader import read_windows
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.topics.windows import decode_window, encode_window
from tests.agents.test_results_fingerprint import SETTINGS, recorded_windows, results
from tests.archive.archives import write


@pytest.mark.slow
def test_the_model_agent_publishes_the_same_of_an_archive(tmp_path: Path) -> None:
    log = recorded_windows("usual")
    write(
        tmp_path,
        [LoggedWindow(r.partition, r.offset, decode_window(r.value or b"")) for r in log],
        segments=5,
    )
    archived = {record[:2]: record.window for record in read_windows(tmp_path)}
    assert len(archived) == len(log)
    again = []
    for record in log:
        window = archived[record.partition, record.offset]
        # The agent takes a decoded window as it is, the value only for dead letters.
        again.append(LogRecord(*record[:3], encode_window(window), record.appended_ms, window))
    settings = SETTINGS["usual"]
    expected = results([LogRecord(*record[:5]) for record in log], settings, 60)
    assert results(again, settings, 60) == expected
    assert expected.states
