import asyncio
import json
import logging
from itertools import product
from time import perf_counter
from typing import Any, get_args

import pytest

from pipeline.extender import error_answers, limits, stage_timing
from pipeline.extender.decisions import CycleReuse, Decisions
from pipeline.table import Table
from tests.extender.conftest import ALL, POD, Client, Start, cluster, extender, metric
from tests.extender.scheduler import read_filter, unschedulable_message
from tests.table.records import GIB, node_state, table_of

REFUSED = {
    "hot": "node(s) cpu usage exceed threshold", "full": "node(s) memory usage exceed threshold"
}  # fmt: skip
HOT = (
    "hot: cpu usage would be 96.2% of 4000m, over the threshold of 65%: "
    "3600m used 12 s ago + 250m for this pod"
)
FULL = (
    "full: memory usage would be 100.6% of 16.0Gi, over the threshold of 95%: "
    "15.9Gi used 10 s ago + 200Mi for this pod"
)
PASSING = ["idle", "busy", "old", "blind", "stranger"]


def full_nodes(names: list[str]) -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": name, "labels": {"ä": "ß"}}, "spec": {"x": [1.50, None]}}
        for name in names
    ]


async def ask(client: Client, verb: str, body: Any, status: int = 200) -> Any:
    response = await client.post(f"/{verb}", json=body)
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    return await response.json()


async def test_filter_in_the_form_with_names(start: Start) -> None:
    reply = await ask(await start(), "filter", {"Pod": POD, "Nodes": None, "NodeNames": ALL})
    assert reply == {
        "Nodes": None, "NodeNames": PASSING, "FailedNodes": {},
        "FailedAndUnresolvableNodes": REFUSED, "Error": "",
    }  # fmt: skip
    outcome = read_filter(200, reply, sent=ALL, node_cache_capable=True)
    assert (outcome.feasible, outcome.unresolvable) == (PASSING, REFUSED)


async def test_prioritize_without_nodes_answers_with_an_empty_list(start: Start) -> None:
    client = await start(mode="act", table=cluster())
    head = b'{"Pod":%s,"NodeNames":' % json.dumps(POD).encode()
    response = await client.post("/filter", data=head + b'["hot","full"]}')
    assert (await response.json())["NodeNames"] == []
    response = await client.post("/prioritize", data=head + b"[]}")
    assert (response.status, await response.json()) == (200, [])


