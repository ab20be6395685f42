"""`springtide topics table|acls` as JSON."""

import json

from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.topics.access import ROLES
from pipeline.topics.registry import TOPICS


def test_topics_are_listed_as_json() -> None:
    shown = CliRunner().invoke(cli, ["topics", "table", "-o", "json"])
    items = json.loads(shown.stdout)["items"]
    assert [item["topic"] for item in items] == [f"springtide.{topic.name}" for topic in TOPICS]
    assert {item["retention"] for item in items} == {topic.retention_text for topic in TOPICS}


def test_rights_are_listed_as_json() -> None:
    shown = CliRunner().invoke(cli, ["topics", "acls", "-o", "json"])
    items = json.loads(shown.stdout)["items"]
    assert len({item["user"] for item in items}) == len(ROLES)
    assert {*items[0]} == {"user", "resource", "name", "operation"}
