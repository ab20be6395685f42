"""The recorded cases of how kube-scheduler talks: our reader of questions, and our stand-in."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.extender.preemption import preemption_answer, read_preemption
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


@cases("extender_preempt_meta")
@pytest.mark.parametrize("is_whole", [False, True])
def test_victims_are_told_by_uid_however_they_are_asked_about(
    case: dict[str, Any], is_whole: bool
) -> None:
    """A scheduler sends whole Pods to an extender that keeps no nodes, and takes UIDs alone."""
    victims = {}
    for node, of in case["input"]["victims"].items():
        whole = [{"metadata": {"name": one["name"], "uid": one["uid"]}} for one in of["pods"]]
        pods = whole if is_whole else [{"UID": one["uid"]} for one in of["pods"]]
        victims[node] = {"Pods": pods, "NumPDBViolations": of["pdb"]}
    key = "NodeNameToVictims" if is_whole else "NodeNameToMetaVictims"
    question = read_preemption(msgspec.json.encode({"Pod": {"metadata": {}}, key: victims}))
    assert msgspec.json.decode(preemption_answer(question, [*victims])) == case["expected"]


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
