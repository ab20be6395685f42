"""The policy of Mid and Batch for a node, as records of nodes and windows carry it.

Fields have the names and defaults of Koordinator's `colocation-config`; `mid_formula`,
`mid_reclaim_percent`, `promise_once` and `buffer_percent` are Springtide's. Defaults are not
written.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

_MOST_PERCENT = 1_000_000
_YEAR_SECONDS = 31_536_000

UnboundedPercent = Annotated[int, Meta(ge=0, le=_MOST_PERCENT)]
"""A percentage that may exceed 100, as upstream allows. Above the limit a larger one has the same
effect."""
Share = Annotated[int, Meta(ge=0, le=100)]
MOST_LETTERS: Final = 100
Name = Annotated[str, Meta(max_length=MOST_LETTERS)]

MID_FORMULAS: Final = ("proposal", "proposal-unallocated", "v1.3", "v1.6", "source")
"""The formulas of Mid that `mid_formula` can name; `overcommit.mid.FORMULAS` has the computation of
each, and a test keeps both equal."""


class Overcommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The overcommit policy in force for a node; a threshold of None is no limit.

    `mid_formula` selects the formula of Mid, `mid_reclaim_percent` is the share of Prod's requests
    that the formulas of the proposal may reclaim. With `promise_once` resources promised to Mid are
    not promised to Batch again. `buffer_percent` of each result is held back.
    """

    cpu_reclaim_threshold_percent: UnboundedPercent = 60
    cpu_calculate_policy: Name = "usage"
    memory_reclaim_threshold_percent: UnboundedPercent = 65
    memory_calculate_policy: Name = "usage"
    degrade_time_minutes: Annotated[int, Meta(ge=1, le=_YEAR_SECONDS // 60)] = 15
    update_time_threshold_seconds: Annotated[int, Meta(ge=1, le=_YEAR_SECONDS)] = 300
    resource_diff_threshold: Annotated[float, Meta(ge=0)] = 0.1
    batch_cpu_threshold_percent: UnboundedPercent | None = None
    batch_memory_threshold_percent: UnboundedPercent | None = None
    mid_cpu_threshold_percent: Share = 100
    mid_memory_threshold_percent: Share = 100
    mid_unallocated_percent: Share = 0
    mid_reclaim_mode: Name = ""
    mid_static_cpu_reserved_percent: UnboundedPercent = 0
    mid_static_memory_reserved_percent: UnboundedPercent = 0
    mid_formula: Name = "v1.6"
    mid_reclaim_percent: Share = 100
    promise_once: bool = True
    buffer_percent: Share = 0
