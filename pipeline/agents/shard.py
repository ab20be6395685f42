"""A shard: one partition in this worker's hands, with a position in each of its logs.

The join cursor stands in `samples`, the model cursor in `windows`. A shard is owned from its claim
to its revocation; whoever comes back from an await asks `owned` before acting on it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.agents.join_agent import JoinCursor
    from pipeline.agents.model_agent import ModelCursor


@dataclass(slots=True)
class Ownership:
    """Whether the partition is still ours; shared by the cursors of one shard."""

    partition: int
    epoch: int
    owned: bool = True


@dataclass(slots=True)
class Shard:
    ownership: Ownership
    join: "JoinCursor"
    model: "ModelCursor"
    inventory_ends: dict[str, int] = field(default_factory=dict)
