"""Import models as a round of checkpoints with an epoch of its own.

An import is in force from the next load of its partition, or not at all. A claim gives the epoch.
Each checkpoint that a worker would start from is written again with that epoch, the node's with the
imported models, then the marker with the offsets of the previous round. So the next load replays
the same windows, on top of the import. All nodes are written, because a load reads one epoch only.
An import is part of the checkpoints, not of the log: models that are rebuilt from the log do not
have it.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from pipeline.agents.checkpoint_rounds import encode_checkpoint
from pipeline.agents.checkpoint_selection import (
    PartitionCheckpoints,
    read_checkpoints,
)
from pipeline.agents.consume import Readers
from pipeline.agents.refusals import ignore_records
from pipeline.clock import Clock
from pipeline.errors import (
    CheckpointError,
    CheckpointLayoutError,
    NotReadyError,
    StateError,
)
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Producer
from pipeline.processors.exchange.export_models import replace_state
from pipeline.processors.exchange.import_models import ImportedModel, ImportResults, merge_models
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.state_codec import ModelState
from pipeline.times import format_time
from pipeline.topics.checkpoints import (
    IMPORT,
    Claim,
    NodeCheckpoint,
    RoundMarker,
    claim_key,
    marker_key,
)
from pipeline.topics.codec import encode_pack
from pipeline.topics.node_state import Counters

_T = TypeVar("_T")
FindRunning = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Returns the groups (`Settings.worker_group`) among the given ones that have running workers."""
Change = Callable[[bytes], tuple[bytes | None, _T]]
"""Returns the new state of a node, None for no change, and a result for the caller."""


async def change_models(
    node: str,
    change: Change[_T],
    *,
    topic_partition: tuple[str, int],
    output: Producer | None,
    open_reader: Readers,
    find_running: FindRunning,
    clock: Clock,
) -> _T:
    """Replace the models of `node` with what `change` returns; return its result.

    `topic_partition` is the topic `checkpoints` and the node's partition. Without `output`
    everything is checked and nothing written, even while workers run.

    Raises StateError while workers run, or if a worker claims the partition meanwhile,
    NotReadyError if no complete round has the node, and the errors of `change`. The state is then
    unchanged.
    """
    async with open_reader([topic_partition]) as reader:
        content = await read_checkpoints(reader, *topic_partition, 0, ignore_records)
        groups = await find_running({content.group} - {""})
        if output is not None:
            _require_idle(groups)
        selected = {name: _intact(usable) for name, usable in content.usable().items()}
        marker = content.marker()
        if marker is None or node not in selected:
            raise NotReadyError(
                f"no complete round of checkpoints has node {node!r:.100}",
                hint="let exporter and worker run for worker.checkpoint_interval_seconds, then "
                "stop the workers",
            )
        state, result = change(selected[node].state)
        if state is None:
            return result
        selected[node] = msgspec.structs.replace(selected[node], state=state)
        _round(selected.values(), marker.epoch)  # check the size before writing
        if output is not None:
            await _write_round(
                content, selected, marker, topic_partition=topic_partition, output=output,
                reader=reader, find_running=find_running, clock=clock,
            )  # fmt: skip
    return result


async def _write_round(
    content: PartitionCheckpoints,
    selected: Mapping[str, NodeCheckpoint],
    marker: RoundMarker,
    *,
    topic_partition: tuple[str, int],
    output: Producer,
    reader: LogReader,
    find_running: FindRunning,
    clock: Clock,
) -> None:
    """Write `selected` as a round of an epoch of its own: claim, checkpoints, then the marker.

    Readers ignore the round until its marker is there, so a crash before it changes nothing. Kafka
    cannot make the marker depend on the absence of workers: they are looked for before and after
    it, and the round is withdrawn if there are any.
    """
    topic, partition = topic_partition
    claim = Claim(
        member=IMPORT, claimed_at=format_time(clock.now()), group=content.group,
        topic_ids=content.topic_ids.get(marker.epoch, {}),
    )  # fmt: skip
    (epoch,) = await output.append(topic, partition, [Keyed(claim_key(IMPORT), encode_pack(claim))])
    checkpoints = _round(selected.values(), epoch)
    # Of unreadable checkpoints nobody knows the counters: all their windows are lost.
    unreadable = {node: Counters(lost=max(marker.resume, 1)) for node in content.reset_nodes()}
    new_marker = msgspec.structs.replace(
        marker, epoch=epoch, round=1, nodes=len(selected) + content.missing,
        left_out=unreadable | marker.left_out,
    )  # fmt: skip
    written = [key for key, _ in checkpoints]
    try:
        await output.append(topic, partition, checkpoints)
        await _require_ours(reader, topic_partition, content, epoch)
        _require_idle(await find_running({content.group} - {""}))
        written.insert(0, marker_key(epoch))  # deleted first: without it the others are ignored
        (marked,) = await output.append(
            topic, partition, [Keyed(marker_key(epoch), encode_pack(new_marker))]
        )
        await _require_ours(reader, topic_partition, content, epoch, marked)
    except StateError:
        await output.append(topic, partition, [Keyed(key, None) for key in written])
        raise


