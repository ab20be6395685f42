"""The extender's routes as an OpenAPI 3.1 document.

Schemas and descriptions come from the routes and from the types of requests and responses, so the
document cannot differ from what is served.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pipeline import __version__
from pipeline.extender.authentication import OPEN, Access
from pipeline.extender.http_responses import ErrorReply
from pipeline.extender.routes import REFUSED, JsonObject, Parameter, Response, Route
from pipeline.extender.scheduler_messages import Pod
from pipeline.topics.field_texts import field_texts, structs_of, text_of
from pipeline.topics.pods import PodRecord

_REFERENCE: Final = "#/components/schemas/{name}"
_MAY_LACK_FIELDS: Final = ("ErrorReply", "NodeView")
"""An error may have no hint; views are passed on as a worker wrote them."""


_OF_DOCUMENTS: Final = {"apiVersion": "Version of the document.", "kind": "Kind of the document."}
_SECURITY_SCHEMES: Final[JsonObject] = {
    "certificate": {
        "type": "mutualTLS",
        "description": "A client certificate of extender.tls_client_ca_file, where that is set.",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of extender.query_token_file, where that is set.",
    },
}


def _schemes(access: Access) -> Sequence[str]:
    return ("certificate",) if access == "scheduler" else ("certificate", "token")


def _refusals(access: Access) -> dict[int, Response]:
    if access in OPEN:
        return {}
    statuses = (403,) if access == "scheduler" else (401, 403)
    return dict.fromkeys(statuses, REFUSED)


def openapi_document(routes: Sequence[Route]) -> JsonObject:
    """The document of these routes."""
    # Bodies that are decoded in parts refer to the first two, refusals of clients to the last.
    types: list[Any] = [Pod, PodRecord, ErrorReply]
    for route in routes:
        bodies = [route.body, *(response.type for response in route.responses.values())]
        types += [body for body in bodies if body is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    _require_returned_fields(routes, schema_of, components)
    _describe(types, components)
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
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


def _describe(types: Sequence[Any], components: JsonObject) -> None:
    """Add the descriptions of structs and of their fields."""
    for struct in structs_of(types):
        schema = components.get(struct.__name__)
        if schema is None:
            continue
        if text := text_of(struct):
            schema["description"] = text
        for name, described in (_OF_DOCUMENTS | field_texts(struct)).items():
            if name in schema.get("properties", {}):
                schema["properties"][name]["description"] = described


def _require_returned_fields(
    routes: Sequence[Route], schema_of: JsonObject, components: JsonObject
) -> None:
    """Mark fields of responses as required, also those with a default: they are always sent."""
    returned = [response.type for route in routes for response in route.responses.values()]
    bodies = [schema_of[repr(route.body)] for route in routes if route.body is not None]
    lacking = [_reference(name) for name in _MAY_LACK_FIELDS if name in components]
    optional = _referred([*bodies, *lacking], components)
    for name in _referred([schema_of.get(repr(kind)) for kind in returned], components):
        if name not in optional and "properties" in components[name]:
            components[name]["required"] = [*components[name]["properties"]]


def _referred(schema: Any, components: JsonObject) -> set[str]:
    """The names of all components that a schema refers to."""
    names: set[str] = set()
    pending = [schema]
    while pending:
        part = pending.pop()
        pending += (
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        )
        reference = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(reference, str) and (name := reference.rpartition("/")[2]) not in names:
            names.add(name)
            pending.append(components[name])
    return names


def _reference(name: str) -> JsonObject:
    return {"$ref": _REFERENCE.format(name=name)}


def _operation(route: Route, schema_of: JsonObject) -> JsonObject:
    operation: JsonObject = {
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": {
            str(status): _response(response, schema_of)
            for status, response in {**route.responses, **_refusals(route.access)}.items()
        },
    }
    if route.access not in OPEN:
        operation["security"] = [{}, *({name: []} for name in _schemes(route.access))]
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


def _response(response: Response, schema_of: JsonObject) -> JsonObject:
    described: JsonObject = {"description": response.description}
    if response.type is not None:
        described["content"] = {"application/json": {"schema": schema_of[repr(response.type)]}}
    if response.headers:
        described["headers"] = {name: {"schema": {"type": "string"}} for name in response.headers}
    return described
