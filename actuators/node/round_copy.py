"""A copy of what the last round decided from, to ask what a round of another state would decide."""

import copy
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from node_exporter.kernel.cgroup_paths import Driver
from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.claims import Claim, Decision, merge_claims
from pipeline.processors.node_qos.hold_back import hold_back
from pipeline.processors.node_qos.node_state import Feature, NodeState
from pipeline.settings.node_actuator_settings import FeatureMode

_Decisions = dict[Place, Decision]


class RoundCopy(NamedTuple):
    """The state of a round, the features with their modes and former claims, and what the round
    wrote. `is_held`: its view was stale."""

    state: NodeState
    features: tuple[Feature, ...]
    modes: Mapping[str, FeatureMode]
    former: Mapping[str, Mapping[Place, Value]]
    written: Mapping[Place, Decision]
    is_held: bool

    @classmethod
    def of(
        cls, state: NodeState, features: Iterable[Feature], modes: Mapping[str, FeatureMode],
        claims: Mapping[str, Iterable[Claim]], written: Mapping[Place, Decision], is_held: bool,
    ) -> "RoundCopy":  # fmt: skip
        """Copy the memory of features; everything else is not changed in place."""
        former = {
            name: {claim.place: claim.value for claim in wanted} for name, wanted in claims.items()
        }
        return cls(state, copy.deepcopy(tuple(features)), modes, former, written, is_held)

    @property
    def driver(self) -> Driver:
        """The cgroup driver of the node, by its directories."""
        is_slice = self.state.kubepods_path.endswith(".slice")
        return Driver.SYSTEMD if is_slice else Driver.CGROUPFS

    def decide(self, state: NodeState) -> tuple[_Decisions, _Decisions]:
        """What a round of `state` would write, and what it would decide with those features that
        only observe. Raises what a feature raises. A copy answers once."""
        acting: list[Claim] = []
        observing: list[Claim] = []
        for feature in self.features:
            mode = self.modes[feature.name]
            if mode != "off":
                claims = feature.claims(state, self.former.get(feature.name, {}))
                (acting if mode == "act" else observing).extend(claims)
        decisions = merge_claims(acting)
        if self.is_held:
            decisions = hold_back(decisions, self.written)
        observed = merge_claims([*acting, *observing]) if observing else {}
        return decisions, {
            place: decision
            for place, decision in observed.items()
            if any(self.modes[name] == "observe" for name in decision.features)
        }
