"""The policy of Mid and Batch for a node, as records of nodes and windows carry it.

Fields have the names and defaults of Koordinator's `colocation-config`. Fields with a description
are Springtide's own: each declares a key of `springtide-config` (see `springtide_config`). Defaults
are not written.
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
    """The overcommit policy in force for a node; a threshold of None is no limit. The
    [policy](../reference/policy.md) has the keys and their values.

    cpu_reclaim_threshold_percent: Percentage of capacity that Batch may fill.
    cpu_calculate_policy: What Prod and Mid count for CPU: usage, request or maxUsageRequest.
    memory_reclaim_threshold_percent: Percentage of capacity that Batch may fill.
    memory_calculate_policy: What Prod and Mid count for memory.
    degrade_time_minutes: Age of results from which nothing is offered.
    update_time_threshold_seconds: Longest time between two writes of an offer.
    resource_diff_threshold: Relative change from which an offer is written at once.
    batch_cpu_threshold_percent: Maximum of Batch in percent of capacity.
    batch_memory_threshold_percent: Maximum of Batch in percent of capacity.
    mid_cpu_threshold_percent: Maximum of Mid in percent.
    mid_memory_threshold_percent: Maximum of Mid in percent.
    mid_unallocated_percent: Percentage of what no pod requests that is added to Mid.
    mid_reclaim_mode: `static` for a fixed Mid, else empty.
    mid_static_cpu_reserved_percent: Mid in percent of capacity in the static mode.
    mid_static_memory_reserved_percent: Mid in percent of capacity in the static mode.
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
    mid_formula: Annotated[
        Name,
        Meta(
            title=", ".join(MID_FORMULAS),
            description="[formula of Mid](../explanation/overcommit.md#mid): of Koordinator's "
            "release notes, its code, or its proposal",
        ),
    ] = "v1.6"
    mid_reclaim_percent: Annotated[
        Share, Meta(description="percentage of Prod's requests in the proposal's formulas")
    ] = 100
    promise_once: Annotated[
        bool, Meta(description="false: Batch may be offered what is promised to Mid")
    ] = True
    buffer_percent: Annotated[
        Share, Meta(description="percentage of Mid and Batch that is held back")
    ] = 0
