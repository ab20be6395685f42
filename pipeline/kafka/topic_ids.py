"""The ids of topics, which tell a recreated topic from one that lost records, and of the cluster.

aiokafka 0.14 asks for metadata in version 5, which has no ids: the request is declared here.
"""

import asyncio
import random
import uuid
from collections.abc import Collection
from io import BytesIO
from time import monotonic
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_API_KEY = 3
_VERSION = 12  # of Kafka 3.0
_TEXT = CompactString("utf-8")
_RETRY_SECONDS = 0.1


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16), ("name", _TEXT), ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16), ("partition", Int32), ("leader", Int32),
                        ("leader_epoch", Int32), ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32), ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )  # fmt: skip


class _MetadataRequestStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):  # type: ignore[misc]
    API_KEY = _API_KEY

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        no_tags: dict[int, bytes] = {}
        topics = [(bytes(16), name, no_tags) for name in self._topics]
        return request_struct_class(topics, False, False, no_tags)


async def topic_ids(client: AIOKafkaClient, topics: Collection[str]) -> dict[str, str]:
    """The ids of these topics by name, without those that do not exist; empty if the broker is too
    old to tell. Raises what aiokafka raises if no broker answers within the request time-out."""
    response = await _ask(client, topics)
    if response is None:
        return {}
    return {
        name: str(uuid.UUID(bytes=topic_id))
        for code, name, topic_id, *_ in response.topics
        if code == 0
    }


async def cluster_id(client: AIOKafkaClient) -> str:
    """The id of the Kafka cluster; empty if the broker is too old to tell. Raises as
    `topic_ids`."""
    response = await _ask(client, ())
    return "" if response is None else response.cluster_id or ""


async def _ask(client: AIOKafkaClient, topics: Collection[str]) -> Any:
    """The metadata of these topics, from any broker; None if it is too old."""
    deadline = monotonic() + client._request_timeout_ms / 1000
    while True:
        try:
            return await _ask_any(client, topics)
        except NotImplementedError:
            return None
        except KafkaError:
            if monotonic() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


async def _ask_any(client: AIOKafkaClient, topics: Collection[str]) -> Any:
    """Ask all brokers in random order until one answers."""
    failure: KafkaError = KafkaConnectionError("no broker is known")
    brokers = [broker.nodeId for broker in client.cluster.brokers()]
    for broker in random.sample(brokers, len(brokers)):
        try:
            return await client.send(broker, _MetadataRequest(topics))
        except KafkaError as error:
            failure = error
    raise failure
