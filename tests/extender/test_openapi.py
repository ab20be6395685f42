"""The OpenAPI document has every route, and every route answers as documented."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import ManualClock
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.openapi import openapi_document
from pipeline.extender.scheduler_api import Extender
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.table import FeedState
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.pod_history import PodHistory
from pipeline.table.usage_history import History
from pipeline.topics.codec import encode_json
from tests.extender.conftest import Client, Start, extender, served
from tests.extender.console_samples import read_judged, read_results, relief
from tests.extender.json_schema import wrong
from tests.extender.test_fuzz import quick
from tests.processors.console.test_node_actions import action
from tests.processors.joined import NODE_ROW, joined, known_pod, pod_row, view_of
from tests.table.records import NOW, node_state, table_of
from tests.topics.golden import NODE_STATE, NODE_VIEW


def two_nodes() -> Extender:
    """Over two nodes, with a view and a history of the first."""
    clock, state = ManualClock(NOW), FeedState(caught_up=True)
    table = table_of(node_state("node-1", cpu=1.0), node_state("node-2", cpu=3.9))
    views, history, pods = NodeViewStore(), History(), PodHistory(2)
    view = view_of(known_pod("u1", name="web-0"))
    pods.put(joined(NODE_ROW, pod_row("u1", cpu_cores_avg=1.0), view=view))
    views.put("node-1", 1, encode_json(NODE_VIEW))
    history.put("node-1", NOW, NODE_STATE.usage)
    reading = relief()
    reading.actions.take(b"node-1", action("node-1"), NOW, NOW)
    return extender(
        table, clock=clock, node_views=NodeViewHandler(views, state),
        series=NodeSeriesHandler(history, state, clock, pods, state),
        relief=reading, read_judged=read_judged, read_results=read_results,
    )  # fmt: skip


DOCUMENT = openapi_document(two_nodes().routes())
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/filter", "/v1/nodes"])
def test_any_routes_can_be_described(path: str) -> None:
    """Also if no response of theirs is an error, or a view of a node."""
    (route,) = (each for each in two_nodes().routes() if each.path == path)
    document = openapi_document([route._replace(errors=())])
    method = route.method.lower()
    described, as_usual = (each["paths"][path][method] for each in (document, DOCUMENT))
    assert described["responses"]["200"] == as_usual["responses"]["200"]


def test_every_field_has_a_description() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    missing = {
        (name, field)
        for name, schema in schemas.items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    }
    assert missing == set()
    assert schemas["NodeItem"]["properties"]["peaks"]["description"].startswith("Predicted peak")
    # Lines about fields are not repeated in the text about the object.
    assert "peaks:" not in schemas["NodeItem"]["description"]


@pytest.fixture
async def client(start: Start) -> Client:
    return await start(two_nodes())


def routes(app: web.Application) -> set[tuple[str, str]]:
    """Path and method of every route; HEAD comes with GET, and load-watcher's take any method."""
    return {
        # A client of theirs may put a second slash before its path, a reader one behind /console.
        (path.canonical.replace("//", "/").rstrip("/"), route.method.lower().replace("*", "get"))
        for route in app.router.routes()
        if (path := route.resource) and route.method != "HEAD"
    }


async def test_the_document_has_every_route_and_no_other() -> None:
    assert routes(two_nodes().app()) == set(OPERATIONS)


async def ask(client: Client, path: str, method: str, **more: Any) -> tuple[int, Any]:
    """The example of an operation, asked: status and answer, None where it is no JSON."""
    operation = DOCUMENT["paths"][path][method]
    examples = {named["name"]: named for named in operation["parameters"] if "example" in named}
    for name, named in examples.items():
        path = path.replace(f"{{{name}}}", str(named["example"]))
    query = {n: str(named["example"]) for n, named in examples.items() if named["in"] == "query"}
    if "requestBody" in operation:
        more = {"json": operation["requestBody"]["content"]["application/json"]["example"], **more}
    response = await client.request(method, path, params=query, **more)
    is_json = response.content_type == "application/json" and response.status != 404
    return response.status, await response.json() if is_json else None


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
async def test_examples_are_answered_as_documented(client: Client, path: str, method: str) -> None:
    status, answer = await ask(client, path, method)
    responses = DOCUMENT["paths"][path][method]["responses"]
    assert status == 200
    schema = responses["200"].get("content", {}).get("application/json", {}).get("schema")
    assert (schema is None) == (answer is None)
    if schema is not None:
        assert [*wrong(answer, schema, DOCUMENT)] == []


@pytest.mark.parametrize(
    ("path", "method"), [(p, m) for p, m in OPERATIONS if m == "post"]
)  # fmt: skip
async def test_examples_match_their_schema_and_other_bodies_are_refused(
    client: Client, path: str, method: str
) -> None:
    media = DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]
    assert [*wrong(media["example"], media["schema"], DOCUMENT)] == []
    status, answer = await ask(client, path, method, json=[])
    assert status == 400
    assert [*wrong(answer, DOCUMENT["components"]["schemas"]["ErrorReply"], DOCUMENT)] == []


async def test_the_document_is_served(client: Client) -> None:
    assert (await ask(client, "/openapi.json", "get"))[1] == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["openapi"] == "3.1.0"


def references(node: Any) -> set[str]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = {node["$ref"]} if isinstance(node, dict) and isinstance(node.get("$ref"), str) else set()
    return own.union(*map(references, inner))


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    there = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) == there


def test_the_schema_checker_finds_violations() -> None:
    schema = {
        "type": "object", "required": ["a"], "additionalProperties": {"type": "string"},
        "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                       "b": {"type": "array", "items": {"enum": [1, 2]}}},
    }  # fmt: skip
    assert [*wrong({"a": 1, "b": [1, 2], "c": "x"}, schema, {})] == []
    invalid: tuple[Any, ...] = (
        {}, {"a": "1"}, {"a": True}, {"a": 1, "b": [3]}, {"a": 1, "c": 1}, [], None,
    )  # fmt: skip
    assert [value for value in invalid if not [*wrong(value, schema, {})]] == []
    assert [*wrong(1, {"pattern": "x"}, {})]


GETS = [path for path, method in OPERATIONS if method == "get"]
names = st.sampled_from(["node-1", "from", "to", "last", "resource", "wait", "host", "window"])
texts = st.text(max_size=20) | st.sampled_from(
    ["node-1", "5", "nan", "1e400", "2023-11-14T22:13:30Z"]
)
tags = st.sampled_from(['"1"', "*", "W/", '"', "1", '"x", "0"'])


@pytest.fixture(scope="module")
def get() -> Iterator[Any]:
    """`get(path, query, tag)`: status of a real request, and whether it holds JSON."""
    node = two_nodes()
    node.drain()  # long polls are answered at once
    with served(node) as ask:
        yield lambda path, query, tag: ask(
            "GET", path, params=query, headers={"If-None-Match": tag}
        )


@quick
@given(st.sampled_from(GETS), texts, st.dictionaries(names, texts, max_size=3), tags)
def test_any_query_is_answered(
    get: Any, path: str, name: str, query: dict[str, str], tag: str
) -> None:
    status, answer = get(re.sub(r"{\w+}", quote(name, safe=""), path), query, tag)
    # load-watcher answers 500 if no node has usage.
    assert status in (200, 304, 400, 404) or path == "/readyz"
    if status == 400:
        assert json.loads(answer)["Error"]
