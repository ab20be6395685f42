"""Topic ids come from any broker that answers. With a broker: tests/integration/test_follow.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import NodeNotReadyError

from pipeline.kafka import topic_ids as module
from pipeline.kafka.topic_ids import topic_ids


class FakeClient:
    """A client of brokers of which `down` do not answer; the first `failures` requests fail."""

    def __init__(self, down: set[int], failures: int = 0, seconds: float = 5.0) -> None:
        self.asked: list[int] = []
        self._down, self._failures = down, failures
        self._request_timeout_ms = 1000 * seconds
        brokers = [SimpleNamespace(nodeId=number) for number in (1, 2, 3)]
        self.cluster = SimpleNamespace(brokers=lambda: brokers)

    async def send(self, broker: int, _: Any) -> Any:
        self.asked.append(broker)
        if broker in self._down or len(self.asked) <= self._failures:
            raise NodeNotReadyError
        return SimpleNamespace(topics=[(0, "t", bytes(16)), (3, "unknown", bytes(16))])


@pytest.mark.parametrize(("down", "failures"), [(set[int](), 0), ({1, 3}, 0), (set[int](), 7)])
async def test_a_broker_that_does_not_answer_is_not_the_last_word(
    monkeypatch: pytest.MonkeyPatch, down: set[int], failures: int
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    client: Any = FakeClient(down, failures)
    assert await topic_ids(client, ["t"]) == {"t": "00000000-0000-0000-0000-000000000000"}


async def test_without_any_broker_the_error_is_raised_in_time() -> None:
    client: Any = FakeClient({1, 2, 3}, seconds=0.0)
    with pytest.raises(NodeNotReadyError):
        await topic_ids(client, ["t"])
    assert sorted(client.asked) == [1, 2, 3]