async def test_filter_in_the_form_with_nodes_passes_them_back_unchanged(start: Start) -> None:
    nodes = full_nodes(ALL)
    body = {"Pod": POD, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    reply = await ask(await start(), "filter", body)
    assert reply["NodeNames"] is None
    assert reply["Nodes"]["items"] == [n for n in nodes if n["metadata"]["name"] in PASSING]
    assert read_filter(200, reply, sent=ALL, node_cache_capable=False).feasible == PASSING


async def test_prioritize_scores_the_least_used_best(start: Start) -> None:
    reply = await ask(await start(), "prioritize", {"Pod": POD, "NodeNames": ALL})
    # Left with the pod, which asks for nothing: idle 83 and 88%, hot 3 and 48, full 68 and 0.
    scores = {"idle": 8, "busy": 4, "hot": 2, "full": 3, "old": 0, "blind": 0, "stranger": 0}
    assert reply == [{"Host": node, "Score": score} for node, score in scores.items()]
    assert all(type(entry["Score"]) is int for entry in reply)


async def test_prioritize_with_whole_nodes(start: Start) -> None:
    body = {"Pod": POD, "Nodes": {"items": full_nodes(["busy", "idle"])}}
    reply = await ask(await start(), "prioritize", body)
    assert reply == [{"Host": "busy", "Score": 4}, {"Host": "idle", "Score": 8}]


async def test_the_condition_of_a_pod_that_10_000_hot_nodes_refuse_is_one_line(
    start: Start,
) -> None:
    """As a scheduler model without the scheduler's own filters writes it."""
    names = [f"node-{number:05}" for number in range(10_000)]
    hot = (
        node_state(name, cpu=3.5 + number / 50_000, memory=(8 + number % 8) * GIB, age=number / 1e3)
        for number, name in enumerate(names)
    )
    client = await start(extender(table_of(*hot)))
    before = metric("refusals_total", mode="act", reason=REFUSED["hot"])
    reply = await ask(client, "filter", {"Pod": POD, "NodeNames": names[::-1]})
    outcome = read_filter(200, reply, sent=names, node_cache_capable=True)
    assert outcome.unresolvable == dict.fromkeys(names, REFUSED["hot"])
    assert unschedulable_message(outcome, len(names)) == (
        "0/10000 nodes are available: 10000 node(s) cpu usage exceed threshold."
    )
    assert metric("refusals_total", mode="act", reason=REFUSED["hot"]) == before + 10_000


async def test_observe_passes_all_and_logs_what_act_would_answer(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    before = metric("verdicts_total", mode="observe", verdict="refused")

    def counted() -> dict[str, float]:
        return {
            reason: metric("refusals_total", mode="observe", reason=reason)
            for reason in REFUSED.values()
        }

    refusals = counted()
    client = await start(mode="observe")
    with caplog.at_level(logging.INFO):
        filtered = await ask(client, "filter", {"Pod": POD, "NodeNames": ALL})
        scored = await ask(client, "prioritize", {"Pod": POD, "NodeNames": ALL})
    assert (filtered["NodeNames"], filtered["FailedAndUnresolvableNodes"]) == (ALL, {})
    assert {entry["Score"] for entry in scored} == {0}
    assert metric("verdicts_total", mode="observe", verdict="refused") == before + 2
    logged = [record.fields for record in caplog.records if record.msg == "would-be answer"]  # type: ignore[attr-defined]
    assert logged[0]["answer"] == [HOT, FULL]
    assert logged[0]["reasons"] == dict.fromkeys(REFUSED.values(), 1)
    assert counted() == {reason: count + 1 for reason, count in refusals.items()}
    counts = {name: logged[0][name] for name in ("passed", "refused", "unknown", "estimated")}
    assert counts == {"passed": 2, "refused": 2, "unknown": 2, "estimated": 1}
    assert (logged[1]["verb"], logged[1]["best"], logged[1]["answer"]) == ("prioritize", 8, "idle")


async def test_answers_are_logged_once_a_second_with_the_number_suppressed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start()
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            await ask(client, "filter", {"Pod": POD, "NodeNames": ALL})
    assert sum(record.msg == "answer" for record in caplog.records) == 1


async def test_a_pod_waits_that_every_node_refuses_until_one_does_not(start: Start) -> None:
    client = await start(mode="act")
    pod = POD | {"metadata": POD["metadata"] | {"uid": "waits"}}
    for names, waiting in (([*REFUSED], 1), (ALL, 0)):
        await ask(client, "filter", {"Pod": pod, "NodeNames": names})
        assert metric("waiting_pods") == waiting


async def test_pods_of_daemon_sets_pass_everywhere(start: Start) -> None:
    pod = {"metadata": {"name": "p", "ownerReferences": [{"kind": "DaemonSet", "name": "d"}]}}
    assert (await ask(await start(), "filter", {"Pod": pod, "NodeNames": ALL}))["NodeNames"] == ALL


async def test_until_caught_up_observe_passes_all_and_act_answers_503(start: Start) -> None:
    observing = await start(mode="observe", caught_up=False)
    body = {"Pod": POD, "NodeNames": ALL}
    assert (await ask(observing, "filter", body))["NodeNames"] == ALL
    assert {entry["Score"] for entry in await ask(observing, "prioritize", body)} == {0}
    acting = await start(mode="act", caught_up=False)
    for verb in error_answers.VERBS:
        reply = await ask(acting, verb, body, 503)
        assert reply["Error"] == "the state table is not caught up: catching up"
        assert "ignorable" in reply["Hint"]
    assert (await acting.get("/v1/nodes")).status == 503


async def test_ready_only_when_caught_up_and_alive_always(start: Start) -> None:
    for caught_up, *expected in ((False, 503, "catching up"), (True, 200, "following")):
        client = await start(caught_up=caught_up)
        assert (await client.get("/healthz")).status == 200
        response = await client.get("/readyz")
        assert [response.status, (await response.json())["table"]] == expected


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"Pod": POD, "NodeNames": []}, []),
        ({"pod": POD, "nodenames": ["idle"], "nodes": None}, ["idle"]),
        ({"POD": POD, "NODENAMES": ["idle"], "More": {"a": 1}}, ["idle"]),
        ({"Pod": POD, "NodeNames": ["idle", "hot", "idle", "hot"]}, ["idle"]),
        ({"Pod": {}, "NodeNames": ["", "ä b", "x" * 300]}, ["", "ä b", "x" * 300]),
        ({"Pod": {"metadata": {}, "spec": {"containers": []}}, "NodeNames": ["idle"]}, ["idle"]),
    ],
)
async def test_unusual_requests_have_ordinary_answers(
    start: Start, body: Any, names: list[str]
) -> None:
    client = await start()
    reply = await ask(client, "filter", body)
    assert reply["NodeNames"] == names
    assert set(reply) == {
        "Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error",
    }  # fmt: skip
    hosts = [entry["Host"] for entry in await ask(client, "prioritize", body)]
    assert len(hosts) == len(set(hosts))


