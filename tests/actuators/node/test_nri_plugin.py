"""The plugin with a fake runtime: what a real one does in tests of its own, and what it never
does."""

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actuators.node import node_metrics, nri_plugin
from actuators.node.container_start import ContainerStart
from actuators.node.nri_messages import _CLASSES, PLUGIN_SERVICE
from actuators.node.ttrpc_frames import MOST_PAYLOAD_BYTES, REQUEST, RESPONSE, Message
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS
from pipeline.tasks import cancel_tasks
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH
from tests.actuators.node.fake_runtime import PLUGIN, RUNTIME, FakePlugin, FakeRuntime, encoded
from tests.actuators.node.starts import AMOUNTS, ID, UID, Starting, batch_pod
from tests.actuators.node.test_container_start import LIMITS, describe_limits
from tests.actuators.node.test_node_reading import World
from tests.metric_values import sum_of, value_of

CREATE = encoded(
    "ContainerEvent",
    pod={"uid": UID, "name": "batch", "namespace": "d"},
    container={
        "id": ID, "name": "main",
        "linux": {
            "cgroups_path": f"/kubepods/besteffort/pod{UID}/{ID}",
            "resources": {"cpu": {"shares": {"value": 2}}},
        },
    },
)  # fmt: skip


class Connected:
    """A running plugin and its fake runtime."""

    def __init__(self, starting: Starting, runtime: FakeRuntime) -> None:
        self.starting, self.runtime = starting, runtime

    async def plugin(self) -> FakePlugin:
        """The plugin that connects next; pauses between attempts pass at once."""
        while self.runtime.plugins.empty():
            await self.starting.clock.advance(1)
            await asyncio.sleep(0.01)
        return self.runtime.plugins.get_nowait()

    async def configured(self, timeout_ms: int = 2000) -> FakePlugin:
        plugin = await self.plugin()
        await plugin.register()
        call = encoded("Configure", runtime_name="fake", request_timeout=timeout_ms)
        response = await plugin.call("Configure", call)
        assert _CLASSES["Configured"].FromString(response.payload).events == 0b10001000  # type: ignore[attr-defined]
        return plugin


@pytest.fixture
async def connected(tmp_path: Path) -> AsyncIterator[Connected]:
    world = World(tmp_path, 1, Driver.CGROUPFS)
    describe_limits(world.node.cgroups, world.make(UID, KubeQOS.BEST_EFFORT), 1)
    starting = Starting(world.node.settings(), tmp_path)
    starting.show(batch_pod())
    await starting.actuator.round()
    async with FakeRuntime.listening(starting.socket) as runtime:
        running = asyncio.create_task(starting.plugin.run())
        yield Connected(starting, runtime)
        assert not running.done()
        await cancel_tasks(running)
    starting.close()


def limits(response: Any) -> dict[str, Any]:
    """What the answer to CreateContainer adjusts."""
    created = _CLASSES["Created"].FromString(response.payload)
    assert response.status.code == 0
    resources = created.adjust.linux.resources  # type: ignore[attr-defined]
    return {} if not response.payload else {
        "cpu_shares": resources.cpu.shares.value, "cpu_quota_us": resources.cpu.quota.value,
        "cpu_period_us": resources.cpu.period.value,
        "memory_limit_bytes": resources.memory.limit.value,
    }  # fmt: skip


def answers(result: str) -> float:
    return sum_of(node_metrics.NRI_ANSWERS, result=result)


