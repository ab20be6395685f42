"""What pools of nodes learned of their calibrated peaks: how far usage came above its shape.

A worker states the outcomes of a node in its record of `springtide.predictions`. The planner adds
up those of a pool in `springtide.fleet`, with the key `outcomes/<pool>`, and the join writes that
record into windows. Readers that do not know it ignore it.

Outcomes are z = log(highest usage / shape), see `pipeline.processors.calibrated.pooled_margins`.
"""

from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pipeline.times import parse_time
from pipeline.topics.codec import Record
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from pipeline.topics.result_header import check_time

PROBABILITIES: Final = (
    0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.975,
    0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1.0,
)  # fmt: skip
"""The probabilities of the quantiles: risks are the distances from 1."""
LONGEST_MS: Final = 86_400_000
"""How far the outcomes of a pool may be from the end of a window that uses them."""
OUTCOMES: Final = b"outcomes/"
"""How keys of the outcomes of a pool begin."""

Risk = Annotated[float, Meta(gt=0, lt=1)]
HorizonSeconds = Annotated[int, Meta(ge=1, le=86_400)]
Days = Annotated[float, Meta(ge=-1e4, le=1e4)]


class OutcomeQuantiles(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A distribution of outcomes.

    weight: How many independent outcomes they are worth: those of one horizon, of a node or of all
      nodes of a pool, count 1.
    quantiles: Quantiles of z, ascending; their probabilities are `PROBABILITIES`.
    """

    weight: Annotated[float, Meta(gt=0, le=1e6)]
    quantiles: Annotated[
        tuple[Annotated[float, Meta(ge=-10, le=10)], ...],
        Meta(min_length=len(PROBABILITIES), max_length=len(PROBABILITIES)),
    ]

    def __post_init__(self) -> None:
        if any(lower > higher for lower, higher in pairwise(self.quantiles)):
            raise ValueError("quantiles must ascend")


class ResourceOutcomes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcomes of a node, of one resource.

    distribution: How far usage came above its shape; null without outcomes.
    judged_days: For how long predictions were made that count in the next two.
    unspent_days: Sum over ended ones of the risk they took less the measured one, times their time.
    running_days: Sum over running ones of the declared risk less the one to expect by now.
    """

    distribution: OutcomeQuantiles | None = None
    judged_days: Annotated[float, Meta(ge=0, le=1e4)] = 0.0
    unspent_days: Days = 0.0
    running_days: Days = 0.0


class NodeOutcomes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcomes of the calibrated peaks of Prod of a node.

    horizon_seconds: The time for which its peaks should hold.
    risk: The declared risk.
    cpu: Of CPU.
    memory: Of memory.
    """

    horizon_seconds: HorizonSeconds
    risk: Risk
    cpu: ResourceOutcomes = ResourceOutcomes()
    memory: ResourceOutcomes = ResourceOutcomes()


class PooledOutcomes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcomes of a pool, of one resource.

    distribution: How far usage came above its shape; null without outcomes.
    level: The risk at which to predict, so that the measured rate of the pool comes to the declared
      one; null while no prediction was judged.
    """

    distribution: OutcomeQuantiles | None = None
    level: Risk | None = None


class PoolOutcomesRecord(Record, frozen=True, kw_only=True):
    """The outcomes of the calibrated peaks of Prod of a node pool.

    pool: The node pool.
    at: Time of the newest outcomes of its nodes, RFC 3339, UTC. Readers order records by it.
    nodes: Nodes whose outcomes it has.
    horizon_seconds: The time for which their peaks should hold.
    risk: The declared risk.
    cpu: Of CPU.
    memory: Of memory.
    """

    pool: str = DEFAULT_POOL
    at: str
    nodes: Annotated[int, Meta(ge=1)]
    horizon_seconds: HorizonSeconds
    risk: Risk
    cpu: PooledOutcomes = PooledOutcomes()
    memory: PooledOutcomes = PooledOutcomes()

    def __post_init__(self) -> None:
        check_time("at", self.at)

    @property
    def at_ms(self) -> int:
        """`at` in milliseconds since 1970."""
        return round(1000 * parse_time(self.at))
