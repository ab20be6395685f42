"""Samples with Unix times, in any order, as a list per series on a grid of equal steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.trace_tables import (
    MOST_START_SECONDS,
    MOST_STEP_SECONDS,
    MOST_STEPS,
)

MOST_SAMPLES: Final = 200_000_000
"""Samples of all series, those of gaps included; a month of 20,000 pods at a step of five minutes
has 170 million."""


class WrongSampleError(InvalidRecordError):
    """A sample does not fit; `sample` is its position in the arguments."""

    def __init__(self, problem: str, sample: int, hint: str) -> None:
        super().__init__(problem, hint=hint)
        self.sample = sample


@dataclass(frozen=True, slots=True, eq=False)
class SampleGrid:
    """Where n samples of s series belong: `steps` steps from `start_seconds` on.

    Series i covers `lengths[i]` steps from `first_step[i]` on, from its first sample to its last,
    and sample j is the one at `position[j]` of all steps of all series.
    """

    start_seconds: int
    step_seconds: int
    steps: int
    first_step: IntArray
    lengths: IntArray
    position: IntArray

    def spread(self, values: FloatArray) -> FloatArray:
        """The samples (n,) of all series one after the other, NaN in gaps; the highest of several
        at one step."""
        spread = np.full(int(self.lengths.sum()), np.nan)
        np.fmax.at(spread, self.position, values)
        return spread

    def extended(self, chosen: BoolArray) -> SampleGrid:
        """The grid on which the `chosen` series (s,) last to the end."""
        lengths = np.where(chosen, self.steps - self.first_step, self.lengths)
        added = lengths - self.lengths
        shift: IntArray = np.cumsum(added) - added
        owner = np.searchsorted(np.cumsum(self.lengths), self.position, side="right")
        return replace(self, lengths=lengths, position=self.position + shift[owner])


def sample_grid(owner: IntArray, seconds: IntArray, series: int) -> SampleGrid:
    """The grid of samples of the series `owner` (n,), 0 to `series` - 1, at Unix times (n,).

    The step is the shortest time between two samples of one series. Each series has a sample.
    Raises `WrongSampleError` for a time that is out of range, not on the grid, or there twice in
    a series, `InvalidRecordError` for a grid that is too long.
    """
    outside = (seconds < 0) | (seconds > MOST_START_SECONDS)
    _refuse(outside, f"its time is not from 0 to {MOST_START_SECONDS}", "give Unix seconds")
    order = np.lexsort((seconds, owner))
    distance = np.diff(seconds[order])[np.diff(owner[order]) == 0]
    if not len(distance):
        raise InvalidRecordError(
            "no series has two samples, so the step is unknown", hint="give more than one sample"
        )
    twice = np.zeros(len(owner), np.bool_)
    twice[order[1:]] = (np.diff(seconds[order]) == 0) & (np.diff(owner[order]) == 0)
    _refuse(twice, "its series has a sample at this time already", "give one sample for each step")
    start, step = int(seconds.min()), int(distance.min())
    if step > MOST_STEP_SECONDS:
        raise InvalidRecordError(
            f"samples are {step:,} s or more apart", hint=f"give a step of {MOST_STEP_SECONDS:,} s"
        )
    _refuse(
        (seconds - start) % step != 0,
        f"its time is not a multiple of the step, {step} s, after the first, {start}",
        "round times to the step",
    )
    return step_grid(owner, (seconds - start) // step, series, step, start)


def step_grid(
    owner: IntArray, index: IntArray, series: int, step_seconds: int, start_seconds: int
) -> SampleGrid:
    """The grid of samples of the series `owner` (n,), each with a sample, at the steps `index`
    (n,), from 0 on. Raises `InvalidRecordError` for a grid that is too long."""
    steps = int(index.max()) + 1
    first, last = np.full(series, steps), np.zeros(series, np.int64)
    np.minimum.at(first, owner, index)
    np.maximum.at(last, owner, index)
    lengths = last - first + 1
    if steps > MOST_STEPS or lengths.sum() > MOST_SAMPLES:
        raise InvalidRecordError(
            f"{series:,} series on {steps:,} steps of {step_seconds} s have {lengths.sum():,} "
            f"samples, more than {MOST_SAMPLES:,}, or more than {MOST_STEPS:,} steps",
            hint="split the data set, by nodes or in time",
        )
    offset = np.cumsum(lengths) - lengths
    position = offset[owner] + index - first[owner]
    return SampleGrid(start_seconds, step_seconds, steps, first, lengths, position)


def _refuse(wrong: BoolArray, problem: str, hint: str) -> None:
    if wrong.any():
        raise WrongSampleError(problem, int(wrong.argmax()), hint)
