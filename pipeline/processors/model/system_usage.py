"""The system remainder: what a node uses besides its pods and host applications."""

import numpy as np

from pipeline.processors.arrays import FloatArray


def remainder(
    node: FloatArray, pods: FloatArray, host_apps: FloatArray | float = 0.0
) -> FloatArray:
    """max(node - pods - host_apps, 0) elementwise; NaN where any of them is NaN."""
    left = node - pods - host_apps
    return np.where(left < 0.0, 0.0, left)
