"""How much CPU best-effort work may use: what the others leave of a share of the node."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pipeline.processors.node_qos.node_state import HostAppState, NodeState, PodState

_BEST_EFFORT_QOS: Final = "BE"


class Room(NamedTuple):
    """CPU for best-effort work in millicores, which may be negative, and who uses how much.

    `system_cores` is the larger of measured and reserved. `best_effort_cores` is None if a usage is
    unknown. `may_grow` is False in early rounds, and if usage is unknown that `allowed_millicores`
    should have been reduced by: best-effort work then gets no more than it has. `least_millicores`
    is what it gets in any case.
    """

    allowed_millicores: int
    pods_cores: float
    host_apps_cores: float
    system_cores: float
    best_effort_cores: float | None
    least_millicores: int | None
    may_grow: bool
    why: str

    def capped(self, most_millicores: int, why: str) -> "Room":
        """The room with at most so many millicores, but no less than `least_millicores`."""
        if most_millicores >= self.allowed_millicores:
            return self
        allowed = max(most_millicores, self.least_millicores or 0)
        return self._replace(
            allowed_millicores=allowed,
            why=f"{allowed}m for best-effort work: {why}",
        )


def best_effort_room(
    state: NodeState,
    threshold_percent: int,
    min_percent: int | None = None,
    *,
    predicted_cores: float | None = None,
) -> Room | None:
    """The CPU that best-effort work may use; None if the node's capacity is unknown.

    It is `threshold_percent` of capacity, minus the usage of other pods and host applications, or
    `predicted_cores` if that is more, minus usage by the system or what is reserved for it; at
    least `min_percent` of capacity. A pod of unknown usage counts by its request. Usage of
    best-effort pods that is unknown counts as the system's.

    Formula: Koordinator's [CPU suppress](https://koordinator.sh/docs/user-manuals/cpu-suppress),
    with the prediction as an addition.
    """
    capacity = state.capacity.cpu_millicores
    if capacity is None:
        return None
    pods = [pod for pod in state.pods if not pod.is_best_effort]
    apps = [app for app in state.host_apps if not is_best_effort_app(app)]
    low = [pod.cpu_cores for pod in state.pods if pod.is_best_effort]
    low += [app.cpu_cores for app in state.host_apps if is_best_effort_app(app)]
    pods_cores = sum(_cores_or_request(pod) for pod in pods)
    apps_cores = _known(app.cpu_cores for app in apps)
    reserved = _reserved_millicores(state, capacity)
    system_cores = reserved / 1000
    if state.cpu_cores is not None:
        rest = state.cpu_cores - pods_cores - apps_cores - _known(low)
        system_cores = max(system_cores, rest)
    used = int(pods_cores * 1000) + int(apps_cores * 1000)
    needed = max(used, int((predicted_cores or 0.0) * 1000))
    system = max(int(system_cores * 1000), reserved)
    share = capacity * threshold_percent // 100
    least = None if min_percent is None else capacity * min_percent // 100
    allowed = share - needed - system
    allowed = allowed if least is None else max(allowed, least)
    return Room(
        allowed,
        pods_cores,
        apps_cores,
        system_cores,
        None if None in low else _known(low),
        least,
        may_grow=not state.is_early
        and state.cpu_cores is not None
        and all(app.cpu_cores is not None for app in apps)
        and all(p.cpu_cores is not None or p.requests.cpu_millicores is not None for p in pods),
        why=f"{allowed}m for best-effort work: {threshold_percent}% of the node are {share}m, "
        f"others {'use' if needed == used else 'will use'} {needed}m, system {system}m",
    )


def is_best_effort_app(app: HostAppState) -> bool:
    """Whether suppression holds a host application down: only below the directory BestEffort."""
    return app.qos == _BEST_EFFORT_QOS and app.in_best_effort


def _cores_or_request(pod: PodState) -> float:
    if pod.cpu_cores is not None:
        return pod.cpu_cores
    return (pod.requests.cpu_millicores or 0) / 1000


def _known(cores: Iterable[float | None]) -> float:
    return sum(value for value in cores if value is not None)


def _reserved_millicores(state: NodeState, capacity: int) -> int:
    """What the kubelet or the node's annotation reserves for the system."""
    allocatable = state.allocatable.cpu_millicores
    by_kubelet = 0 if allocatable is None else max(capacity - allocatable, 0)
    return max(by_kubelet, state.reservation.cpu_millicores or 0)
