"""Grant rights on the broker, for the secure local broker; operators use Kafka's own tools."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiokafka import errors
from aiokafka.protocol.admin import CreateAclsRequest

from pipeline.errors import KafkaError
from pipeline.kafka.topic_admin import open_admin
from pipeline.settings import KafkaSettings
from pipeline.topics.access import Operation, Resource, Right

# Numbers of Kafka's protocol: org.apache.kafka.common.acl and .resource.
_RESOURCES: Final[Mapping[Resource, int]] = {"topic": 2, "group": 3, "transactional-id": 5}
_OPERATIONS: Final[Mapping[Operation, int]] = {
    "Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "AlterConfigs": 11,
}  # fmt: skip
_LITERAL: Final = 3
_ALLOW: Final = 3


class _CreateAcls(CreateAclsRequest):  # type: ignore[misc]
    """Creates several ACLs at once; aiokafka's own request creates one."""

    def __init__(self, rights: Iterable[Right]) -> None:
        self._rights = rights

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(
            [
                (
                    _RESOURCES[right.resource], right.name, _LITERAL, f"User:{right.user}", "*",
                    _OPERATIONS[right.operation], _ALLOW,
                )
                for right in self._rights
            ]
        )  # fmt: skip


async def grant_rights(kafka: KafkaSettings, rights: Collection[Right]) -> None:
    """Create these ACLs, as a user who may; existing ones stay.

    Raises `BrokerUnavailableError` if no broker answers, `KafkaError` if it refuses one.
    """
    async with open_admin(kafka, "granting rights") as admin:
        response = await admin._send_request(_CreateAcls(rights))
        for right, (code, message) in zip(rights, response.creation_responses, strict=True):
            if (error := errors.for_code(code)) is not errors.NoError:
                raise KafkaError(f"{right}: the broker refused: {error.__name__} {message or ''}")