@pytest.mark.parametrize("nodes", [{}, {"items": None}, {"items": []}, {"metadata": {}}])
async def test_an_empty_list_of_nodes_is_answered_in_its_form(start: Start, nodes: Any) -> None:
    reply = await ask(await start(), "filter", {"Pod": POD, "Nodes": nodes})
    assert (reply["Nodes"], reply["NodeNames"]) == ({"metadata": {}, "items": []}, None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body is not JSON"),
        (b"{", "body is not JSON"),
        (b"null", "body: Expected `object`, got `null`"),
        (b"[]", "body: Expected `object`, got `array`"),
        (b'{"\xff": 1}', "body is not JSON"),
        (b"{}", "Pod is missing"),
        (b'{"Pod": null, "NodeNames": []}', "Pod: Expected `object`, got `null`"),
        (b'{"Pod": {}}', "neither NodeNames nor Nodes"),
        (b'{"Pod": {}, "Nodes": null, "NodeNames": null}', "neither NodeNames nor Nodes"),
        (b'{"Pod": {}, "Nodes": {}, "NodeNames": []}', "both NodeNames and Nodes"),
        (b'{"Pod": {}, "NodeNames": "a"}', "NodeNames: Expected `array | null`, got `str`"),
        (b'{"Pod": {}, "NodeNames": ["a", 1]}', "NodeNames: Expected `str`, got `int` - at `$[1]`"),
        (b'{"Pod": {}, "Nodes": []}', "Nodes: Expected `object | null`, got `array`"),
        (b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "a"}}, {}]}}',
         "Nodes: Object missing required field `metadata` - at `$.items[1]`"),
        (b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": 5}}]}}',
         "Nodes: Expected `str`, got `int` - at `$.items[0].metadata.name`"),
        (b'{"Pod": {"metadata": {"name": 5}}, "NodeNames": []}', "Pod: Expected `str`"),
        (b'{"Pod": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
    ],
)  # fmt: skip
async def test_an_invalid_request_is_answered_with_its_problem(
    start: Start, body: bytes, says: str
) -> None:
    client = await start()
    for verb in ("filter", "prioritize"):
        response = await client.post(f"/{verb}", data=body)
        reply = await response.json()
        assert response.status == 400
        assert says in reply["Error"]


async def test_a_long_name_of_a_node_is_cut_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    client, names = await start(mode="act"), ["x" * 1_000_000]
    hint = {"scheduling.koordinator.sh/scheduling-hint": '{"nodeNames":["a"]}'}
    with caplog.at_level(logging.INFO):
        await ask(client, "prioritize", {"Pod": POD, "NodeNames": names})
        hinted = {"metadata": {"annotations": hint}}
        await ask(client, "filter", {"Pod": hinted, "NodeNames": names})
    answers = [r.fields["answer"] for r in caplog.records if r.msg == "answer"]  # type: ignore[attr-defined]
    assert (len(answers), len(str(answers)) < 1000) == (2, True)


