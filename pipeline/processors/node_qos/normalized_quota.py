"""CPU quotas on a node whose CPUs are faster than those that limits are meant for."""

import math

from pipeline.processors.node_qos.cgroup_values import SMALLEST_QUOTA_US, UNLIMITED
from pipeline.processors.policy.normalization import LARGEST_RATIO


def normalized_quota_us(quota_us: int, ratio: float | None) -> int:
    """The quota that gives as much work as `quota_us` on a normal CPU: `ceil(quota / ratio)`.

    The kernel refuses less than `SMALLEST_QUOTA_US`. No ratio, one of at most 1 and one that no
    node may have leave the quota as it is.
    """
    if quota_us >= UNLIMITED or ratio is None or not 1 < ratio <= LARGEST_RATIO:
        return quota_us
    return max(math.ceil(quota_us / ratio), SMALLEST_QUOTA_US)
