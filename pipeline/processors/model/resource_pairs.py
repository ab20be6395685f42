"""Contiguous arrays (n, 2) of cpu and memory: build them, add them up, convert their units.

numpy works on two contiguous arrays (n, 2) as on one long row. It broadcasts (n, 1) or (2,) to
(n, 2) row by row, at ten times the cost.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray

_T = TypeVar("_T", bound=np.generic)

TO_KUBERNETES: Final = np.array([1000.0, 1.0])
"""Cores and bytes to millicores and bytes."""


def per_resource(values: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Each of `values` (n,) for cpu and for memory, (n, 2)."""
    return column_pair(values, values)


def column_pair(cpu: npt.NDArray[_T], memory: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Two columns (n,) of one dtype side by side, (n, 2): `np.column_stack` at a fraction of its
    fixed cost."""
    both = np.empty((len(cpu), 2), cpu.dtype)
    both[:, 0] = cpu
    both[:, 1] = memory
    return both


def stack_rows(rows: list[npt.NDArray[_T]]) -> npt.NDArray[_T]:
    """Rows of one length as a matrix, (rows, length): `np.stack` in a fifth of its time."""
    return np.concatenate(rows).reshape(len(rows), -1)


def group_sums(groups: IntArray, values: FloatArray, num_groups: int) -> FloatArray:
    """Sums of `values` (n, 2) by group number `groups` (n,), (num_groups, 2), added in their
    order."""
    if len(values) == 0:
        return np.zeros((num_groups, 2))
    sums = np.empty((num_groups, 2))
    for r in range(2):
        sums[:, r] = np.bincount(groups, weights=values[:, r], minlength=num_groups)
    return sums


def kubernetes_units(usage: FloatArray) -> FloatArray:
    """Usage (.., 2) in cores and bytes as whole millicores and bytes, cut toward zero."""
    units = np.array(usage)
    units[..., 0] *= TO_KUBERNETES[0]
    return np.trunc(units, out=units)
