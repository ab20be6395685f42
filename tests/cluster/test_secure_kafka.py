"""All roles with a secure broker: each has the rights of `springtide topics acls`, and no others.

`tests/kafka/test_secure_broker.py` shows what each role may not do.
"""

import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.kafka.acl_admin import grant_rights
from pipeline.kafka.client import client_options
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.broker_security import ADMIN
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import local_kafka
from pipeline.settings import KubernetesSettings, Settings
from pipeline.sources.compacted_writer import node_entry, open_producer, pod_entry, write
from pipeline.times import format_time
from pipeline.topics.access import ROLES, rights_of
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS, RESOURCES, SAMPLES, Topic
from tests.broker import messages
from tests.cluster.exporters import WINDOW_SECONDS, Exporters
from tests.cluster.objects import (
    Existing,
    apply,
    delete_others,
    named,
    node,
    pod,
    write_policy,
)
from tests.cluster.roles import Role, in_step, worker_in_step
from tests.cluster.test_provider import FLAGS, fake_metrics_server
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

PREFIX = "secure"


class Users:
    """The settings of each role, with its user."""

    def __init__(self, security: Any, bootstrap_servers: str, plane: ControlPlane) -> None:
        self._security = security
        self._bootstrap_servers = bootstrap_servers
        self.kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig(), config_name=PREFIX)

    def settings(self, role: str) -> Settings:
        kafka = self._security.settings_of(role, self._bootstrap_servers)
        kafka = replace(kafka, topic_prefix=PREFIX, partitions=2)
        return Settings(kafka=kafka, kubernetes=self.kubernetes)

    async def has(self, topic: Topic, count: int = 1) -> bool:
        """Whether a reader finds this many records."""
        return len(await messages(self.settings("reader").kafka, topic)) >= count


@pytest.fixture
async def users(plane: ControlPlane, permanent: Existing) -> AsyncIterator[Users]:
    with local_kafka(secure=True) as broker:
        users = Users(broker.security, broker.bootstrap_servers, plane)
        group = users.settings("worker").worker_group
        rights = [r for role in ROLES.values() for r in rights_of(role, PREFIX, group)]
        await grant_rights(users.settings(ADMIN).kafka, rights)
        await apply_topics(users.settings("operator").kafka)
        yield users
    await until(lambda: delete_others(plane, permanent), 120)


async def test_every_role_works_with_its_rights(plane: ControlPlane, users: Users) -> None:
    colocation = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(
        plane, PREFIX, colocation_config=colocation, springtide_config={"coldStartSamples": 1}
    )
    apply(plane, node("secure-0"), pod("s0-busy", on="secure-0"))
    created = time.time()
    with ExitStack() as stack:

        def start(role: str, *flags: str) -> Role:
            return stack.enter_context(Role(role, users.settings(role), *flags))

        start("watcher")
        start("worker", "--no-supervise")
        extender = start("extender", "--port", "0", "--host", "127.0.0.1")
        actuator = start("actuator", "--mode", "act")
        evictor = start("evictor", "--mode", "act")
        await until(lambda: in_step(plane, users.settings("reader")), 120)
        await until(lambda: worker_in_step(users.settings("reader")), 120)
        # Windows that ended before a Node was created are of another machine: nothing is offered.
        await until(lambda: time.time() // WINDOW_SECONDS * WINDOW_SECONDS >= created)
        exporters = Exporters(plane, users.settings("exporter").kafka, windows=3)
        await exporters.send(3)
        reader = users.settings("reader").kafka
        await until(lambda: users.has(RESOURCES), 120)
        await extender.logs("table caught up")
        await actuator.logs("ready")
        await evictor.logs("ready")
        await plan_an_eviction(users, plane)
        await until(lambda: have_acted(users, "cluster", "evictor"), 120, actuator.text)
    async with fake_metrics_server(users.kubernetes) as url:
        before = len(await messages(reader, SAMPLES))
        # The fake has a node that is not in the cluster.
        record = PodRecord(node="m1", uid="u", cgroup_uid="u", namespace="s", name="p")
        watcher = users.settings("watcher").kafka
        async with open_producer(watcher, "test") as producer:
            await write(
                producer, watcher, "test", [node_entry(NodeRecord(node="m1")), pod_entry(record)]
            )
        plane_settings = users.settings("provider")
        access = replace(users.kubernetes, kubeconfig=plane.kubeconfig(server=url))
        with Role("provider", replace(plane_settings, kubernetes=access), *FLAGS) as provider:
            await until(lambda: users.has(SAMPLES, before + 1), 120, provider.text)


async def have_acted(users: Users, *actuators: str) -> bool:
    """Whether each of these actuators has written an action."""
    records = await messages(users.settings("reader").kafka, ACTIONS)
    return {decode_json(ActionRecord, record.value).actuator for record in records} >= {*actuators}


async def plan_an_eviction(users: Users, plane: ControlPlane) -> None:
    """Plan, as an extender may, to evict a pod that no longer exists; the evictor refuses it."""
    kafka, now = users.settings("extender").kafka, time.time()
    plan = EvictionPlanRecord(
        node="secure-0", id="1", at=format_time(now), valid_until=format_time(now + 240),
        planner="test", why="a test",
        waiting=WaitingPod(namespace="default", name="none", uid="none", priority=9500),
        pods=(LeavingPod(uid="gone", pod_class="mid"),),
    )  # fmt: skip
    assert "none" not in named(plane, "pods")
    async with Producer(client_options(kafka)) as producer:
        topic = EVICTION_PLANS.full_name(kafka.topic_prefix)
        await producer.deliver(topic, value=encode_json(plan), key=b"secure-0")