async def test_a_runtime_registers_configures_and_asks(connected: Connected) -> None:
    plugin = await connected.plugin()
    call = await plugin.register()
    assert (call.service, call.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
    registered = _CLASSES["RegisterPlugin"].FromString(call.payload)
    assert str(registered) == 'plugin_name: "springtide"\nplugin_idx: "90"\n'
    assert (await plugin.call("Configure")).status.code == 0
    assert value_of(node_metrics.NRI_CONNECTED) == 1
    for more in (True, False):
        response = await plugin.call("Synchronize", encoded("Synchronize", more=more))
        assert _CLASSES["Synchronized"].FromString(response.payload).more is more  # type: ignore[attr-defined]
    for _ in range(2):
        expected = {name: value for name, value in LIMITS._asdict().items() if value}
        assert limits(await plugin.call("CreateContainer", CREATE)) == expected
    for service, method in (
        ("nri.pkg.api.v1alpha1.Plugin", "StopContainer"),
        ("other", "Configure"),
    ):
        assert (await plugin.call(method, service=service)).status.code == 12
    assert (await plugin.call("Shutdown")).status.code == 0


async def test_a_runtime_that_restarts_is_asked_again(connected: Connected) -> None:
    for _ in range(3):
        plugin = await connected.configured()
        plugin.writer.close()
    assert limits(await (await connected.configured()).call("CreateContainer", CREATE))


async def test_an_answer_that_takes_long_is_empty_and_the_next_is_not(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = await connected.configured(timeout_ms=400)
    answer, calls = ContainerStart.answer, 0

    def slow(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        time.sleep(2)
        return answer(*arguments, **more)

    before = answers("late")
    with monkeypatch.context() as patch:
        patch.setattr(ContainerStart, "answer", slow)
        for _ in range(3):  # while the first is in the works no other begins
            began = time.monotonic()
            assert limits(await plugin.call("CreateContainer", CREATE)) == {}
            assert time.monotonic() - began < 1.5
    assert (answers("late"), calls) == (before + 3, 1)
    await asyncio.sleep(2)
    assert limits(await plugin.call("CreateContainer", CREATE))


async def test_a_decision_that_fails_is_answered_with_nothing(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = await connected.configured()
    with monkeypatch.context() as patch:
        patch.setattr(ContainerStart, "answer", lambda *_, **more: 1 / 0)
        assert limits(await plugin.call("CreateContainer", CREATE)) == {}
    assert limits(await plugin.call("CreateContainer", CREATE))


async def test_what_cannot_be_restored_later_is_not_answered(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actuators.node.runtime_values.MOST_PLACES", 2)
    plugin = await connected.configured()
    assert limits(await plugin.call("CreateContainer", CREATE)) == {}


def request(payload: bytes) -> Message:
    return Message(PLUGIN, 99, REQUEST, payload)


HOSTILE: dict[str, bytes | Message] = {
    "a frame that is too long": struct.pack(">II", PLUGIN, MOST_PAYLOAD_BYTES + 11),
    "a message that is too long": struct.pack(
        ">IIIIBB", PLUGIN, 10, MOST_PAYLOAD_BYTES + 1, 1, REQUEST, 0
    ),
    "no request": request(b"\xff\xff"),
    "a text that is not UTF-8": request(b"\x0a\x02\xff\xfe"),
    "no argument": request(
        encoded("Request", service=PLUGIN_SERVICE, method="CreateContainer",
                payload=b"\x0a\xff")
    ),
    "a stream": Message(PLUGIN, 1, 3, b""),
    "an answer to nothing": Message(PLUGIN, 1, RESPONSE, b""),
    "a call in the other direction": Message(RUNTIME, 1, REQUEST, b""),
    "a refusal": Message(
        RUNTIME, 1, RESPONSE, encoded("Response", status={"code": 3, "message": "no"})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_input_ends_the_connection_alone(
    connected: Connected, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, sent = await connected.configured(), HOSTILE[name]
    if isinstance(sent, bytes):
        plugin.writer.write(sent)
    else:
        plugin.send(sent)
    with pytest.raises((EOFError, ConnectionResetError)):
        await plugin.message()
    assert limits(await (await connected.configured()).call("CreateContainer", CREATE))
    assert "the container runtime does not ask" in caplog.text


async def test_a_period_that_no_kernel_takes_ends_the_connection_alone(
    connected: Connected,
) -> None:
    """A quota of that period would be no number of the protocol."""
    more = (Container(name="main", scalars={**AMOUNTS, BATCH[0]: 4000}),)
    connected.starting.show(batch_pod(containers=more))
    await connected.starting.actuator.round()  # the pod gets its quota
    plugin = await connected.configured()
    event = _CLASSES["ContainerEvent"].FromString(CREATE)
    event.container.linux.resources.cpu.period.value = 2**63 - 1  # type: ignore[attr-defined]
    with pytest.raises((EOFError, ConnectionResetError)):
        await plugin.call("CreateContainer", event.SerializeToString())
    assert limits(await (await connected.configured()).call("CreateContainer", CREATE))


async def test_bytes_at_random_end_the_connection_alone(connected: Connected) -> None:
    chance = random.Random(5)
    for _ in range(10):
        plugin = await connected.configured()
        for _ in range(20):
            payload = chance.randbytes(chance.randrange(40))
            sent = request(payload) if chance.random() < 0.5 else Message(
                chance.randrange(4), chance.getrandbits(32), chance.randrange(4), payload
            )  # fmt: skip
            plugin.send(sent)
        plugin.writer.write(chance.randbytes(50))
        plugin.writer.close()
    assert limits(await (await connected.configured()).call("CreateContainer", CREATE))


async def test_a_runtime_that_stalls_within_a_message_is_left(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri_plugin, "STALL_SECONDS", 0.3)
    silent = await connected.plugin()
    await silent.message()  # it never calls Configure
    with pytest.raises(EOFError):
        await silent.message()
    plugin = await connected.configured()
    await asyncio.sleep(0.5)  # without a message it may be silent
    assert limits(await plugin.call("CreateContainer", CREATE))
    plugin.writer.write(struct.pack(">II", PLUGIN, 100) + b"half")
    with pytest.raises((EOFError, ConnectionResetError)):
        await plugin.message()
