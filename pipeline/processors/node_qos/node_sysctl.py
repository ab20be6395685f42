"""Kernel settings of the whole node, by the system strategy.

As in Koordinator, a value out of its range is skipped and not clamped. What the strategy no longer
sets is restored, which Koordinator does not do.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.processors.slo.nodeslo import SystemStrategy

_MIN_FREE_KBYTES: Final = range(10 * 1024, 10 * 1024**2 + 1)
_WATERMARK_SCALE: Final = range(10, 400 + 1)
_FLAG: Final = range(2)
_NANOSECONDS: Final = range(2**63)
_FEATURE: Final = re.compile("[A-Z][A-Z0-9_]{0,63}")


class NodeSysctl:
    """Claim memory reserves and scheduler settings of the node."""

    name: Final = "node_sysctl"
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        if state.slo is None or (strategy := state.slo.system_strategy) is None:
            return held(former, self.name)
        values = dict(_values(strategy, state.capacity.memory_bytes))
        min_free = Place("", Knob.NODE_MIN_FREE_KBYTES)
        unknown = (
            strategy.min_free_kbytes_factor is not None and state.capacity.memory_bytes is None
        )
        if unknown and min_free in former:
            values[min_free] = former[min_free]
        return [
            Claim(place, value, self.name, "kernel settings") for place, value in values.items()
        ]


def _values(strategy: SystemStrategy, capacity_bytes: int | None) -> Iterator[tuple[Place, Value]]:
    min_free_kbytes = None
    if strategy.min_free_kbytes_factor is not None and capacity_bytes is not None:
        min_free_kbytes = capacity_bytes // 1024 * strategy.min_free_kbytes_factor // 10_000
    stated = (
        (Knob.NODE_MIN_FREE_KBYTES, min_free_kbytes, _MIN_FREE_KBYTES),
        (Knob.NODE_WATERMARK_SCALE, strategy.watermark_scale_factor, _WATERMARK_SCALE),
        (Knob.NODE_MEMCG_REAP, strategy.memcg_reap_back_ground, _FLAG),
        (Knob.NODE_GROUP_IDENTITY, strategy.sched_group_identity_enabled, _FLAG),
        (Knob.NODE_IDLE_SAVER, strategy.sched_idle_saver_wmark, _NANOSECONDS),
        (Knob.NODE_PAGE_CACHE_LIMIT, strategy.page_cache_limit_enabled, _FLAG),
    )
    for knob, value, allowed in stated:
        if value is not None and value in allowed:
            yield Place("", knob), value
    for name, is_on in (strategy.sched_features or {}).items():
        if _FEATURE.fullmatch(name) and not name.startswith("NO_"):
            yield Place("", Knob.NODE_SCHED_FEATURE, name), int(is_on)
