"""The recorded cases of how kube-scheduler talks: our reader of questions, and our stand-in."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.extender.protocol import read_question
from tests.extender.scheduler import add_scores, read_filter

CASES = {
    group["group"]: group["cases"]
    for group in json.loads(
        (Path(__file__).parents[1] / "data" / "vectors" / "extender.json").read_bytes()
    )["groups"]
}


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", CASES[group], ids=lambda case: str(case["name"]))


@cases("extender_request")
def test_requests_are_understood(case: dict[str, Any]) -> None:
    body = case["expected"]["body"]
    question = read_question(msgspec.json.encode(body))
    sent = [node["metadata"]["name"] for node in case["input"]["nodes"]]
    assert list(question.names) == sent
    assert question.pod.title == "d/p"
    assert [json.loads(bytes(node)) for node in question.nodes or ()] == body["Nodes"]["items"]


@cases("extender_filter_reply")
def test_stand_in_reads_filter_replies_as_the_scheduler_does(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    outcome = read_filter(
        given["http_status"],
        given["reply"],
        sent=given["sent_nodes"],
        node_cache_capable=given["node_cache_capable"],
        ignorable=given["ignorable"],
    )
    assert outcome._asdict() == expected


@cases("extender_prioritize_total")
def test_stand_in_adds_scores_as_the_scheduler_does(case: dict[str, Any]) -> None:
    replies = [
        (one["weight"], one.get("http_status", 200), one["reply"])
        for one in case["input"]["extenders"]
    ]
    assert add_scores(case["input"]["plugin_totals"], replies) == case["expected"]["totals"]
