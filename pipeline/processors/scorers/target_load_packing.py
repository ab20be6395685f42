"""TargetLoadPacking of Trimaran: pack nodes up to a target of cpu usage, and no further.

Source: scheduler-plugins' KEP-61 and the plugin's code. Upstream uses only the average of a quarter
of an hour. A pod that started two minutes ago counts there with an eighth of its usage, so nodes
that get a pod a minute end far over the target: here the last window counts if it is busier.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers import trimaran
from pipeline.processors.scorers.load_statistics import average_percent, usage_of_capacity
from pipeline.processors.scorers.rounding import round_half_away
from pipeline.processors.scorers.scorer import (
    Counts,
    NodesView,
    Packing,
    PodDemand,
    Scorer,
    usage_expires,
)
from pipeline.topics.resource_amounts import millicores

UNMEASURED_SECONDS: Final = 60.0
"""The average does not include a pod that was bound less than this before the window's end."""

_MULTIPLIER: Final = re.compile(r"\d{1,6}(\.\d{1,6})?")
_DEFAULT_TARGET: Final = 40
_HIGHEST_TARGET: Final = 100
_DEFAULT_MULTIPLIER: Final = "1.5"


class TargetLoadPackingArgs(trimaran.TrimaranArgs, frozen=True, kw_only=True):
    """With `use_limits` off (ours) a container is predicted to use its request times the
    multiplier, whatever its limit; with it, as upstream, its limit if it has one."""

    target_utilization: int | None = None
    default_requests: dict[str, str | int] | None = None
    default_requests_multiplier: str | None = None
    use_limits: bool = True

    @property
    def packing(self) -> Packing:
        """How cpu of containers is predicted; a container without requests uses the default."""
        default = millicores((self.default_requests or {}).get("cpu", 0))
        multiplier = float(self.default_requests_multiplier or 1)
        return Packing(multiplier, default, self.use_limits)


def container_millicores(request: int | None, limit: int | None, packing: Packing) -> int:
    """The predicted cpu of a container by its request and limit in millicores, None is not set: the
    limit, if that counts, else the request times the multiplier, else the default.

    >>> container_millicores(5, None, Packing(multiplier=1.5))
    8
    """
    if packing.use_limits and limit is not None:
        return limit
    if request is None:
        return packing.default_millicores
    return int(round_half_away(np.array([request * packing.multiplier]))[0])


def is_unmeasured(bound_seconds: FloatArray, window_end_seconds: FloatArray) -> np.ndarray:
    """Whether averages of windows that ended then do not include pods bound at these times."""
    return window_end_seconds - bound_seconds < UNMEASURED_SECONDS


def busier(average: FloatArray, latest: FloatArray) -> FloatArray:
    """The larger of two predictions, (nodes,), by the average and by the last window; NaN where
    neither is known."""
    return np.fmax(average, latest)


def predicted_percent(
    used_percent: FloatArray, capacity_millicores: FloatArray, added_millicores: FloatArray
) -> FloatArray:
    """Usage in percent of capacity, (nodes,), with the added pod and pods not measured yet.
    NaN where usage is unknown; 0 without capacity, as upstream."""
    with np.errstate(all="ignore"):
        used = used_percent / 100 * capacity_millicores
        percent = 100 * (used + added_millicores) / capacity_millicores
    return np.where(np.isnan(used_percent), np.nan, np.where(capacity_millicores > 0, percent, 0.0))


def target_load(percent: FloatArray, target_percent: float) -> IntArray:
    """The score of predicted usage, (nodes,): from the target at no usage up to 100 at the target,
    from there down, 0 above 100 percent and where usage is unknown."""
    target = target_percent
    rising = (100 - target) * percent / target + target
    falling = target * (100 - percent) / (100 - target) if target < 100 else np.zeros_like(percent)
    with np.errstate(invalid="ignore"):
        score = np.where(percent <= target, rising, np.where(percent <= 100, falling, 0.0))
    return round_half_away(score)


def prediction(nodes: NodesView, demand: PodDemand) -> FloatArray:
    """The predicted usage of nodes with the pod in percent of capacity, (nodes,)."""
    capacity = nodes.allocatable("cpu", "capacity").astype(np.float64)
    loads = [
        (average_percent(nodes, "cpu"), nodes.unmeasured()),
        (usage_of_capacity(nodes, "cpu", "usage"), nodes.unseen()),
    ]
    average, latest = (
        predicted_percent(percent, capacity, (added + demand.counted["packing"]).astype(np.float64))
        for percent, added in loads
    )
    return busier(average, latest)


def score(nodes: NodesView, demand: PodDemand, args: TargetLoadPackingArgs) -> IntArray:
    return target_load(prediction(nodes, demand), float(args.target_utilization or 0))


def _problems(args: TargetLoadPackingArgs) -> Iterator[str]:
    try:
        if millicores((args.default_requests or {}).get("cpu", 0)) < 0:
            yield "defaultRequests: cpu is less than 0"
    except InvalidRecordError as error:
        yield f"defaultRequests: {error.message}"
    if (args.target_utilization or 0) > _HIGHEST_TARGET:
        yield f"targetUtilization: {args.target_utilization} is over 100"
    multiplier = args.default_requests_multiplier
    if multiplier is not None and not _MULTIPLIER.fullmatch(multiplier):
        yield f"defaultRequestsMultiplier: {multiplier!r:.80} is not a number from 0 on"


def _defaults(args: TargetLoadPackingArgs) -> TargetLoadPackingArgs:
    target = args.target_utilization
    return trimaran.with_defaults(
        args,
        target_utilization=_DEFAULT_TARGET if target is None or target <= 0 else target,
        default_requests=args.default_requests or {"cpu": "1000m"},
        default_requests_multiplier=args.default_requests_multiplier or _DEFAULT_MULTIPLIER,
    )


SCORER: Final = Scorer(
    name="TargetLoadPacking",
    source="Trimaran",
    text="packs nodes up to `targetUtilization` percent of cpu usage",
    args=TargetLoadPackingArgs,
    score=score,
    problems=_problems,
    defaults=_defaults,
    notes=trimaran.notes,
    counts=lambda args: Counts(packing=args.packing),
    expiration_seconds=usage_expires,
)
