"""The evictor reads its policy from the ConfigMap of a DeschedulerConfiguration."""

import json
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction.descheduler_policy import read_policy
from pipeline.errors import ApiUnavailableError, NotFoundError
from pipeline.kube.api_client import Api
from pipeline.processors.eviction.migration_policy import MigrationLimits, MigrationPolicy
from tests.processors.descheduling.test_eviction_policy import configuration


@pytest.mark.parametrize(
    ("answer", "policy"),
    [
        (NotFoundError("none", reason="NotFound"), MigrationPolicy()),
        (NotFoundError("404 page not found"), None),
        (ApiUnavailableError("no answer"), None),
        ({"data": None}, MigrationPolicy()),
        ({"data": {"koord-descheduler-config": "kind: Pod"}}, None),
        (
            {"data": {"koord-descheduler-config": json.dumps(
                configuration(maxMigratingPerNode=1)
            )}},
            MigrationPolicy(limits=MigrationLimits(max_migrating_per_node=1)),
        ),
    ],
)  # fmt: skip
async def test_a_configuration_that_cannot_be_read_is_no_policy(
    answer: Any, policy: MigrationPolicy | None
) -> None:
    class FakeApi:
        async def request(self, method: str, path: str) -> bytes:
            assert path == "/api/v1/namespaces/a/configmaps/b"
            if isinstance(answer, Exception):
                raise answer
            return msgspec.json.encode(answer)

    assert await read_policy(cast(Api, FakeApi()), "a", "b") == policy
