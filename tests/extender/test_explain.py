"""Explanations agree with filter and prioritize, and have no effect."""

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import ManualClock
from pipeline.extender import limits
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.query_api import EXPLAIN_KEYS
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from tests.extender.conftest import ALL, POD, Client, Post, Start, cluster
from tests.extender.test_decisions import NAMES, asked, changes, put
from tests.extender.test_fuzz import json_values, quick
from tests.extender.test_scheduler_api import FULL, HOT, REFUSED
from tests.table.records import GIB, NOW, any_pod, node_state, table_of

RULES = rules_of(ExtenderSettings())


async def ask(client: Client, body: Any, status: int = 200) -> Any:
    response = await client.post("/v1/explain", json=body)
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    return await response.json()


async def test_nodes_are_explained_in_the_order_of_the_request(start: Start) -> None:
    result = await ask(await start(mode="observe"), {"pod": POD, "nodeNames": ALL})
    assert (result["apiVersion"], result["kind"]) == ("springtide/v1", "PlacementExplanation")
    pod = result["pod"]
    assert (result["mode"], pod["namespace"], pod["name"]) == ("observe", "d", "p")
    assert result["weights"] == {"LoadAwareScheduling": 1, "PredictedHeadroom": 1}
    items = {item["node"]: item for item in result["items"]}
    assert list(items) == ALL
    assert items["idle"] == {
        "node": "idle", "verdict": "passed", "reason": None, "detail": None,
        "score": 85, "extender_score": 8, "plugins": {"LoadAwareScheduling": 85},
        "estimated": [], "dispute": None, "age_seconds": 10.0, "stale": False, "new": False,
    }  # fmt: skip
    assert items["hot"] == items["hot"] | {
        "score": None, "extender_score": None, "plugins": {},
    }  # fmt: skip
    assert [f"{name}: {items[name]['detail']}" for name in ("hot", "full")] == [HOT, FULL]
    assert {name: items[name]["reason"] for name in REFUSED} == REFUSED
    assert items["blind"]["estimated"] == ["cpu", "memory"]
    verdicts = {name: item["verdict"] for name, item in items.items()}
    assert verdicts == {
        "idle": "passed", "busy": "passed", "hot": "refused", "full": "refused", "old": "unknown",
        "blind": "estimated", "stranger": "unknown",
    }  # fmt: skip
    ages = [(items[name]["stale"], items[name]["age_seconds"]) for name in ("old", "stranger")]
    assert ages == [(True, 180.0), (True, None)]


async def test_a_body_larger_than_pod_and_names_is_refused_unread(start: Start) -> None:
    client = await start()
    body = msgspec.json.encode({"pod": POD, "nodeNames": ["a"]})
    for size, status in ((limits.MAX_EXPLAIN_BYTES, 200), (limits.MAX_EXPLAIN_BYTES + 1, 413)):
        padded = body + b" " * (size - len(body))
        response = await client.post("/v1/explain", data=padded)
        assert response.status == status
    answer = await response.json()
    assert answer["Error"] == "the body is larger than 16.2 MiB"
    assert "at most 50000 nodes" in answer["Hint"]


async def test_without_names_all_nodes_are_explained(start: Start) -> None:
    client = await start()
    for names in ({}, {"nodeNames": None}):
        result = await ask(client, {"pod": POD, **names})
        assert [item["node"] for item in result["items"]] == sorted(set(ALL) - {"stranger"})
    assert (await ask(client, {"pod": POD, "nodeNames": []}))["items"] == []
    twice = await ask(client, {"pod": POD, "nodeNames": ["hot", "idle", "hot"]})
    assert [item["node"] for item in twice["items"]] == ["hot", "idle"]


async def test_without_names_nodes_without_a_node_object_are_left_out(start: Start) -> None:
    """A scheduler never asks about them: they would count in the rank of others."""
    table = cluster()
    table.put_node(TableNode(node="busy"))
    table.put_node(TableNode(node="silent"))
    client = await start(table=table)
    result = await ask(client, {"pod": POD})
    assert [item["node"] for item in result["items"]] == ["busy", "silent"]
    result = await ask(client, {"pod": POD, "nodeNames": ["hot"]})
    assert [item["node"] for item in result["items"]] == ["hot"]


