"""Whether two windows are the same for everything that reads windows."""

from typing import Any

import numpy as np

from pipeline.topics.sample_rows import SampleRows
from pipeline.topics.windows import Window, encode_window


def parts(window: Window) -> dict[str, Any]:
    """All that a processor can read of a window, in a form that `==` compares; floats by their
    bits."""
    own = {name: getattr(window, name) for name in window.__struct_fields__ if name != "rows"}
    return own | {
        "pods": window.rows.pods.data,
        "container_names": window.rows.pods.container_names,
        "lines": encode_window(window).split(b"\n", 3)[:3],
        **sample_parts(window.rows.sample),
    }


def sample_parts(sample: SampleRows) -> dict[str, Any]:
    listing = sample.listing
    return {
        "header": sample.header,
        "rows": len(sample),
        "kinds": listing.kinds.tolist(),
        "ids": listing.ids,
        "pods": (listing.node, listing.pods.tolist(), listing.uids),
        "containers": (listing.container_ids, _bits(sample.container_usage)),
        "qos": sample.qos,
        "statistics": [*sample.statistic_rows.items()],
        "numbers": _bits(np.where(sample.null, 0.0, sample.numbers)),
        "null": sample.null.tolist(),
        "null_count": sample.null_count,
        "unknown": np.isnan(sample.numbers).tolist(),
        "gauges": sample.gauges,
        "points": _bits(np.where(sample.null_points, 0.0, sample.points)),
        "null_points": sample.null_points.tolist(),
        "unknown_points": np.isnan(sample.points).tolist(),
    }


def _bits(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float64).view(np.int64).tolist()
