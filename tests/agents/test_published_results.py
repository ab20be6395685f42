"""Published node states tell how far the log was, whatever else is in their topic."""

import pytest

from pipeline.agents.published_results import published_end, published_states
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from tests.agents.fakes import MemoryBroker, MemoryReader

TOPIC = "t.node-state"


def state(node: str, offset: int, generation: int = 1) -> bytes:
    return encode_json(
        NodeStateRecord(
            node=node, as_of="2023-11-14T22:13:20Z", generation=generation, offset=offset, epoch=0,
            window_seconds=5.0, coverage=1.0,
        )
    )  # fmt: skip


async def end_of(broker: MemoryBroker) -> int:
    return await published_end(MemoryReader(broker, {(TOPIC, 0)}), TOPIC, 0, 1)  # type: ignore[arg-type]


async def test_state_under_the_key_of_another_node_is_ignored() -> None:
    broker = MemoryBroker()
    broker.put(TOPIC, 0, b"a", state("a", 10))
    broker.put(TOPIC, 0, b"evil", state("a", 10**15))
    broker.put(TOPIC, 0, b"a", state("evil", 10**15))
    assert await end_of(broker) == 11
    reader = MemoryReader(broker, {(TOPIC, 0)})
    published = await published_states(reader, TOPIC, 0)  # type: ignore[arg-type]
    assert {node: each.offset for node, each in published.items()} == {"a": 10}


@pytest.mark.parametrize("value", [None, b"foreign", state("b", 50, generation=2)])
@pytest.mark.parametrize("count", [99, 100, 1500])
async def test_many_other_records_do_not_hide_the_newest_state(
    value: bytes | None, count: int
) -> None:
    broker = MemoryBroker()
    broker.put(TOPIC, 0, b"a", state("a", 10))
    for _ in range(count):
        broker.put(TOPIC, 0, b"b", value)
    assert await end_of(broker) == 11


async def test_partition_without_states_has_no_end() -> None:
    broker = MemoryBroker()
    assert await end_of(broker) == 0
    for _ in range(250):
        broker.put(TOPIC, 0, b"a", None)
    broker.trim(TOPIC, 0, 30)
    assert await end_of(broker) == 0
