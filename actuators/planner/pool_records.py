"""Records about node pools on `springtide.fleet`: which pools have one, and writing them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from prometheus_client import Counter

from pipeline.errors import KafkaError, KeyMismatchError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kafka.producer import Keyed
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import Record, encode_json
from pipeline.topics.pool_means import pool_key, pool_of_key
from pipeline.topics.registry import FLEET

log = get_logger(__name__)

_R = TypeVar("_R", bound=Record)

Write = Callable[[Keyed], Awaitable[None]]
"""Writes a record to partition 0 of `fleet` and awaits its delivery. Raises `KafkaError`."""


async def written(
    due: Iterable[tuple[str, _R | None]],
    kind: bytes,
    write: Write,
    may_publish: Callable[[], bool],
    results: Counter,
) -> AsyncIterator[tuple[str, _R | None]]:
    """Write the records of pools, None is a tombstone; yields each that is delivered. Ends with the
    first that is not, or that `may_publish` forbids. `results` counts them."""
    for pool, record in due:
        if not may_publish():
            return
        value = None if record is None else encode_json(record)
        try:
            await write(Keyed(pool_key(pool, kind), value))
        except KafkaError as error:
            results.labels("lost").inc()
            log.warning("record of a pool is not delivered", kind=kind, pool=pool,
                        why=error.message)  # fmt: skip
            return
        results.labels("published").inc()
        yield pool, record


async def read_pools_on_topic(kafka: KafkaSettings, kind: bytes) -> set[str]:
    """The pools that have a record of this kind on `fleet` now. Raises `KafkaError`."""
    pools: set[str] = set()
    async with open_follower(client_options(kafka), topic_partitions(kafka, FLEET)) as follower:
        await follower.begin()
        async for records in follower.read_to_end():
            for record in records:
                try:
                    pool = pool_of_key(record.key, kind)
                except KeyMismatchError:
                    continue
                if pool is not None:
                    (pools.discard if record.value is None else pools.add)(pool)
    return pools
