"""NodeResourcesFitPlus of Koordinator: pack some resources, spread others (scheduling 2.1)."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

Strategy = Literal["MostAllocated", "LeastAllocated"]
DEFAULT_REQUESTS: Final[Mapping[str, int]] = {"cpu": 100, "memory": 200 << 20}
"""What a container counts that states no request: 100 millicores, 200 MiB."""


class Resource(NamedTuple):
    strategy: Strategy
    weight: int


class InitContainer(NamedTuple):
    request: int | None
    is_sidecar: bool = False


def pod_request(
    resource: str, containers: Sequence[int | None], init_containers: Sequence[InitContainer]
) -> int:
    """What a pod asks for of `resource`, with defaults for containers that do not say.

    Sidecars run beside the containers, and beside the init containers that come after them: those
    that came before have ended (upstream adds their maximum to a sidecar, scheduling 2.1).
    """

    def of(request: int | None) -> int:
        return DEFAULT_REQUESTS.get(resource, 0) if request is None else request

    sidecars = highest = 0
    for one in init_containers:
        if one.is_sidecar:
            sidecars += of(one.request)
            highest = max(highest, sidecars)
        else:
            highest = max(highest, sidecars + of(one.request))
    return max(sum(map(of, containers)) + sidecars, highest)


def fit_plus(
    requested: Mapping[str, int],
    used: Mapping[str, IntArray],
    allocatable: Mapping[str, IntArray],
    resources: Mapping[str, Resource],
    nodes: int,
) -> IntArray:
    """The score, (nodes,): the mean over what the pod asks for and `resources` names, by weights;
    100 where that is nothing. `used` is what the pods of each node ask for already."""
    summed, weights = np.zeros(nodes, np.int64), 0
    for name, (strategy, weight) in resources.items():
        if requested.get(name, 0) <= 0:
            continue
        have = allocatable.get(name, np.zeros(nodes, np.int64))
        taken = used.get(name, np.zeros(nodes, np.int64)) + requested[name]
        packed = strategy == "MostAllocated"
        counted = np.minimum(taken, have) if packed else np.maximum(have - taken, 0)
        summed += weight * np.where(have > 0, counted * MAX_SCORE // np.maximum(have, 1), 0)
        weights += weight
    return summed // weights if weights else np.full(nodes, MAX_SCORE, np.int64)
