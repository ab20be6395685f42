"""Export a node's models in Koordinator's format, and restore them from Springtide's own.

Springtide's format is the state itself (`state_codec`): it is restored bit for bit, or refused.
Koordinator's format has only histograms, rounded to a ten-thousandth of the heaviest bucket, and
only for models with Koordinator's buckets and half-lives.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.exchange.import_models import CLOCK_TOLERANCE_MS, KOORDINATOR_IDS
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.histogram import save_checkpoint
from pipeline.processors.model.model_config import ENTITIES, KOORDINATOR, ModelConfig, Profile
from pipeline.processors.model.state_codec import ModelState, dense_weights, unpack, unpack_columns
from pipeline.times import format_time

# It becomes the name of a file.
_UID: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,252}")


def replace_state(
    node: str,
    current: bytes,
    imported: bytes,
    config: ModelConfig,
    *,
    now_ms: int,
    may_be_older: bool = False,
) -> tuple[bytes, ModelState | None]:
    """Replace the state `current` by `imported`. Returns the new state and the replaced one, which
    is None if it is damaged.

    Models are taken bit for bit, but a state without a machine (learned from a file) gets the
    node's. The state of hot-node detection is no model: that of the newer state stays, because the
    node's next windows continue it, and an open alert must be able to close. Raises
    CheckpointError if the state is damaged, of another node or from the future, or (unless it
    `may_be_older`) an export that is older than the present state, and CheckpointLayoutError if a
    bank of `config` has another layout.
    """
    state = state_codec.decode(imported)
    if state.node != node:
        raise CheckpointError(
            f"it has the models of node {state.node!r:.100}, not of {node!r:.100}",
            hint=f"import it with --node {state.node:.100}, or another file",
        )
    if state.end_ms > now_ms + CLOCK_TOLERANCE_MS:
        raise CheckpointError(
            f"its last window ended at {format_time(state.end_ms / 1000)}, which is yet to come: "
            "the node's windows until then would be late",
            hint="compare the clocks of the machines",
        )
    try:
        Bank(config).restore(node, imported)
    except CheckpointLayoutError as error:
        raise CheckpointLayoutError(
            error.message,
            hint="give the settings of the worker that wrote it, here and to the workers; "
            "docs/explanation/models.md names those that shape models",
        ) from error
    try:
        replaced = state_codec.decode(current)
    except CheckpointError:
        return imported, None
    # A state that was learned from a file is meant to replace whatever the node has.
    if state.machine_id and state.end_ms < replaced.end_ms and not may_be_older:
        raise CheckpointError(
            f"it is of {format_time(state.end_ms / 1000)}, older than the node's models of "
            f"{format_time(replaced.end_ms / 1000)}, which it would replace",
            hint="export again, or repeat with --older to go back to it",
        )
    changed: dict[str, Any] = {}
    if not state.machine_id:
        changed |= {"machine_id": replaced.machine_id, "epoch": replaced.epoch}
    if not state.machine_id or state.end_ms < replaced.end_ms:
        changed["alerts"] = replaced.alerts
    return state_codec.encode(msgspec.structs.replace(state, **changed)), replaced


def to_koordinator(
    state: ModelState, profiles: tuple[Profile, ...]
) -> Mapping[str, Mapping[str, Any]]:
    """Koordinator's prediction checkpoints by UID, as `from_koordinator` reads them. Entities
    without samples and the class `unknown`, which Koordinator does not have, are left out.

    `profiles` are those of the state's model. Raises CheckpointError for buckets or half-lives
    other than Koordinator's, and for a UID that is not a valid file name.
    """
    names = (*ENTITIES, *state.uids)
    count = len(names)
    number = unpack(state.profile, "<i1", count)
    last_ms = unpack_columns(state)["last_ms"]
    weights = [dense_weights(state, r, profiles) for r in range(len(KOORDINATOR.layouts))]
    uids = {entity: uid for uid, entity in KOORDINATOR_IDS.items()}
    documents = {}
    for row, name in enumerate(names):
        if last_ms[row] == NEVER or (name in ENTITIES and name not in uids):
            continue
        if profiles[number[row]] != KOORDINATOR:
            raise CheckpointError(
                f"the buckets or half-lives of {name:.100} are not those of Koordinator",
                hint="only models with model.histogram.preset koordinator fit its files",
            )
        uid = uids.get(name, name)
        if not _UID.fullmatch(uid):
            raise CheckpointError(f"the pod UID {uid!r:.100} is not a valid file name")
        cpu, memory = (
            _stored(weights[r][row, : layout.num_buckets], state.reference_ms[number[row]][r])
            for r, layout in enumerate(KOORDINATOR.layouts)
        )
        documents[uid] = {
            "UID": uid,
            "LastUpdated": format_time(int(last_ms[row]) / 1000),
            "CPU": cpu,
            "Memory": memory,
        }
    return documents


def _stored(weights: FloatArray, reference_ms: int | None) -> dict[str, Any]:
    reference = None if reference_ms is None else format_time(reference_ms / 1000)
    return {"referenceTimestamp": reference, **save_checkpoint(weights)}
