"""Widen nothing while the view of the node is stale.

An old view may lack the policy that narrowed a limit last, or a pod that arrived since. So limits
may become narrower, by fresh usage, but none becomes wider, and none is restored.
"""

from collections.abc import Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Place, is_wider
from pipeline.processors.node_qos.claims import Decision

HELD: Final = "held, the view of the node is stale"


def hold_back(
    decisions: Mapping[Place, Decision], written: Mapping[Place, Decision]
) -> dict[Place, Decision]:
    """`decisions` with the value of `written` wherever they would widen or restore it."""
    held = dict(decisions)
    for place, before in written.items():
        now = decisions.get(place)
        if now is None or is_wider(place.knob, now.value, before.value):
            held[place] = Decision(before.value, before.features, HELD)
    return held
