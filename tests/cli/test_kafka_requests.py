"""A command that waits for Kafka says so."""

import asyncio

import pytest

from pipeline.cli import kafka_requests
from pipeline.cli.kafka_requests import run_requests
from pipeline.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="kafka-0:9092")


async def answer_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "answer"


def test_a_wait_for_kafka_is_reported_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_requests(KAFKA, answer_after(0)) == "answer"
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(kafka_requests, "NOTICE_SECONDS", 0.01)
    assert run_requests(KAFKA, answer_after(0.2)) == "answer"
    assert capsys.readouterr() == ("", "waiting for Kafka at kafka-0:9092 ...\n")
