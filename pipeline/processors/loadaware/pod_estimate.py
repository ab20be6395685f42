"""The estimated usage of a pod before it is measured, by Koordinator's default estimator.

A share of its request, at most its limit; a default for pods of Prod and Batch without
requests.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

SCALING_FACTORS: Final = "scheduling.koordinator.sh/load-estimated-scaling-factors"
SECONDS_AFTER_SCHEDULED: Final = (
    "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
)
SECONDS_AFTER_INITIALIZED: Final = (
    "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
)

_WITHOUT_REQUESTS: Final[Mapping[str, int]] = {"cpu": 250, "memory": 200 << 20}
_LEAST, _MOST = 1, 100
_SECONDS: Final = re.compile(r"\+?\d{1,9}")


def resource_name(pod_class: str, resource: str) -> str | None:
    """The name under which pods of a class request a resource; None if they cannot.

    >>> resource_name("batch", "cpu"), resource_name("none", "memory"), resource_name("free", "cpu")
    ('kubernetes.io/batch-cpu', 'memory', None)
    """
    if pod_class == "free":
        return None
    return f"kubernetes.io/{pod_class}-{resource}" if pod_class in ("mid", "batch") else resource


def estimate(
    pod_class: str,
    requests: Mapping[str, int],
    limits: Mapping[str, int],
    factors: Mapping[str, int],
) -> dict[str, int]:
    """The estimated usage of each resource in `factors` (percent). Amounts are by full name, cpu of
    every class in millicores."""
    return {
        resource: _estimate(pod_class, resource, requests, limits, factor)
        for resource, factor in factors.items()
    }


def _estimate(
    pod_class: str,
    resource: str,
    requests: Mapping[str, int],
    limits: Mapping[str, int],
    factor: int,
) -> int:
    name = resource_name(pod_class, resource)
    if name is None:
        return 0
    limit = limits.get(name, 0)
    larger = max(limit, requests.get(name, 0))
    if larger <= 0:
        return 0 if pod_class == "mid" else _WITHOUT_REQUESTS.get(resource, 0)
    scaled = (larger * factor + 50) // 100
    return min(scaled, limit) if limit > 0 else scaled


def pod_factors(annotations: Mapping[str, str], factors: Mapping[str, int]) -> dict[str, int]:
    """The factors in a pod's annotation in place of `factors`, limited to 1 to 100 percent.

    Upstream accepts any number, so that a pod of a tiny factor would never fill a node.
    """
    try:
        own = msgspec.json.decode(annotations.get(SCALING_FACTORS) or "{}", type=dict[str, int])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        own = {}
    return {
        name: min(max(own.get(name, factor), _LEAST), _MOST) if name in own else factor
        for name, factor in factors.items()
    }


def pod_seconds(annotations: Mapping[str, str], name: str, default: int | None) -> int | None:
    """The seconds in this annotation of a pod; `default` if it is missing or invalid."""
    text = annotations.get(name, "")
    return int(Decimal(text)) if _SECONDS.fullmatch(text) else default


def deadline(
    scheduled_at: float,
    initialized_at: float | None,
    after_scheduled_seconds: int | None,
    after_initialized_seconds: int | None,
) -> float | None:
    """When a pod that is measured stops counting its estimate, UTC seconds; None without a
    deadline. Once its init containers have ended, the time after that counts first."""
    if after_initialized_seconds and initialized_at is not None:
        return initialized_at + after_initialized_seconds
    return scheduled_at + after_scheduled_seconds if after_scheduled_seconds else None