async def test_unknown_paths_and_methods_are_answered_with_what_exists(start: Start) -> None:
    client = await start()
    reply = await ask(client, "bind", {}, 404)
    assert reply == {
        "Error": "no such path: /bind",
        "Hint": "this extender has GET /console, POST /filter, POST /prioritize, POST /preempt; "
        "GET /openapi.json lists the others",
    }
    response = await client.get("/filter")
    assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_bodies_with_wrong_headers_are_refused(start: Start) -> None:
    headers = {"Content-Encoding": "gzip"}
    response = await (await start()).post("/filter", data=b"junk", headers=headers)
    assert response.status == 400
    answer = await response.json()
    assert answer["Error"] == "the body is not readable: Can not decode content-encoding: gzip"
    assert "Content-Encoding" in answer["Hint"]


async def test_a_body_over_the_limit_is_refused_with_a_hint(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 1000)
    reply = await ask(await start(), "filter", {"Pod": POD, "NodeNames": ["a" * 1000]}, 413)
    assert "nodeCacheCapable" in reply["Hint"]


async def test_a_body_that_never_ends_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT_SECONDS", 0.1)

    async def trickle() -> Any:
        yield b'{"Pod":'
        await asyncio.sleep(0.5)
        yield b"{}"

    response = await (await start()).post("/filter", data=trickle())
    assert (response.status, "did not arrive" in (await response.json())["Error"]) == (400, True)


async def test_five_thousand_whole_nodes_are_answered(start: Start) -> None:
    filler = "x" * 6000
    nodes = [{"metadata": {"name": f"n{i}"}, "status": {"images": filler}} for i in range(5000)]
    body = json.dumps({"Pod": POD, "Nodes": {"items": nodes}}).encode()
    response = await (await start()).post("/filter", data=body)
    assert (response.status, (await response.json())["Nodes"]["items"]) == (200, nodes)


async def test_whole_nodes_that_hold_up_other_requests_are_reported_once(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "pipeline.extender")
    client = await start()
    whole = {"Pod": POD, "Nodes": {"items": full_nodes(ALL)}}
    await ask(client, "filter", whole)
    assert not caplog.records
    monkeypatch.setattr(limits, "WARNED_BODY_BYTES", 100)
    await ask(client, "filter", {"Pod": POD, "NodeNames": ALL})
    assert not caplog.records
    for _ in range(2):
        await ask(client, "filter", whole)
    (record,) = caplog.records
    assert "whole Nodes" in record.message
    assert "nodeCacheCapable: true" in record.fields["hint"]  # type: ignore[attr-defined]


async def test_node_states_are_served(start: Start) -> None:
    client = await start()
    listed = await (await client.get("/v1/nodes")).json()
    assert (listed["apiVersion"], listed["kind"]) == ("springtide/v1", "NodeStateList")
    assert [item["node"] for item in listed["items"]] == sorted(set(ALL) - {"stranger"})
    shown = {item["node"]: (item["age_seconds"], item["stale"]) for item in listed["items"]}
    assert (shown["hot"], shown["old"]) == ((12.0, False), (180.0, True))
    entry = await (await client.get("/v1/nodes/hot")).json()
    expected = {
        "kind": "NodeState", "usage": {"cpu_cores": 3.6, "memory_bytes": 8 * 2**30},
        "age_seconds": 12.0, "oddities": [], "usage_thresholds_problem": None,
    }  # fmt: skip
    assert entry | expected == entry
    odd = {item["node"]: item["oddities"] for item in listed["items"] if item["oddities"]}
    assert odd == {"old": ["stale"], "blind": ["missing"]}
    missing = await client.get("/v1/nodes/stranger")
    assert missing.status == 404
    assert "'stranger' is unknown" in (await missing.json())["Error"]


async def test_an_empty_table_is_an_empty_list(start: Start) -> None:
    client = await start(table=Table())
    assert (await (await client.get("/v1/nodes")).json())["items"] == []
    assert (await ask(client, "filter", {"Pod": POD, "NodeNames": ALL}))["NodeNames"] == ALL