async def test_a_node_with_nothing_but_an_expired_placement_is_removed(start: Start) -> None:
    table, clock = cluster(), ManualClock(NOW)
    client = await start(table=table, clock=clock)
    table.place(read_manifest(msgspec.Raw(msgspec.json.encode(POD))), "busy", NOW)
    table.drop_state("busy")
    assert "busy" in [item["node"] for item in (await ask(client, {"pod": {}}))["items"]]
    await clock.advance(10.0)
    assert "busy" not in [item["node"] for item in (await ask(client, {"pod": {}}))["items"]]


async def test_a_pod_record_is_explained_like_its_pod(start: Start) -> None:
    record = PodRecord(node="hot", uid="u", cgroup_uid="u", namespace="shop", name="web-0")
    body = b'{"podRecord": %s, "nodeNames": ["hot"]}' % encode_json(record)
    result = await (await (await start()).post("/v1/explain", data=body)).json()
    assert (result["pod"]["name"], result["pod"]["node"]) == ("web-0", "hot")
    assert result["items"][0]["verdict"] == "refused"


async def test_pods_of_daemon_sets_pass_everywhere(start: Start) -> None:
    pod = {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "d"}]}}
    result = await ask(await start(), {"pod": pod, "nodeNames": ["hot", "idle"]})
    assert [item["verdict"] for item in result["items"]] == ["exempt", "exempt"]
    assert result["items"][0]["score"] is not None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body is not JSON"),
        (b"[]", "body: Expected `object`, got `array`"),
        (b"{}", "neither pod nor podRecord"),
        (b'{"pod": null}', "neither pod nor podRecord"),
        (b'{"pod": {}, "podRecord": {}}', "both pod and podRecord"),
        (b'{"Pod": {}}', "unknown field `Pod`"),
        (b'{"pod": {}, "nodenames": ["a"]}', "unknown field `nodenames`"),
        (b'{"pod": {"kind": 3}}', "pod: Expected `str | null`"),
        (b'{"pod": 1}', "pod: Expected `object`"),
        (b'{"pod": {"metadata": {"name": 5}}}', "pod: Expected `str`"),
        (b'{"pod": {"spec": {"containers": [{}]}}}', "pod: "),
        (b'{"podRecord": {}}', "pod: "),
        (b'{"pod": {}, "nodeNames": "a"}', "Expected `array | null`"),
        (b'{"pod": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
    ],
)
async def test_an_invalid_request_is_answered_with_its_problem(
    start: Start, body: bytes, says: str
) -> None:
    response = await (await start()).post("/v1/explain", data=body)
    reply = await response.json()
    assert (response.status, reply["Hint"]) == (400, f"send {EXPLAIN_KEYS}")
    assert says in reply["Error"]


async def test_a_workload_is_not_accepted_as_a_pod(start: Start) -> None:
    reply = await ask(await start(), {"pod": {"kind": "Deployment", "spec": {}}}, 400)
    assert reply == {
        "Error": "pod: a Deployment is no Pod", "Hint": "send the Pod that its template makes",
    }  # fmt: skip


async def test_until_caught_up_explain_answers_503(start: Start) -> None:
    reply = await ask(await start(mode="observe", caught_up=False), {"pod": POD}, 503)
    assert "catching up" in reply["Error"]
    assert "/readyz" in reply["Hint"]


# -- agreement with filter and prioritize


@quick
@given(body=st.dictionaries(st.sampled_from(["pod", "podRecord", "nodeNames"]), json_values))
def test_any_json_is_answered(post: Post, body: Any) -> None:
    status, reply = post("/v1/explain", msgspec.json.encode(body))
    assert status in (200, 400)
    assert reply["items"] is not None if status == 200 else reply["Error"]


amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["100m", "1", "3", 2]),
        "memory": st.sampled_from(["64Mi", "8Gi", "15Gi"]),
    },
)
manifests = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b"])},
            optional={"ownerReferences": st.just([{"kind": "DaemonSet", "name": "d"}])},
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.just("c"),
                            "resources": st.fixed_dictionaries(
                                {"requests": amounts, "limits": amounts}
                            ),
                        }
                    ),
                    max_size=2,
                )
            }
        ),
    }
)


uids = itertools.count()


