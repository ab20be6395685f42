"""The declaration of a route, from which the server and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from pipeline.extender.authentication import Access
from pipeline.extender.http_responses import ErrorReply

JsonObject = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Parameter(NamedTuple):
    """A parameter of a request: in the `query`, a `header`, or the `path`."""

    name: str
    description: str
    schema: JsonObject
    example: Any = None
    location: str = "query"


class Response(NamedTuple):
    """A response by status, as documentation describes it; `type` is that of its JSON body."""

    description: str
    type: Any = None
    headers: Sequence[str] = ()


class Route(NamedTuple):
    """A route: what serves it, and its documentation.

    `response` is the type of a JSON response, `body` that of the request body with an `example`.
    Types are msgspec structs, or anything that msgspec has a JSON schema for. `errors` are statuses
    with an `ErrorReply`, `others` further responses by status. `any_method` also serves other
    methods, `aliases` other paths; neither is documented. `access` selects the rule of
    authentication.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    response: Any = None
    body: Any = None
    example: Any = None
    parameters: Sequence[Parameter] = ()
    errors: Sequence[int] = ()
    others: Mapping[int, Response] = {}
    any_method: bool = False
    aliases: Sequence[str] = ()
    access: Access = "queries"

    @property
    def responses(self) -> Mapping[int, Response]:
        """Every response by status."""
        errors = dict.fromkeys(self.errors, ERROR)
        return {200: Response(self.summary, self.response), **errors, **self.others}


ERROR: Final = Response("what is wrong", ErrorReply)
REFUSED: Final = Response("the client is not authenticated, or may not send this", ErrorReply)
NODE: Final = Parameter("node", "name of the node", {"type": "string"}, "node-1", "path")
BODY_ERRORS: Final = (400, 413, 503)
"""Errors of every route that reads a body."""


_ACCESS: Final = web.AppKey("access", dict[str, Access])


def access_of(request: web.Request) -> Access:
    """The rule of authentication for a request. An unknown path is treated as a query."""
    resource = request.match_info.route.resource
    return request.app[_ACCESS].get(resource.canonical if resource else "", "queries")


def register(app: web.Application, routes: Sequence[Route]) -> None:
    """Serve these routes."""
    app[_ACCESS] = {}
    for route in routes:
        for path in (route.path, *route.aliases):
            app[_ACCESS][path] = route.access
            if route.any_method:
                app.router.add_route("*", path, route.handler)
            elif route.method == "GET":
                app.router.add_get(path, route.handler)  # and HEAD
            else:
                app.router.add_route(route.method, path, route.handler)