async def test_metrics_count_requests_and_verdicts(start: Start) -> None:
    client = await start()
    await ask(client, "filter", {"Pod": POD, "NodeNames": ALL})
    text = await (await client.get("/metrics")).text()
    assert all(
        f"springtide_extender_{series}" in text
        for series in (
            'requests_total{status="200",verb="filter"}',
            'request_seconds_bucket{le="0.001",verb="filter"}',
            'verdicts_total{mode="act",verdict="refused"}',
        )
    ), text


async def test_metrics_count_how_much_of_filters_work_was_reused(start: Start) -> None:
    def counted() -> dict[str, float]:
        outcomes = get_args(CycleReuse)
        return {outcome: metric("cycles_total", outcome=outcome) for outcome in outcomes}

    table, before = cluster(), counted()
    client = await start(table=table)
    for change in (lambda: None, lambda: table.put_state(node_state("idle", offset=1))):
        passed = (await ask(client, "filter", {"Pod": POD, "NodeNames": ALL}))["NodeNames"]
        change()
        await ask(client, "prioritize", {"Pod": POD, "NodeNames": passed})
    await ask(client, "prioritize", {"Pod": POD, "NodeNames": ["idle"]})
    more = {outcome: total - before[outcome] for outcome, total in counted().items()}
    assert more == {"reused": 1.0, "rows": 1.0, "anew": 1.0}


async def test_every_stage_of_an_answer_is_timed(start: Start) -> None:
    def measured() -> dict[tuple[str, str], tuple[float, float]]:
        stages = product(get_args(stage_timing.Verb), get_args(stage_timing.Stage))
        return {
            (verb, stage): (
                metric("stage_seconds_count", verb=verb, stage=stage),
                metric("stage_seconds_sum", verb=verb, stage=stage),
            )
            for verb, stage in stages
        }

    client, before = await start(), measured()
    began = perf_counter()
    for verb in ("filter", "prioritize"):
        await ask(client, verb, {"Pod": POD, "NodeNames": ALL})
    await ask(client, "preempt", {"Pod": POD, "NodeNameToMetaVictims": {}})
    await ask(client, "v1/explain", {"pod": POD})
    took = perf_counter() - began
    # What is refused has the stages that it came to.
    await ask(client, "filter", {"Pod": 5}, 400)
    after = measured()
    assert {key: count - before[key][0] for key, (count, _) in after.items()} == {
        key: 2 if key == ("filter", "receive") else 1 for key in before
    }
    assert 0 < sum(seconds - before[key][1] for key, (_, seconds) in after.items()) < took


async def test_names_that_filter_passed_get_the_same_scores_when_not_decoded_again(
    start: Start,
) -> None:
    client = await start()
    left = (await ask(client, "filter", {"Pod": POD, "NodeNames": ALL}))["NodeNames"]
    compact = json.dumps({"Pod": POD, "NodeNames": left}, separators=(",", ":")).encode()
    wide = json.dumps({"Pod": POD | {"spec": {}}, "NodeNames": left}).encode()
    answers = [
        await (await client.post("/prioritize", data=body)).json() for body in (compact, wide)
    ]
    # The pod counts on the node that was best by then.
    assert answers[0][0] == {"Host": "idle", "Score": 8}
    assert [[entry["Host"] for entry in answer] for answer in answers] == [left, left]
    body = compact.replace(b'"NodeNames"', b'"Nodes":{"items":[]},"NodeNames"')
    assert (await client.post("/prioritize", data=body)).status == 400


async def test_an_internal_error_is_answered_and_counted(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    client = await start()
    monkeypatch.setattr(Decisions, "prioritize", fail)
    before = metric("requests_total", verb="prioritize", status="500")
    reply = await ask(client, "prioritize", {"Pod": POD, "NodeNames": ["idle"]}, 500)
    assert reply["Error"] == "internal error of the extender"
    assert metric("requests_total", verb="prioritize", status="500") == before + 1


async def test_answers_by_requests_are_counted(start: Start) -> None:
    before = metric("fallbacks_total")
    client = await start()
    await ask(client, "prioritize", {"Pod": POD, "NodeNames": ["idle"]})
    assert metric("fallbacks_total") == before
    await ask(client, "prioritize", {"Pod": POD, "NodeNames": ["stranger", "old"]})
    assert metric("fallbacks_total") == before + 1
