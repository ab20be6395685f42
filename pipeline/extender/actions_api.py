"""What actuators did about a node lately."""

import msgspec
from aiohttp import web

from pipeline import API_VERSION
from pipeline.errors import NotReadyError
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import NODE, Response, Route
from pipeline.extender.tagged_documents import TAG, document_response
from pipeline.processors.console.encoded_document import encode_document
from pipeline.processors.console.node_actions import NodeAction, NodeActions
from pipeline.table import FeedState
from pipeline.topics.registry import ACTIONS


class NodeActionList(msgspec.Struct, frozen=True, kw_only=True):
    """The last actions about a node; none of a node that is unknown.

    node: Name of the node.
    items: The actions, the newest first.
    """

    apiVersion: str = API_VERSION
    kind: str = "NodeActionList"
    node: str
    items: list[NodeAction]


class NodeActionsHandler:
    """The route over the actions that a feed fills."""

    def __init__(self, actions: NodeActions, state: FeedState) -> None:
        self._actions = actions
        self._state = state

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        return [
            Route(
                "GET", "/v1/nodes/{node}/actions", self.actions,
                "The last actions of node actuator, evictor and planner about a node.",
                NodeActionList, parameters=(NODE, TAG), errors=(404, 503),
                others={304: Response("nothing has changed", headers=("ETag",))},
            )
        ]  # fmt: skip

    async def actions(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        if lacking := self._state.lacks(ACTIONS):
            raise NotReadyError(lacking)
        node = request.match_info["node"]
        document = NodeActionList(node=node, items=self._actions.of(node))
        return document_response(request, encode_document(document))