@quick
@given(pod=manifests, names=st.lists(st.sampled_from(ALL), unique=True, max_size=7))
def test_explain_agrees_with_filter_and_prioritize(
    post: Post, pod: dict[str, Any], names: list[str]
) -> None:
    # Pods of earlier examples still count, so each example needs its own UID.
    pod["metadata"]["uid"] = f"u{next(uids)}"
    _, explained = post("/v1/explain", msgspec.json.encode({"pod": pod, "nodeNames": names}))
    body = {"Pod": pod, "NodeNames": names}
    _, filtered = post("/filter", msgspec.json.encode(body))
    passing = [item["node"] for item in explained["items"] if item["verdict"] != "refused"]
    assert filtered["NodeNames"] == passing
    assert filtered["FailedAndUnresolvableNodes"] == {
        item["node"]: item["reason"] for item in explained["items"] if item["reason"] is not None
    }
    if len(passing) == 1:
        return  # the pod is placed on an only node at once, and no scheduler asks for scores
    _, scored = post("/prioritize", msgspec.json.encode(body | {"NodeNames": passing}))
    assert [(score["Host"], score["Score"]) for score in scored] == [
        (item["node"], item["extender_score"])
        for item in explained["items"]
        if item["node"] in passing
    ]


# -- no effect


def everything(table: Table) -> list[Any]:
    """Everything of the table that decisions read."""
    rows, pods = table.lookup(NAMES), table.pods
    for _ in range(2):  # the first pass takes measured pods out of flight
        for row in rows.tolist():
            pods.usage_changed(row)
        table.bring_up_to_date(NOW)
    return [
        list(table), pods.tentative, pods.in_flight, len(pods), table.version,
        *(pods.sums_of(name, rows).tolist() for name in pods.counting.names),
        *(np.array(getattr(pods, name)[rows]).tolist()
          for name in ("flight", "prod_flight", "unmeasured", "oldest")),
    ]  # fmt: skip


@settings(max_examples=60)
@given(changes, asked, st.sampled_from([*NAMES, None]))
def test_a_placed_pod_is_explained_as_unplaced_and_stays_placed(
    given_changes: list[Any], pod: PodRecord, node: str | None
) -> None:
    tables = [Table(counting=RULES.counting) for _ in range(2)]
    deciders = []
    for table in tables:
        for change in given_changes:
            put(table, change)
        decisions = Decisions(table, RULES)
        if node is not None:
            decisions.place(pod, node, NOW)
        deciders.append(decisions)
    untouched = everything(tables[0])
    explained = deciders[0].explain(pod, NAMES, NOW)
    assert everything(tables[0]) == untouched
    filtered = deciders[1].filter(pod, NAMES, NOW)
    for place in range(len(NAMES)):
        kind = filtered.refusals.kind(place)
        assert kind == explained.refusals.kind(place)
        if kind is not None:
            assert filtered.refusals.detail(place) == explained.refusals.detail(place) != ""
    passing = [NAMES[index] for index in explained.passed]
    scored = deciders[1].prioritize(pod, passing, NOW)
    assert scored.steps.tolist() == explained.scores.steps.tolist()
    assert scored.percent.tolist() == explained.scores.percent.tolist()
    # An explanation in between does not discard the work of filter.
    again = Decisions(tables[0], RULES)
    again.filter(pod, NAMES, NOW)
    again.explain(pod, NAMES, NOW)
    assert again.prioritize(pod, passing, NOW).cycle == "reused"


def test_explaining_repeatedly_gives_the_same_result() -> None:
    table = table_of(*(node_state(name, cpu=1.0, memory=GIB) for name in "ab"))
    decisions = Decisions(table, RULES)
    pod = any_pod("u")
    runs = []
    for number in range(4):
        if number == 3:  # on the node where it is placed it does not count twice
            decisions.place(pod, "a", NOW)
        runs.append(decisions.explain(pod, ["a", "b"], NOW).scores.percent.tolist())
    assert runs == [runs[0]] * 4


def test_the_next_pod_sees_a_placed_pod_that_was_explained() -> None:
    table = table_of(*(node_state(name, cpu=1.0, memory=GIB) for name in "ab"))
    decisions, rows = Decisions(table, RULES), table.lookup(["a", "b"])
    pod = any_pod("u", requests=Resources(cpu_millicores=1000, memory_bytes=1 << 30))
    decisions.place(pod, "a", NOW)
    table.bring_up_to_date(NOW)
    flying = table.pods.flight[rows].tolist()
    assert flying[0][0] > 0
    decisions.explain(pod, ["a", "b"], NOW)
    table.bring_up_to_date(NOW)
    assert table.pods.flight[rows].tolist() == flying
