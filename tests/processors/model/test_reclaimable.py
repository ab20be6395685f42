"""A cap of pods' peaks at their limits does not change what Prod gives away."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.reclaimable import NodePods, pod_view


@given(seed=st.integers(0, 2**32), pods=st.integers(1, 30), margin=st.sampled_from([1.0, 1.1, 2.0]))
def test_peaks_capped_at_limits_give_the_same_away(seed: int, pods: int, margin: float) -> None:
    """A limit is at least the request, and a peak above the request gives nothing away."""
    random = np.random.default_rng(seed)
    requests = random.integers(0, 1000, (pods, 2)).astype(np.float64)
    limits = requests + random.integers(0, 1000, (pods, 2))
    peaks = random.integers(0, 3000, (pods, 2)).astype(np.float64)
    peaks[random.random((pods, 2)) < 0.2] = np.nan
    classes = random.choice([CLASS_CODES[name] for name in ("prod", "none", "batch")], pods)
    node_pods = NodePods(
        allocatable=np.full((3, 2), 1e9), node_index=random.integers(0, 3, pods),
        classes=classes.astype(np.int8), requests=requests, cold=random.random(pods) < 0.2,
        active=random.random(pods) < 0.9, ended=random.random(pods) < 0.1,
    )  # fmt: skip
    margins = np.full(3, margin)
    free, _ = pod_view(node_pods, peaks, margins)
    # So that the peak with the margin, cut to whole amounts, is the limit.
    capped, _ = pod_view(
        node_pods, np.where(peaks * margin > limits, limits / margin + 1e-6, peaks), margins
    )
    np.testing.assert_array_equal(capped.amount, free.amount)
    assert (capped.peak <= free.peak).all()
