"""A partition that this worker owns, with its position in each log."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.agents.join_agent import JoinCursor
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership


@dataclass(slots=True)
class Shard:
    """One partition, from its claim to its revocation.

    `join` has the position in `samples`, `model` the position in `windows`, `cluster_state_ends`
    the next offsets of `nodes` and `pods` by topic, `topic_ids` the ids of all topics at the load.
    `stale_keys` are checkpoints of earlier epochs, to be deleted after the first complete round.
    Hold `saving` to write checkpoints: those of two rounds share their keys.
    """

    ownership: Ownership
    join: JoinCursor
    model: ModelCursor
    stale_keys: list[bytes] = field(default_factory=list)
    cluster_state_ends: dict[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)
