"""The exporter reads the report interval from its node's record."""

import pytest

from node_exporter.window_policy import report_interval_seconds
from pipeline.errors import RecordError
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy


@pytest.mark.parametrize(
    ("strategy", "seconds"),
    [
        (None, None),
        (NodeStrategy(predictor="percentile"), None),
        (NodeStrategy(report_interval_seconds=300.0), 300.0),
    ],
)
def test_report_interval_is_read_from_the_record(
    strategy: NodeStrategy | None, seconds: float | None
) -> None:
    record = NodeRecord(node="n1", strategy=strategy, labels={"a": "b"})
    assert report_interval_seconds(encode_json(record)) == seconds


def test_tombstone_has_no_report_interval() -> None:
    assert report_interval_seconds(None) is None


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"\xff", b'{"version":2,"node":"n1"}',
     b'{"version":1,"node":"n1","strategy":{"report_interval_seconds":"often"}}'],
)  # fmt: skip
def test_invalid_record_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        report_interval_seconds(value)