def add_models(
    node: str, learned: Mapping[str, ImportedModel], config: ModelConfig
) -> Change[ImportResults]:
    """Return a change that adds `learned` models of entities and pods to the models of `node`.

    Its result is what was added. Raises CheckpointError for models that do not fit.
    """

    def change(state: bytes) -> tuple[bytes | None, ImportResults]:
        changed, taken = _with_import(node, state, learned, config)
        return (changed if takes_anything(taken) else None), taken

    return change


def replace_models(
    node: str, data: bytes, config: ModelConfig, clock: Clock, *, may_be_older: bool = False
) -> Change[ModelState | None]:
    """Return a change that replaces the models of `node` with the exported state `data`.

    Its result is the replaced state. Raises CheckpointError like `replace_state`.
    """

    def change(state: bytes) -> tuple[bytes | None, ModelState | None]:
        now_ms = round(clock.now() * 1000)
        return replace_state(node, state, data, config, now_ms=now_ms, may_be_older=may_be_older)

    return change


def takes_anything(taken: ImportResults) -> bool:
    """Return whether any bucket was added to any model."""
    return any(cell and cell.buckets for row in taken.values() for cell in row)


def _with_import(
    node: str, data: bytes, learned: Mapping[str, ImportedModel], config: ModelConfig
) -> tuple[bytes, ImportResults]:
    """Return the state with the import, and what was added. A bank of `config` accepts the state.

    Pods without a model on the node are skipped, unless that leaves nothing.
    """
    bank = Bank(config)
    bank.restore(node, data)
    state = state_codec.decode(data)
    known = {name: learned[name] for name in (*ENTITIES, *state.uids) if name in learned}
    merged, taken = merge_models(state, known or learned, config.profiles)
    encoded = state_codec.encode(merged)
    bank.restore(node, encoded)
    return encoded, taken


def _intact(usable: Sequence[NodeCheckpoint]) -> NodeCheckpoint:
    """Return the first intact checkpoint, from which a worker would start."""
    for checkpoint in usable:
        try:
            state_codec.decode(checkpoint.state)
        except CheckpointLayoutError:
            return checkpoint
        except CheckpointError:
            continue
        return checkpoint
    return usable[0]


def _round(selected: Iterable[NodeCheckpoint], epoch: int) -> list[Keyed]:
    """Encode the checkpoints as records of `epoch`."""
    records = [
        encode_checkpoint(msgspec.structs.replace(checkpoint, epoch=epoch, round=1))
        for checkpoint in selected
    ]
    if any(len(record.value or b"") > LARGEST_VALUE_BYTES for record in records):
        raise CheckpointError("with the import a checkpoint exceeds the record limit")
    return records


def _require_idle(groups: Collection[str]) -> None:
    if groups:
        raise StateError(
            f"workers of the group {', '.join(sorted(groups)):.300} are running and would not load "
            "the import",
            hint="stop all workers of this topic prefix, import, start them again",
        )


async def _require_ours(
    reader: LogReader,
    topic_partition: tuple[str, int],
    before: PartitionCheckpoints,
    epoch: int,
    marked: int | None = None,
) -> None:
    """Raise StateError if a worker has claimed the partition since `before`.

    A claim after our marker at offset `marked` is fine: that worker loads the import.
    """
    claims = (await read_checkpoints(reader, *topic_partition, 0, ignore_records)).claims
    known = max(before.claims, default=-1)
    others = (claim for claim in claims if claim > known and claim != epoch)
    if any(marked is None or claim < marked for claim in others):
        raise StateError(
            "a worker claimed the partition during the import, which may or may not be in force",
            hint="check with `springtide model inspect` after the next round of checkpoints; if it "
            "is not, stop all workers of this topic prefix and import again",
        )
