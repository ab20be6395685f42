"""How models enter the stream from outside: as a round of checkpoints of an epoch of their own.

Owes the rest: an import is in force from the next takeover of its partition, or not at all, and
nothing else changes. A claim gives an epoch; every checkpoint that a worker would start from is
written again under it, the node's with what was imported, then the marker with the offsets of the
round that it continues. So a takeover replays what it would have replayed, on top of the import.
It is part of the state, not of the log: models that are rebuilt from the log are without it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from pipeline.agents.checkpoint_selection import Checkpoints, read_checkpoints
from pipeline.agents.consume import Readers
from pipeline.clock import Clock
from pipeline.errors import (
    CheckpointError,
    CheckpointLayoutError,
    NotReadyError,
    RecordError,
    StateError,
)
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Output
from pipeline.processors.exchange.export_models import put_back
from pipeline.processors.exchange.import_models import Learned, Taken, taken_over
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.state_codec import NodeState
from pipeline.times import format_time
from pipeline.topics.checkpoints import (
    IMPORT,
    Claim,
    NodeCheckpoint,
    claim_key,
    marker_key,
    node_key,
)
from pipeline.topics.codec import encode_pack

_T = TypeVar("_T")
Running = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Of these groups (`worker.id`) those of which workers run."""
Change = Callable[[bytes], tuple[bytes | None, _T]]
"""From a node's state to another one, None for no other, and what is to be said of it."""


async def change_models(
    node: str,
    change: Change[_T],
    *,
    place: tuple[str, int],
    output: Output | None,
    open_reader: Readers,
    running: Running,
    clock: Clock,
) -> _T:
    """Put what `change` makes of the models of `node` in their place; gives what it says.

    `place` is the topic `checkpoints` and the node's partition. Without `output` all is looked at
    and nothing written, whether or not workers run. Raises StateError while workers run, or if one
    takes the partition meanwhile, NotReadyError if no complete round has the node, and what
    `change` raises; the state is then as it was.
    """
    topic, partition = place
    async with open_reader([place]) as reader:
        found = await read_checkpoints(reader, *place, 0, _refuse)
        groups = await running({found.group} - {""})
        if output is not None:
            _require_idle(groups)
        chosen = {name: _sound(fit) for name, fit in found.fit().items()}
        marker = found.marker()
        if marker is None or node not in chosen:
            raise NotReadyError(
                f"no complete round of checkpoints has node {node!r:.100}",
                hint="let exporter and worker run for worker.checkpoint_interval_seconds, then "
                "stop the workers",
            )
        state, said = change(chosen[node].state)
        if state is None:
            return said
        chosen[node] = msgspec.structs.replace(chosen[node], state=state)
        _round(chosen, marker.epoch)  # before anything is written: it may be too large
        if output is None:
            return said
        claim = Claim(member=IMPORT, claimed_at=format_time(clock.now()), group=found.group)
        (epoch,) = await output.append(
            topic, partition, [Keyed(claim_key(IMPORT), encode_pack(claim))]
        )
        checkpoints = _round(chosen, epoch)
        renewed = msgspec.structs.replace(marker, epoch=epoch, round=1, nodes=len(chosen))
        written = [key for key, _ in checkpoints]
        try:
            await output.append(topic, partition, checkpoints)
            await _require_ours(reader, place, found, epoch)
            _require_idle(await running({found.group} - {""}))
            written.insert(0, marker_key(epoch))  # first: without it the rest says nothing
            (marked,) = await output.append(
                topic, partition, [Keyed(marker_key(epoch), encode_pack(renewed))]
            )
            await _require_ours(reader, place, found, epoch, marked)
        except StateError:
            await output.append(topic, partition, [Keyed(key, None) for key in written])
            raise
    return said


