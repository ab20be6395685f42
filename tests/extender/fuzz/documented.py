"""Requests generated from an OpenAPI document, and a check of answers against it.

No path is named here, so every new path of the document is tested.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from hypothesis import strategies as st

from tests.extender.fuzz.fleet import Answer
from tests.extender.json_schema import wrong

LONGEST_URL = 7900  # longer URLs are sent as invalid HTTP
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "BREW")

words = st.sampled_from(
    ["", "a", "b", "stranger", "..", "%00", "a/b", "ä\u2028", "nan", "-1", "1e400", "0", "60", "5m",
     "*", '"1"', 'W/"3"', "2023-11-14T22:13:30Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:60Z"]
)  # fmt: skip
texts = words | st.text(max_size=12) | st.text(min_size=300, max_size=2000)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


class Request(NamedTuple):
    """`path` is that of the document, `url` has its parameters."""

    path: str
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None


def of_schema(schema: Mapping[str, Any], document: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a schema, and sometimes a value that violates it."""
    return st.integers(0, 24).flatmap(
        lambda luck: junk if luck == 0 else _of_schema(schema, document, depth)
    )


def _of_schema(schema: Mapping[str, Any], document: Any, depth: int) -> st.SearchStrategy[Any]:
    if depth > 5:
        return st.none()
    if "$ref" in schema:
        result = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            result = result[part]
        return of_schema(result, document, depth)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    for keyword in ("anyOf", "allOf"):
        if keyword in schema:
            return st.one_of([of_schema(item, document, depth) for item in schema[keyword]])
    kinds = schema.get("type", "object")
    return st.sampled_from([kinds] if isinstance(kinds, str) else kinds).flatmap(
        lambda kind: _of_type(kind, schema, document, depth + 1)
    )


def _of_type(kind: str, schema: Mapping[str, Any], document: Any, depth: int) -> Any:
    if kind == "object":
        parts = schema.get("properties", {})
        by_name = {name: of_schema(item, document, depth) for name, item in parts.items()}
        needed = {
            name: item for name, item in by_name.items() if name in schema.get("required", ())
        }
        known = st.fixed_dictionaries(
            needed, optional={name: item for name, item in by_name.items() if name not in needed}
        )
        more = schema.get("additionalProperties", not parts)
        others = junk if isinstance(more, bool) else of_schema(more, document, depth)
        if not more:
            return known
        return st.builds(dict.__or__, st.dictionaries(texts, others, max_size=2), known)
    if kind == "array":
        return st.lists(of_schema(schema.get("items", {}), document, depth), max_size=4)
    numbers = {"min_value": schema.get("minimum"), "max_value": schema.get("maximum")}
    simple = {
        "string": words if schema.get("format") else texts,
        "boolean": st.booleans(),
        "null": st.none(),
        "integer": st.integers(**numbers),
        "number": st.integers(-5, 70) | st.floats(allow_nan=False, allow_infinity=False),
    }
    return simple[kind]


def requests(document: Any) -> st.SearchStrategy[Request]:
    """Requests for any operation of the document, with known and unknown parameters."""
    operations: list[tuple[str, str, Any]] = [
        (path, method, item)
        for path, methods in document["paths"].items()
        for method, item in methods.items()
    ]
    return st.sampled_from(operations).flatmap(lambda item: _requests(document, *item))


def _requests(
    document: Any, path: str, method: str, operation: Mapping[str, Any]
) -> st.SearchStrategy[Request]:
    given = {
        (item["in"], item["name"]): of_schema(item["schema"], document) | words
        for item in operation["parameters"]
    }
    inside = {key: item for key, item in given.items() if key[0] == "path"}
    parameters = st.fixed_dictionaries(
        inside, optional={key: item for key, item in given.items() if key not in inside}
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    bodies: st.SearchStrategy[Any] = st.none()
    if content:
        bodies = of_schema(content["schema"], document).map(msgspec.json.encode) | st.binary()
    return st.builds(
        lambda values, extra, body, other: _request(
            path, other or method.upper(), values, extra, body
        ),
        parameters,
        st.dictionaries(words, words, max_size=1) | st.just({}),
        bodies,
        st.none() | st.none() | st.none() | st.sampled_from(METHODS),
    )


def _request(
    path: str, method: str, values: Mapping[tuple[str, str], Any], extra: Any, body: bytes | None
) -> Request:
    def text(value: Any) -> str:
        result = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return result.encode(errors="replace").decode()

    texts_of = {key: text(value) for key, value in values.items()}
    url = re.sub(r"{(\w+)}", lambda m: quote(texts_of["path", m[1]], safe="") or "x", path)
    query = [(name, value) for (where, name), value in texts_of.items() if where == "query"]
    query += [(text(name), text(value)) for name, value in extra.items()]
    url += "?" * bool(query) + "&".join(f"{quote(n)}={quote(v)}" for n, v in query)
    headers = {
        name: re.sub(r"[^\x20-\x7e]", "?", value)
        for (where, name), value in texts_of.items() if where == "header"
    }  # fmt: skip
    return Request(path, method, url[:LONGEST_URL], headers, body)


def complaints(asked: Request, answer: Answer, document: Any) -> Iterator[str]:
    """How an answer differs from the document."""
    operations = document["paths"][asked.path]
    if asked.method == "BREW":
        # Invalid HTTP: aiohttp refuses it before a handler runs.
        if answer.status != 400:
            yield f"{answer.status} for what is no HTTP"
        return
    method = "get" if asked.method == "HEAD" else asked.method.lower()
    status = str(answer.status)
    if method not in operations and status == "405":
        if not answer.headers.get("Allow"):
            yield "405 without Allow"
        return
    # The paths of load-watcher take any method.
    responses = (operations.get(method) or next(iter(operations.values())))["responses"]
    if status not in responses:
        yield f"{status} is not documented"
        return
    schema = responses[status].get("content", {}).get("application/json", {}).get("schema")
    if schema is not None and asked.method != "HEAD":
        yield from wrong(answer.json, schema, document)
