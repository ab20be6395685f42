"""`springtide accuracy`: the scores of judged peaks from the topic."""

import json

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import accuracy
from pipeline.cli.main import cli
from pipeline.processors.explain.quantity_text import format_age
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.codec import encode_json
from tests.cli.fake_topic import fake_topic
from tests.processors.accuracy.test_judged_peaks import record
from tests.table.records import NOW


def run(
    monkeypatch: pytest.MonkeyPatch, records: list[AccuracyRecord | bytes], *arguments: str
) -> Result:
    values = [each if isinstance(each, bytes) else encode_json(each) for each in records]

    fake_topic(monkeypatch, accuracy, "springtide.accuracy", [values], 7 * 86_400)
    return CliRunner().invoke(cli, ["accuracy", *arguments])


RECORDS: list[AccuracyRecord | bytes] = [
    record((400.0, 100.0), (500.0, 50.0), hour=1),
    b"\xff{",
    record((600.0, 100.0), (500.0, 50.0), hour=2),
    record((600.0, 100.0), (500.0, 50.0), hour=2),
    record((800.0, 100.0), (500.0, 50.0), node="node-b", hour=2),
    record((800.0, 100.0), (500.0, 50.0), known=(0.5, 0.5), node="node-b", hour=3),
    # Without requests there is nothing to judge.
    record((0.0, 0.0), (500.0, 50.0), (0.0, 0.0), node="node-b", hour=4),
]
AGE = format_age(NOW - 26 * 3600)
"""Of the peak of hour 2: the one of hour 3 was not judged."""


def test_scores_are_shown_by_pool_predictor_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, RECORDS)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()][:2] == [
        ["POOL", "PREDICTOR", "RESOURCE", "NODES", "JUDGED", "VIOLATION", "P90-NODE", "SEVERITY",
         "SAVINGS", "POSSIBLE", "UNJUDGED", "AGE"],
        ["large", "percentile", "cpu", "2", "3", "25.0%", "45.0%", "20.0%", "35.0%", "50.0%",
         "1", AGE],
    ]  # fmt: skip
    assert "warning: skipped a record of springtide.accuracy" in result.stderr


def test_json_has_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, memory = json.loads(run(monkeypatch, RECORDS, "-o", "json").stdout)["items"]
    assert cpu == {
        "pool": "large", "predictor": "percentile", "resource": "cpu", "nodes": 2, "judged": 3,
        "violation": 0.25, "violation_p90": 0.45, "severity": pytest.approx(0.2),
        "savings": pytest.approx(0.35), "possible_savings": 0.5,
        "unjudged": 1, "judged_until": "1970-01-02T02:00:00Z",
    }  # fmt: skip
    assert (memory["violation"], memory["severity"]) == (0.0, None)


def test_nothing_judged_is_an_error_that_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [])
    assert result.exit_code == 4
    assert "no peak was judged in this time" in result.stderr
    assert "horizon" in result.stderr


def test_more_than_the_topic_keeps_is_refused() -> None:
    result = CliRunner().invoke(cli, ["accuracy", "--since", "31d"])
    assert (result.exit_code, "is more than 30 days ago" in result.stderr) == (2, True)