def adding(node: str, learned: Mapping[str, Learned], config: ModelConfig) -> Change[Taken]:
    """Add what others have learned of entities and pods of `node` to its models; says what was
    taken, of those that it has models of. Raises CheckpointError for models that do not fit."""

    def change(state: bytes) -> tuple[bytes | None, Taken]:
        changed, taken = _with_import(node, state, learned, config)
        return (changed if takes_anything(taken) else None), taken

    return change


def putting_back(
    node: str, data: bytes, config: ModelConfig, clock: Clock
) -> Change[NodeState | None]:
    """Put an exported state in place of the models of `node`; says what it replaces. Raises
    CheckpointError where `put_back` does."""

    def change(state: bytes) -> tuple[bytes | None, NodeState | None]:
        return put_back(node, state, data, config, now_ms=round(clock.now() * 1000))

    return change


def takes_anything(taken: Taken) -> bool:
    """Whether any model took any bucket."""
    return any(found and found.buckets for row in taken.values() for found in row)


def _with_import(
    node: str, data: bytes, learned: Mapping[str, Learned], config: ModelConfig
) -> tuple[bytes, Taken]:
    """The state with the import, which a bank of `config` has taken over, and what was taken.

    A pod that the node has no model of is left out, as long as something is left.
    """
    bank = Bank(config)
    bank.restore(node, data)
    state = state_codec.decode(data)
    known = {name: learned[name] for name in (*ENTITIES, *state.uids) if name in learned}
    merged, taken = taken_over(state, known or learned, config.profiles)
    encoded = state_codec.encode(merged)
    bank.restore(node, encoded)
    return encoded, taken


def _sound(fit: Sequence[NodeCheckpoint]) -> NodeCheckpoint:
    """The one that a worker would start from: the first of `fit` that is not damaged."""
    for checkpoint in fit:
        try:
            state_codec.decode(checkpoint.state)
        except CheckpointLayoutError:
            return checkpoint
        except CheckpointError:
            continue
        return checkpoint
    return fit[0]


def _round(chosen: Mapping[str, NodeCheckpoint], epoch: int) -> list[Keyed]:
    """The checkpoints as records of an epoch."""
    records = [
        Keyed(
            node_key(node, epoch),
            _fitting(msgspec.structs.replace(checkpoint, epoch=epoch, round=1)),
        )
        for node, checkpoint in chosen.items()
    ]
    if any(len(record.value or b"") > LARGEST_VALUE_BYTES for record in records):
        raise CheckpointError("with the import a checkpoint is larger than a record may be")
    return records


def _require_idle(groups: Collection[str]) -> None:
    if groups:
        raise StateError(
            f"workers of the group {', '.join(sorted(groups)):.300} run, and would go on without "
            "what is imported",
            hint="stop all workers of this topic prefix, import, start them again",
        )


def _fitting(checkpoint: NodeCheckpoint) -> bytes:
    """As `Rounds` would write it: the prediction that stands lies in its topic, too."""
    value = encode_pack(checkpoint)
    if len(value) > LARGEST_VALUE_BYTES:
        value = encode_pack(msgspec.structs.replace(checkpoint, prediction=None))
    return value


async def _require_ours(
    reader: LogReader,
    place: tuple[str, int],
    before: Checkpoints,
    epoch: int,
    marked: int | None = None,
) -> None:
    """Raise StateError if somebody has claimed the partition since `before`, and not behind our
    marker at offset `marked`: who does that has read it, and goes on with what was imported."""
    claims = (await read_checkpoints(reader, *place, 0, _refuse)).claims
    known = max(before.claims, default=-1)
    others = (claim for claim in claims if claim > known and claim != epoch)
    if any(marked is None or claim < marked for claim in others):
        raise StateError(
            "a worker took the partition meanwhile: the import may be in force, or not",
            hint="look with `springtide model inspect` after the next round of checkpoints; then "
            "stop all workers of this topic prefix, and import again if it is not",
        )


async def _refuse(topic: str, record: LogRecord, error: RecordError) -> None:
    """A record that cannot be read is a worker's to refuse; it is in no round that counts."""
