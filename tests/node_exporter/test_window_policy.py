"""What the exporter reads of its node's record, and nothing more."""

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
def test_the_report_interval_of_a_record(
    strategy: NodeStrategy | None, seconds: float | None
) -> None:
    record = NodeRecord(node="n1", strategy=strategy, labels={"a": "b"})
    assert report_interval_seconds(encode_json(record)) == seconds


def test_a_node_that_is_gone_asks_for_nothing() -> None:
    assert report_interval_seconds(None) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"\xff",
        b'{"version":2,"node":"n1"}',
        b'{"version":1,"node":"n1","strategy":{"report_interval_seconds":"often"}}',
    ],
)
def test_a_record_that_cannot_be_read_says_so(value: bytes) -> None:
    with pytest.raises(RecordError):
        report_interval_seconds(value)
