"""The evictor reads its policy from the ConfigMap of a DeschedulerConfiguration."""

import json
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction.descheduler_policy import read_policy
from actuators.eviction.eviction_actuator import Evictor
from pipeline.clock import ManualClock
from pipeline.errors import ApiUnavailableError, NotFoundError
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.processors.eviction.migration_policy import MigrationLimits, MigrationPolicy
from pipeline.settings import Settings
from tests.processors.descheduling.test_eviction_policy import configuration


def api_with(*answers: Any) -> Api:
    """An API server with these answers, the last of them forever."""
    left = [*answers]

    class FakeApi:
        async def request(self, method: str, path: str) -> bytes:
            assert "/configmaps/" in path
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return msgspec.json.encode(answer)

    return cast(Api, FakeApi())


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
    assert await read_policy(api_with(answer), "a", "b") == policy


STRICT = MigrationPolicy(limits=MigrationLimits(max_migrating_per_node=1), is_dry=True)


@pytest.mark.parametrize(
    ("answer", "policy"),
    [
        (NotFoundError("none", reason="NotFound"), STRICT),
        # An edit is one, also if nothing is left.
        ({"data": None}, MigrationPolicy()),
        ({"data": {"koord-descheduler-config": ""}}, MigrationPolicy()),
        ({"data": {"koord-descheduler-config": json.dumps(configuration())}}, MigrationPolicy()),
    ],
)
async def test_a_deleted_configuration_loosens_no_limit(
    answer: Any, policy: MigrationPolicy
) -> None:
    assert await read_policy(api_with(answer), "a", "b", STRICT) == policy


async def test_an_evictor_keeps_the_policy_of_a_configuration_that_is_deleted() -> None:
    text = json.dumps(configuration(maxMigratingPerNode=1, dryRun=True))
    evictor = Evictor(
        api_with(
            {"data": {"koord-descheduler-config": text}},
            NotFoundError("none", reason="NotFound"),
            {"data": {}},
        ),
        Settings(), ManualClock(), cast(Lease, None),
    )  # fmt: skip
    policies = []
    for _ in range(3):
        assert await evictor._read_policy()
        policies.append(evictor._gate.policy)
    assert policies == [STRICT, STRICT, MigrationPolicy()]


async def test_without_any_configuration_koordinators_defaults_hold() -> None:
    absent = api_with(NotFoundError("none", reason="NotFound"))
    evictor = Evictor(absent, Settings(), ManualClock(), cast(Lease, None))
    assert await evictor._read_policy()
    assert evictor._gate.policy == MigrationPolicy()
