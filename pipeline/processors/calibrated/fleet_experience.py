"""What pods of the fleet did: their first horizons, and how often and how far they outgrew the
past.

Bounded rings of the newest observations. An observation counts from the moment its horizon ends.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray

OUTGROWN: Final = 1.02
"""A pod outgrew its past if its peak is above this multiple of its past peak."""


class Sizes(NamedTuple):
    """Numbers of the newest observations that are kept: horizons of pods, steps of those that
    outgrew their past, first horizons of pods."""

    horizons: int
    steps: int
    first_windows: int


FLEET: Final = Sizes(4000, 2000, 1000)
SINGLE_NODE: Final = Sizes(400, 200, 100)
_AGES: Final = np.array([1, 2, 3, 5, 9, 17])  # whole horizons of history: 0, 1, 2, 3-4, 5-8, ...


class FleetExperience:
    """Rings of observations, float32, oldest overwritten first. `blocks` is the number of blocks
    of a window."""

    def __init__(self, blocks: int, sizes: Sizes = FLEET) -> None:
        self._rings = {
            "age": np.zeros(sizes.horizons, np.float32),  # class of age, index into `_AGES`
            "outgrown": np.zeros(sizes.horizons, np.float32),
            "step": np.zeros(sizes.steps, np.float32),  # log(peak / past) / log(limit / past)
            "first": np.zeros((sizes.first_windows, blocks), np.float32),  # usage / request
        }
        self._counts = dict.fromkeys(self._rings, 0)

    def add_first_windows(self, usage: npt.NDArray[np.floating]) -> None:
        """Add usage by block in the first horizons of pods, as shares of their requests."""
        self._add("first", usage)

    def add_horizons(
        self, histories: IntArray, peaks: FloatArray, pasts: FloatArray, limits: FloatArray
    ) -> None:
        """Add what pods with `histories` whole horizons of history reached: their peak in the next
        horizon, their past peak and their limit."""
        outgrown = peaks > OUTGROWN * pasts
        self._add("age", np.searchsorted(_AGES, histories, side="right").astype(np.float32))
        self._add("outgrown", outgrown.astype(np.float32))
        pasts, peaks = np.maximum(pasts[outgrown], 1.0), peaks[outgrown]
        room = np.log(np.maximum(limits[outgrown] / pasts, OUTGROWN))
        self._add("step", np.clip(np.log(np.maximum(peaks / pasts, 1.0)) / room, 0.0, 1.0))

    def probability_to_outgrow(self, histories: IntArray) -> FloatArray:
        """Probability that a pod with these whole horizons of history outgrows its past in the next
        one: one success and as many failures as horizons are added (a record among m + 1 equal
        ones is the newest with probability 1 / (m + 1))."""
        classes = np.searchsorted(_AGES, histories, side="right")
        age, outgrown = self._seen("age").astype(np.int64), self._seen("outgrown")
        seen = np.bincount(age, minlength=len(_AGES) + 1)
        successes = np.bincount(age, outgrown, minlength=len(_AGES) + 1)
        return (successes[classes] + 1.0) / (seen[classes] + histories + 1.0)

    def growth_steps(self) -> npt.NDArray[np.float32]:
        """Steps of pods that outgrew their past, as shares of the way to the limit (logarithmic);
        0.5 if none was seen."""
        return self._seen("step") if self._counts["step"] else np.array([0.5], np.float32)

    def first_windows(self) -> npt.NDArray[np.float32]:
        """Usage by block in first horizons as shares of requests, (windows, blocks)."""
        return self._seen("first")

    def state(self) -> dict[str, Any]:
        seen = {name: self._seen_in_order(name).tobytes() for name in self._rings}
        return {"counts": dict(self._counts), **seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, ring in self._rings.items():
            seen = np.frombuffer(state[name], np.float32).reshape(-1, *ring.shape[1:])
            count = int(state["counts"][name])
            self._counts[name] = count
            ring[np.arange(count - len(seen), count) % len(ring)] = seen

    def _add(self, name: str, values: npt.NDArray[np.floating]) -> None:
        ring, count = self._rings[name], self._counts[name]
        newest = values[-len(ring) :]
        end = count + len(values)
        ring[np.arange(end - len(newest), end) % len(ring)] = newest
        self._counts[name] = end

    def _seen(self, name: str) -> npt.NDArray[np.float32]:
        return self._rings[name][: self._counts[name]]

    def _seen_in_order(self, name: str) -> npt.NDArray[np.float32]:
        ring, count = self._rings[name], self._counts[name]
        return ring[np.arange(max(0, count - len(ring)), count) % len(ring)]
