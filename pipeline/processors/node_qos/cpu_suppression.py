"""Hold best-effort work down to the CPU that the others leave, by CPU set or by quota."""

from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.processors.node_qos.best_effort_room import Room, best_effort_room
from pipeline.processors.node_qos.cgroup_values import (
    SMALLEST_SUPPRESSED_QUOTA_US,
    UNLIMITED,
    CpuSet,
    Knob,
    Place,
    Value,
)
from pipeline.processors.node_qos.claims import HELD, Claim, held
from pipeline.processors.node_qos.cpu_pools import (
    best_effort_cpus,
    best_effort_cpuset_paths,
    has_unknown_owners,
    owned_cpus,
    unknown_elsewhere,
)
from pipeline.processors.node_qos.cpuset_choice import next_cpuset
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.processors.node_qos.pressure_reaction import PressureReaction
from pipeline.processors.node_qos.prod_forecast import predicted_peak_cores
from pipeline.processors.slo.nodeslo import ThresholdStrategy

DEFAULT_THRESHOLD_PERCENT: Final = 65
_QUOTA_PER_MILLICORE: Final = 100


class CpuSuppression:
    """Koordinator's [CPU suppress](https://koordinator.sh/docs/user-manuals/cpu-suppress).

    With the policy `cpuset` all cgroups of best-effort work get a smaller CPU set, with `cfsQuota`
    the directory BestEffort gets a quota. Both shrink at once and grow by at most a tenth of the
    node in a round. `pressure_percent` is the CPU pressure at which `PressureReaction` starts,
    `forecast_sigmas` are those of `predicted_peak_cores`; None switches an addition off.
    """

    name = "cpu_suppression"
    reads_usage: Final = True

    def __init__(self, pressure_percent: float | None, forecast_sigmas: float | None) -> None:
        self._pressure = None if pressure_percent is None else PressureReaction(pressure_percent)
        self._forecast_sigmas = forecast_sigmas
        self._has_seen_usage = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        """The CPU set or the quota of best-effort work; empty if suppression is switched off."""
        if state.slo is None:
            return held(former, self.name)
        rules = state.slo.resource_used_threshold_with_be
        if rules is None or not rules.enable:
            if self._pressure is not None:
                self._pressure.reset()
            return []
        room = self._room(state, rules)
        if rules.cpu_suppress_policy == "cfsQuota":
            place = Place(state.best_effort_path, Knob.CPU_QUOTA)
            quota = _next_quota_us(room, state.capacity.cpu_millicores, former.get(place))
            return [] if quota is None else [_claim(place, quota, room)]
        kept = held(former, self.name, unknown_elsewhere(state))
        moving = former.items() - {(claim.place, claim.value) for claim in kept}
        cpus = _next_cpus(state, room, dict(moving))
        paths = best_effort_cpuset_paths(state)
        claims = [_claim(Place(path, Knob.CPUSET), cpus, room) for path in paths if cpus]
        return claims + kept

    def _room(self, state: NodeState, rules: ThresholdStrategy) -> Room | None:
        """The room now; None if it is unknown. Before the first usage of the node it is, so that a
        restart does not hold best-effort work down to what the others request."""
        self._has_seen_usage |= state.cpu_cores is not None
        if not self._has_seen_usage:
            return None
        predicted = None
        if self._forecast_sigmas is not None:
            predicted = predicted_peak_cores(state.recent_prod_cores, self._forecast_sigmas)
        threshold = rules.cpu_suppress_threshold_percent
        room = best_effort_room(
            state,
            DEFAULT_THRESHOLD_PERCENT if threshold is None else threshold,
            rules.cpu_suppress_min_percent,
            predicted_cores=predicted,
        )
        if room is None or self._pressure is None:
            return room
        cap = self._pressure.cap_millicores(state, room)
        return room if cap is None else room.capped(cap, "other pods wait for CPU")


def _claim(place: Place, value: Value, room: Room | None) -> Claim:
    return Claim(place, value, CpuSuppression.name, HELD if room is None else room.why)


def _next_quota_us(room: Room | None, capacity: int | None, former: Value | None) -> int | None:
    """The quota of the directory BestEffort; None if there is none and no room is known."""
    current = former if isinstance(former, int) else None
    if room is None or capacity is None:
        return current
    target = max(room.allowed_millicores * _QUOTA_PER_MILLICORE, SMALLEST_SUPPRESSED_QUOTA_US)
    if current is None or current >= UNLIMITED:
        return target
    if not room.may_grow:
        return min(target, current)
    one_percent = capacity * _QUOTA_PER_MILLICORE // 100
    is_small = abs(target - current) < one_percent
    if is_small and target != SMALLEST_SUPPRESSED_QUOTA_US:
        return current
    return min(target, current + 10 * one_percent)


def _next_cpus(state: NodeState, room: Room | None, former: Mapping[Place, Value]) -> CpuSet | None:
    """The CPU set of best-effort work; None if it had none and no CPU can be chosen."""
    current = _narrowest_set(former)
    if room is None:
        return current
    usable = best_effort_cpus(state)
    if current is not None and (has_unknown_owners(state) or not room.may_grow):
        usable &= current
    step = next_cpuset(
        room.allowed_millicores,
        state.cpus,
        old_size=len(usable if current is None else current),
        usable=usable,
        lsr_owned=owned_cpus(state, "LSR"),
        node_cpus=len(state.cpus),
    )
    return step.cpus or current


def _narrowest_set(values: Mapping[Place, Value]) -> CpuSet | None:
    """The smallest of the CPU sets, which differ after a crash between writes; None if none."""
    sets: Iterable[CpuSet] = (value for value in values.values() if isinstance(value, frozenset))
    return min(sets, key=lambda cpus: (len(cpus), sorted(cpus)), default=None)
