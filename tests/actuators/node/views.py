"""Views of a node for tests."""

from typing import Any

from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord

NODE = "n1"


def view(generation: int, node: str = NODE, **fields: Any) -> bytes:
    """A view as it is on the topic."""
    return encode_json(NodeViewRecord(node=node, generation=generation, **fields))
