"""The extender's routes as an OpenAPI 3.1 document.

Schemas and descriptions come from the routes and from the types of their bodies and answers.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pipeline import __version__
from pipeline.extender.routes import Answer, JsonObject, Parameter, Route
from pipeline.extender.scheduler_messages import Pod
from pipeline.topics.pods import PodRecord

_REFERENCE: Final = "#/components/schemas/{name}"


def openapi_document(routes: Sequence[Route]) -> JsonObject:
    """The document of these routes."""
    # Bodies that are decoded in parts refer to these.
    types: list[Any] = [Pod, PodRecord]
    for route in routes:
        bodies = [route.body, *(answer.type for answer in route.answers.values())]
        types += [body for body in bodies if body is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: JsonObject = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Springtide extender",
            "version": __version__,
            "description": "Answers schedulers and other clients from the state table. Keys are "
            "stable: more may come, none will be removed.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schema_of: JsonObject) -> JsonObject:
    operation: JsonObject = {
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": {
            str(status): _response(answer, schema_of) for status, answer in route.answers.items()
        },
    }
    if route.body is not None:
        media = {"schema": schema_of[repr(route.body)], "example": route.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    return operation


def _parameter(parameter: Parameter) -> JsonObject:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.location,
        "description": parameter.description,
        "schema": parameter.schema,
    }
    if parameter.location == "path":
        described["required"] = True
    if parameter.example is not None:
        described["example"] = parameter.example
    return described


def _response(answer: Answer, schema_of: JsonObject) -> JsonObject:
    response: JsonObject = {"description": answer.description}
    if answer.type is not None:
        response["content"] = {"application/json": {"schema": schema_of[repr(answer.type)]}}
    if answer.headers:
        response["headers"] = {name: {"schema": {"type": "string"}} for name in answer.headers}
    return response
