"""TargetLoadPacking of Trimaran: pack nodes up to a target of cpu usage, and no further.

Source: KEP-61 of scheduler-plugins, and what its code does (scheduling 3.1).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import half_away

UNMEASURED_SECONDS: Final = 60.0
"""A pod bound so shortly before the end of a window is not in its average."""


class Container(NamedTuple):
    """What a container asks for; None is not stated, which is not 0."""

    request_millicores: int | None = None
    limit_millicores: int | None = None


def container_millicores(
    container: Container, multiplier: float, default_millicores: int, use_limits: bool = True
) -> int:
    """What a container will use: its limit, if that counts, else its request times `multiplier`,
    else the default.

    >>> container_millicores(Container(request_millicores=5), 1.5, 1000)
    8
    """
    if use_limits and container.limit_millicores is not None:
        return container.limit_millicores
    if container.request_millicores is None:
        return default_millicores
    return int(half_away(np.array([container.request_millicores * multiplier]))[0])


def pod_millicores(
    containers: Iterable[Container],
    overhead_millicores: int,
    multiplier: float,
    default_millicores: int,
    use_limits: bool = True,
) -> int:
    """What a pod will use; its overhead as it is, its init containers not at all."""
    return overhead_millicores + sum(
        container_millicores(one, multiplier, default_millicores, use_limits) for one in containers
    )


def is_unmeasured(bound_seconds: FloatArray, window_end_seconds: FloatArray) -> np.ndarray:
    """Whether pods bound at these times are not yet in averages of windows that ended then."""
    return window_end_seconds - bound_seconds < UNMEASURED_SECONDS


def busier(average: FloatArray, latest: FloatArray) -> FloatArray:
    """What to reckon with, (nodes,): what is predicted by the average over a quarter of an hour, or
    by the last window where that is more (each with the pods that are not in it); NaN where neither
    is known. A pod that came two minutes ago is in the average with an eighth of what it uses: by
    that alone, as upstream has it, pods that come one by one take a node far over its target."""
    return np.fmax(average, latest)


def predicted_percent(
    used_percent: FloatArray, capacity_millicores: FloatArray, added_millicores: FloatArray
) -> FloatArray:
    """Usage in percent of capacity with what is added, (nodes,): the pod and those not measured
    yet. NaN where usage is unknown; 0 without capacity, as upstream has it."""
    with np.errstate(all="ignore"):
        used = used_percent / 100 * capacity_millicores
        percent = 100 * (used + added_millicores) / capacity_millicores
    return np.where(np.isnan(used_percent), np.nan, np.where(capacity_millicores > 0, percent, 0.0))


def target_load(percent: FloatArray, target_percent: float) -> IntArray:
    """The score of nodes with this predicted usage: from the target at no usage up to 100 at the
    target, from there down, 0 above 100 percent and where usage is unknown."""
    target = target_percent
    rising = (100 - target) * percent / target + target
    falling = target * (100 - percent) / (100 - target) if target < 100 else np.zeros_like(percent)
    with np.errstate(invalid="ignore"):
        score = np.where(percent <= target, rising, np.where(percent <= 100, falling, 0.0))
    return half_away(score)
