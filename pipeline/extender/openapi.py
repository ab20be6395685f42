"""The service as an OpenAPI 3.1 document, for clients that are generated and people who look.

Owes the rest: every route, each with an example that it answers, and the schema of every answer.
What is a struct of ours is described by it, with its own words; the rest is written here.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from aiohttp import web

from pipeline import __version__
from pipeline.extender.explain_documents import Explanation
from pipeline.extender.http_replies import json_reply
from pipeline.extender.node_view_poll import LONGEST_WAIT_SECONDS
from pipeline.extender.series_api import RESOURCES, NodeSeries
from pipeline.processors.exchange.load_watcher_document import WINDOWS, Document
from pipeline.processors.loadaware.node_thresholds import ANNOTATION as USAGE_THRESHOLDS
from pipeline.processors.model.usage_anomalies import ODDITIES
from pipeline.table.node_documents import LimitsRatio
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.pods import PodRecord

JsonObject = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"
_TEXTS: Final[JsonObject] = {"type": "object", "additionalProperties": {"type": "string"}}
_NAMES: Final[JsonObject] = {"type": ["array", "null"], "items": {"type": "string"}}
_NODE: Final[JsonObject] = {
    "name": "node", "in": "path", "required": True, "schema": {"type": "string"},
    "example": "node-1",
}  # fmt: skip
_POD: Final[JsonObject] = {
    "metadata": {"name": "web-0", "namespace": "shop", "uid": "6f1c"},
    "spec": {
        "containers": [{"name": "web", "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}]
    },
}


class NodeView(NodeViewRecord, frozen=True, kw_only=True):
    """A node as its actuator sees it: `slo` is the spec of its NodeSLO, `cpu_normalization` the
    section of CPU ratios; `resources` are None where nothing was worked out for it."""

    # As they are read; the record passes on what it was given.
    slo: JsonObject | None = None  # type: ignore[assignment]
    cpu_normalization: JsonObject | None = None  # type: ignore[assignment]


def _of(name: str) -> JsonObject:
    return {"$ref": _REFERENCE.format(name=name)}


def _object(properties: JsonObject, **more: Any) -> JsonObject:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": [*properties], **more}


_AGED: Final = _object(
    {
        "age_seconds": {"type": "number"},
        "stale": {"type": "boolean"},
        "oddities": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What is odd about its usage: "
            + "; ".join(f"{name}: {what}" for name, what in ODDITIES.items()),
        },
        "usage_thresholds_problem": {
            "type": ["string", "null"],
            "description": f"What is wrong with its annotation {USAGE_THRESHOLDS}, if anything "
            "is: then those of the settings hold.",
        },
        "limits_ratio": _of("LimitsRatio"),
    }
)
_OWN: Final[Mapping[str, JsonObject]] = {
    "Error": {
        "type": "object",
        "description": "What is wrong, and what to do about it.",
        "properties": {"Error": {"type": "string"}, "Hint": {"type": "string"}},
        "required": ["Error"],
    },
    "Pod": {
        "type": "object",
        "description": "A Pod as the API server gives it; one that is in no cluster needs no name.",
    },
    "ExtenderArgs": {
        "type": "object",
        "description": "A question of kube-scheduler, in any letter case: either names or Nodes.",
        "properties": {
            "Pod": _of("Pod"),
            "NodeNames": _NAMES,
            "Nodes": {
                "type": ["object", "null"],
                "properties": {"items": {"type": ["array", "null"], "items": {"type": "object"}}},
            },
        },
        "required": ["Pod"],
    },
    "ExtenderFilterResult": _object(
        {
            "Nodes": {"type": ["object", "null"]},
            "NodeNames": _NAMES,
            "FailedNodes": _TEXTS,
            "FailedAndUnresolvableNodes": _TEXTS,
            "Error": {"type": "string"},
        },
        description="In the form of the question; reasons by node.",
    ),
    "HostPriorityList": {
        "type": "array",
        "items": _object({"Host": {"type": "string"}, "Score": {"type": "integer"}}),
    },
    "ExtenderPreemptionArgs": {
        "type": "object",
        "description": "Who would have to leave each node, as whole Pods or by UID.",
        "properties": {
            "Pod": _of("Pod"),
            "NodeNameToVictims": {"type": ["object", "null"]},
            "NodeNameToMetaVictims": {"type": ["object", "null"]},
        },
        "required": ["Pod"],
    },
    "ExtenderPreemptionResult": _object(
        {
            "NodeNameToMetaVictims": {
                "type": "object",
                "additionalProperties": _object(
                    {
                        "Pods": {"type": "array", "items": _object({"UID": {"type": "string"}})},
                        "NumPDBViolations": {"type": "integer"},
                    }
                ),
            }
        }
    ),
    "ExplainQuestion": {
        "type": "object",
        "description": "pod or podRecord, not both; all nodes are meant where none are named.",
        "properties": {
            "pod": _of("Pod"), "podRecord": _of("PodRecord"), "nodeNames": _NAMES,
        },
    },
    "NodeState": {
        "allOf": [
            _of("NodeStateRecord"),
            _AGED,
            _object({"apiVersion": {"type": "string"}, "kind": {"const": "NodeState"}}),
        ]
    },
    "NodeStateList": _object(
        {
            "apiVersion": {"type": "string"},
            "kind": {"const": "NodeStateList"},
            "now": {"type": "string"},
            "items": {"type": "array", "items": {"allOf": [_of("NodeStateRecord"), _AGED]}},
            "without_state": _NAMES,
        }
    ),
    "Readiness": _object(
        {
            "status": {"enum": ["ready", "not ready", "draining"]},
            "mode": {"enum": ["observe", "act"]},
            "table": {"type": "string"},
            "nodes": {"type": "integer"},
            "lag_records": {"type": ["integer", "null"]},
            "connected": {"type": "boolean"},
        }
    ),
}  # fmt: skip
_STRUCTS: Final = (
    Explanation, LimitsRatio, NodeSeries, NodeStateRecord, NodeView, PodRecord, Document,
)  # fmt: skip


def _query(name: str, what: str, schema: JsonObject, example: Any = None) -> JsonObject:
    shown = {} if example is None else {"example": example}
    return {"name": name, "in": "query", "description": what, "schema": schema, **shown}


def _json(schema: JsonObject, example: Any = None) -> JsonObject:
    shown = {} if example is None else {"example": example}
    return {"content": {"application/json": {"schema": schema, **shown}}}


def _operation(
    summary: str,
    answer: JsonObject | None,
    *parameters: JsonObject,
    errors: tuple[int, ...] = (),
    body: JsonObject | None = None,
    **others: JsonObject,
) -> JsonObject:
    """An operation whose good answer has the schema `answer`, None for no JSON; `others` are
    answers by `status_<number>`."""
    found: JsonObject = {"description": summary, **({} if answer is None else _json(answer))}
    failed = {"description": "what is wrong", **_json(_of("Error"))}
    responses = {"200": found} | {str(status): failed for status in errors}
    responses |= {name.removeprefix("status_"): other for name, other in others.items()}
    asked = {} if body is None else {"requestBody": {"required": True, **body}}
    return {"summary": summary, "parameters": [*parameters], **asked, "responses": responses}


def _question(kind: str, example: JsonObject) -> JsonObject:
    return _json(_of(kind), {"Pod": _POD, **example})


_BODY_ERRORS: Final = (400, 413, 503)
_NAMED: Final = {"NodeNames": ["node-1", "node-2"]}
_WINDOW: Final = _query("window", "over how long", {"enum": [*WINDOWS]}, "15m")
_UNCHANGED: Final = {"description": "nothing is newer", "headers": {"ETag": {"schema": {}}}}


def _paths() -> JsonObject:
    victims = {"NodeNameToMetaVictims": {"node-1": {"Pods": [{"UID": "a1"}]}}}
    time = {"type": "string", "format": "date-time"}
    return {
        "/filter": {
            "post": _operation(
                "Which nodes may take the pod.", _of("ExtenderFilterResult"),
                body=_question("ExtenderArgs", _NAMED), errors=_BODY_ERRORS,
            )
        },
        "/prioritize": {
            "post": _operation(
                "How good each node is for the pod.", _of("HostPriorityList"),
                body=_question("ExtenderArgs", _NAMED), errors=_BODY_ERRORS,
            )
        },
        "/preempt": {
            "post": _operation(
                "On which nodes evicting these pods would help.", _of("ExtenderPreemptionResult"),
                body=_question("ExtenderPreemptionArgs", victims), errors=_BODY_ERRORS,
            )
        },
        "/healthz": {"get": _operation("Alive.", _object({"status": {"const": "ok"}}))},
        "/readyz": {
            "get": _operation(
                "Ready: the table is caught up.", _of("Readiness"),
                status_503={"description": "not ready, or draining", **_json(_of("Readiness"))},
            )
        },
        "/metrics": {"get": _operation("Metrics for Prometheus.", None)},
        "/openapi.json": {"get": _operation("This document.", {"type": "object"})},
        "/v1/nodes": {
            "get": _operation("The state of every node.", _of("NodeStateList"), errors=(503,))
        },
        "/v1/nodes/{node}": {
            "get": _operation(
                "The state of a node.", _of("NodeState"), _NODE, errors=(404, 503)
            )
        },
        "/v1/nodes/{node}/series": {
            "get": _operation(
                "The last windows of a node over a range, and statistics of them.",
                _of("NodeSeries"),
                _NODE,
                _query("from", "ended at or after", time, "2023-11-14T22:00:00Z"),
                _query("to", "ended at or before", time),
                _query("last", "instead of both: so many seconds up to now", {"type": "number"}),
                _query("resource", "one of both; more than once for more",
                       {"enum": [*RESOURCES]}, "cpu"),
                errors=(400, 404, 503),
            )
        },
        "/v1/nodes/{node}/view": {
            "get": _operation(
                "What the node's actuator needs, as soon as it is newer than If-None-Match.",
                _of("NodeView"),
                _NODE,
                {"name": "If-None-Match", "in": "header", "schema": {"type": "string"},
                 "description": "the ETag, a generation, of the view that is known"},
                _query("wait", "seconds to wait for a newer one",
                       {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS}, 0),
                errors=(400, 404, 503),
                status_304=_UNCHANGED,
            )
        },
        "/v1/explain": {
            "post": _operation(
                "What would be said of a pod; nothing comes of it.", _of("Explanation"),
                body=_json(_of("ExplainQuestion"), {"pod": _POD, "nodeNames": ["node-1"]}),
                errors=_BODY_ERRORS,
            )
        },
        "/watcher": {
            "get": _operation(
                "load-watcher's document of all nodes, or of one.", _of("Document"), _WINDOW,
                _query("host", "one node", {"type": "string"}),
                errors=(400,), **_UPSTREAM,
            )
        },
        "/watcher/{host}": {
            "get": _operation(
                "load-watcher's document of one node.", _of("Document"),
                {**_NODE, "name": "host"}, _WINDOW, errors=(400,), **_UPSTREAM,
            )
        },
        "/watcher/health": {
            "get": _operation(
                "Whether there are numbers to be had.", None,
                status_503={"description": "there are none, or Kafka is away"},
            )
        },
    }  # fmt: skip


_UPSTREAM: Final = {
    "status_404": {"description": "no such node, as text"},
    "status_500": {"description": "there are no numbers, as text, as load-watcher has it"},
}


@cache
def openapi() -> JsonObject:
    """The document."""
    _, structs = msgspec.json.schema_components(_STRUCTS, ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Springtide extender",
            "version": __version__,
            "description": "Answers a scheduler and everybody else from the state table. Keys are "
            "stable: more may come, none will go.",
        },
        "paths": _paths(),
        "components": {"schemas": {**structs, **_OWN}},
    }


async def serve_openapi(_request: web.Request) -> web.Response:
    """The handler of `GET /openapi.json`."""
    return json_reply(msgspec.json.encode(openapi()))
