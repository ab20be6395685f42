"""Names and configuration of all topics, and their documentation."""

import importlib
import re

import pytest

from pipeline.topics.registry import DAY_MS, HOUR_MS, TOPICS, Topic


def test_names_are_unique_and_lower_case() -> None:
    names = [topic.name for topic in TOPICS]
    assert len(set(names)) == len(names) == 21
    # Names of Kafka's metrics do not tell `.` from `_`.
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda t: t.name)
def test_settings_of_every_topic(topic: Topic) -> None:
    config = topic.config()
    assert config["message.timestamp.type"] == "LogAppendTime"
    if topic.retention_ms is not None:
        assert config["cleanup.policy"] == "delete"
        assert topic.retention_ms >= DAY_MS
        assert config["retention.ms"] == str(topic.retention_ms)
        # A segment is deleted as a whole, when its newest record is old enough. Without a limit of
        # its age a quiet partition keeps a record for a week longer, the default of brokers.
        assert 0 < int(config["segment.ms"]) <= topic.retention_ms / 8
        assert "delete.retention.ms" not in config
    else:
        assert config["cleanup.policy"] == "compact"
        assert int(config["segment.ms"]) <= HOUR_MS
        assert 0.1 <= float(config["min.cleanable.dirty.ratio"]) <= 0.3
        assert int(config["delete.retention.ms"]) >= DAY_MS
        if topic.compaction_lag_ms:
            assert config["min.compaction.lag.ms"] == str(topic.compaction_lag_ms)
            # No more waits for the cleaner than in other topics.
            assert int(config["segment.ms"]) + topic.compaction_lag_ms <= HOUR_MS
    assert topic.partition_count(16) == (1 if topic.name == "fleet" else 16)
    assert topic.full_name("tide.test") == f"tide.test.{topic.name}"


def test_the_log_outlives_the_samples() -> None:
    by_name = {topic.name: topic for topic in TOPICS}
    windows, samples = by_name["windows"].retention_ms, by_name["samples"].retention_ms
    assert windows is not None
    assert samples is not None
    assert windows > samples


@pytest.mark.parametrize("topic", TOPICS, ids=lambda t: t.name)
def test_every_written_topic_has_a_record_module(topic: Topic) -> None:
    assert importlib.import_module(f"pipeline.topics.{topic.record}").__doc__
