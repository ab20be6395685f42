"""Series of recorded usage, and what a population of pods that replay them wants window by window.

A Parquet file has a row per series: `start` in steps since the file's begin, `cpu_request_m`,
`mem_request_mi`, and the lists `cpu_m` and `mem_mi` (null: memory is not recorded) with millicores
and MiB per step. Its metadata has `step_s`, the seconds of a step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

WINDOW_SECONDS: Final = 30
"""The default window of the exporter."""
_DAY_SECONDS: Final = 86_400
_UNRECORDED_MEMORY: Final = 256.0
_NOISE: Final = 0.05
_TO_BYTES: Final = 1 << 20


class Series(NamedTuple):
    """One recorded series: `usage` (steps, 2) and `request` (2,) in millicores and bytes. Step 0 is
    `start` steps after the begin of the file."""

    start: int
    usage: FloatArray
    request: FloatArray


class Recording(NamedTuple):
    """The series of one file."""

    step_seconds: int
    series: Sequence[Series]


class Demand(NamedTuple):
    """What p pods want over some windows. A pod that ends is followed by another in its place.

    `wanted` (windows, p, 2) is in millicores and bytes. `generation` (windows, p) counts the pods
    of each place, and `requests` has the requests (2,) of each pod by place and generation.
    """

    wanted: FloatArray
    generation: IntArray
    requests: dict[tuple[int, int], FloatArray]

    def is_new(self, window: int) -> BoolArray:
        """Whether the pods of this window are other ones than in the window before, (p,)."""
        if not window:
            return np.ones(self.generation.shape[1], np.bool_)
        changed: BoolArray = self.generation[window] != self.generation[window - 1]
        return changed


def read_recording(path: Path) -> Recording:
    """Read a file of series."""
    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    series = []
    for row in table.to_pylist():
        cpu = np.array(row["cpu_m"], np.float64)
        memory = row["mem_mi"] or [_UNRECORDED_MEMORY] * len(cpu)
        usage = np.stack([cpu, _TO_BYTES * np.array(memory, np.float64)], axis=1)
        request = [row["cpu_request_m"], _TO_BYTES * (row["mem_request_mi"] or _UNRECORDED_MEMORY)]
        series.append(Series(row["start"], usage, np.array(request, np.float64)))
    return Recording(int(metadata.get(b"step_s", b"300")), series)


def replayed(recording: Recording, pods: int, windows: int, chance: np.random.Generator) -> Demand:
    """The demand of pods that replay series drawn by `chance`, each at the time of day at which it
    was recorded. The first pods are somewhere within their series, later ones at its first day.

    Within a step the usage of a series is constant, with 5% of noise of CPU from window to window.
    """
    step = recording.step_seconds
    steps = -(-windows * WINDOW_SECONDS // step)
    day = _DAY_SECONDS // step
    wanted = np.zeros((steps, pods, 2))
    generation = np.zeros((steps, pods), np.int64)
    requests = {}
    for place in range(pods):
        now, number = 0, 0
        while now < steps:
            series = recording.series[int(chance.integers(len(recording.series)))]
            aligned = np.arange((now - series.start) % day, len(series.usage), day)
            if not len(aligned):
                first = 0  # shorter than a day
            else:
                first = int(chance.choice(aligned) if number == 0 else aligned[0])
            part = series.usage[first : first + steps - now]
            wanted[now : now + len(part), place] = part
            generation[now : now + len(part), place] = number
            requests[place, number] = series.request
            now, number = now + len(part), number + 1
    of_window = np.arange(windows) * WINDOW_SECONDS // step
    noise = 1.0 + _NOISE * chance.standard_normal((windows, pods))
    by_window = wanted[of_window]
    by_window[..., 0] *= np.maximum(noise, 0.0)
    return Demand(by_window, generation[of_window], requests)
