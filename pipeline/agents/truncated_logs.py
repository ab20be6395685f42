"""Continue after a log lost its last records, and stop after a topic was recreated.

An unclean election or a broker without its disk truncates a log: positions in checkpoints and
windows then lie behind its end, and the offsets in between are given to new records. These would be
skipped as old ones, so every position is set to the end, nodes are marked as `lost`, and the caller
writes a round of checkpoints with the new positions before anything else is appended.

A recreated topic has another id. Positions in it mean nothing, whatever its end is: the worker
stops, and the operator decides.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NoReturn

from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.errors import KafkaError, StateError
from pipeline.logs import get_logger
from pipeline.metrics import counter

log = get_logger(__name__)

CHECK_SECONDS: Final = 1.0
"""Time between two looks at the ends of the logs: until a truncated log grows beyond its former
end, it can be recognized."""

Ends = tuple[Mapping[int, int], Mapping[int, int]]
ReadEnds = Callable[[], Awaitable[Ends]]
SaveRound = Callable[[Shard], Awaitable[None]]

TRUNCATED = counter(
    "worker_truncated_records", "Offsets below a known position that a log no longer has.",
    ["topic"],
)  # fmt: skip


def check_topics(ids: Mapping[str, str], known: Iterable[Mapping[str, str]]) -> None:
    """Raise `StateError` if a topic has another id than in `known`; an unknown id is ignored."""
    for known_ids in known:
        for topic, known_id in known_ids.items():
            if ids.get(topic, known_id) != known_id:
                raise StateError(
                    f"{topic} was recreated: its id is {ids[topic]}, and state refers to "
                    f"{known_id}",
                    hint="delete all topics of this prefix and apply them, or use another prefix",
                )


def within_log(topic: str, partition: int, position: int, end: int) -> int:
    """Return `position`, or the `end` of the log if that is lower; count and log the difference."""
    if position > end:
        TRUNCATED.labels(topic).inc(position - end)
        log.error("log was truncated, continuing at its end", topic=topic, partition=partition,
                  position=position, end=end)  # fmt: skip
    return min(position, end)


def mark_truncated(model: ModelCursor, covers: Mapping[str, int], end: int) -> None:
    """Mark nodes of which models contain windows that the log no longer has."""
    for node, covered in covers.items():
        if covered > end and node in model.counters:
            model.lose(node, covered - end)


async def watch_ends(
    shards: Collection[Shard], read_ends: ReadEnds, save: SaveRound, clock: Clock
) -> NoReturn:
    """Raise `StateError` if a log ends before a position, with the new positions saved.

    The worker then starts again: its consumer may be anywhere in the samples. `read_ends` returns
    the ends of `samples` and of `windows` by partition, `save` writes a round of checkpoints.
    """
    while True:
        await clock.sleep(CHECK_SECONDS)
        # Before the ends are read, because the logs and these positions grow meanwhile.
        before = [(shard, shard.join.next_offset, shard.model.next_offset) for shard in shards]
        ends = await _known_ends(read_ends)
        if ends is None:
            continue
        problems = []
        for shard, joined, applied in before:
            partition = shard.ownership.partition
            end, log_end = ends[0][partition], ends[1][partition]
            if end < joined or log_end < applied:
                async with shard.join.appending, shard.model.busy:
                    _, windows = await _known_ends(read_ends) or ends
                    if log_end < applied:
                        _cut_windows(shard.model, log_end)
                    if end < joined:
                        _cut_samples(shard, end, windows[partition])
                    await save(shard)
                    # Windows and samples that are on their way may be lost ones.
                    shard.ownership.owned = False
                problems.append(
                    f"logs of partition {partition} were truncated: samples end at offset {end} "
                    f"and {joined} was next, windows end at {log_end} and {applied} was next"
                )
        if problems:
            raise StateError("; ".join(problems), hint="the worker starts again, at their ends")


async def _known_ends(read_ends: ReadEnds) -> Ends | None:
    try:
        return await read_ends()
    except KafkaError as error:
        log.debug("cannot read the ends of the logs", error=repr(error))
        return None


def _cut_windows(model: ModelCursor, end: int) -> None:
    mark_truncated(model, dict.fromkeys(model.counters, model.next_offset), end)
    model.next_offset = end
    model.rejoined_from = min(model.rejoined_from, end)
    model.failures.cut(end)
    model.generation += 1


def _cut_samples(shard: Shard, end: int, log_end: int) -> None:
    """Join from `end` on. Windows below `log_end` may have samples beyond it, also those that are
    not applied yet."""
    shard.join.next_offset = min(shard.join.next_offset, end)
    shard.model.joined = min(shard.model.joined, end - 1)
    shard.model.rejoined_from = log_end
