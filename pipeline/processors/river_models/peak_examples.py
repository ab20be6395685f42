"""Features of entities, and the peaks that followed them one horizon later.

An example is entered with the features of its moment, follows the highest usage of its entity for
the horizon, and is learned when the horizon is over. The columns are per node: rings of `PENDING`
examples for each entity and resource.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS, NODE, RESOURCES
from pipeline.processors.model.predictor import View
from pipeline.processors.model.resource_pairs import group_sums

FEATURES: Final = (
    "hour_sin", "hour_cos", "week_sin", "week_cos", "latest", "mean", "median", "p90", "p99",
    "highest_3h", "requests", "pods", "young", "history",
)  # fmt: skip
"""Features of an entity and resource, from the last day in slots of five minutes.

Hour of the day and of the week (UTC) as sine and cosine. As shares of the highest usage of the last
day: the `latest` slot, `mean`, `median`, `p90`, `p99`, and the highest of the last 3 hours. Natural
logarithms of `requests` / highest usage, 0 without requests, and of the number of `pods` + 1. The
share of pods that are `young`, first seen within the day, and of the day that is known
(`history`)."""
PENDING: Final = 25
"""Examples of an entity that are followed at once: one every 24th of the horizon."""
PREDICT_MS: Final = 900_000
"""An entity's peak is predicted again so often."""
MOST_LOG: Final = 3.0
"""Bound of logarithms: a factor of 20."""
_FLOOR: Final = np.array([0.001, 2.0**20])
"""Usage below a millicore or a MiB counts as this where a ratio is formed."""
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_SHARES: Final = (0.5, 0.9, 0.99)
_KNOWN_SHARE: Final = 0.5
"""The outcome is unknown if less of the horizon was seen."""
_SERIES: Final = (len(ENTITIES), len(RESOURCES))


def example_columns(prefix: str) -> dict[str, Column]:
    """Columns per node. `made_ms` is the end of the window after which an example was entered,
    `NEVER` in a free place. `scale` is what its outcome is a multiple of, `highest` the highest
    usage since then, `known_ms` the time of which usage was known."""
    ring = (*_SERIES, PENDING)
    return {
        f"{prefix}made_ms": Column((len(ENTITIES), PENDING), "<i8", NEVER),
        f"{prefix}features": Column((*ring, len(FEATURES)), "<f4"),
        f"{prefix}scale": Column(ring),
        f"{prefix}highest": Column(ring),
        f"{prefix}known_ms": Column(ring, "<i8"),
    }


def features_of(view: View) -> tuple[FloatArray, FloatArray]:
    """The features (k, E, 2, F) of all entities in view as float32 values, and their scales
    (k, E, 2): the highest usage of the last day, NaN without a sample in it."""
    k = len(view.end_ms)
    usage = _day(view)
    slots = usage.shape[-1]
    known = ~np.isnan(usage)
    count = known.sum(axis=-1)
    highest = np.fmax.reduce(usage, axis=-1)
    scale = np.maximum(highest, _FLOOR)
    filled = np.where(known, usage, np.inf)
    filled.sort(axis=-1)
    last = np.maximum(count - 1, 0)
    ranks = [np.minimum((share * count).astype(np.int64), last) for share in _SHARES]
    quantiles = [np.take_along_axis(filled, rank[..., None], -1)[..., 0] for rank in ranks]
    mean = np.where(known, usage, 0.0).sum(axis=-1) / np.maximum(count, 1)
    recent = np.fmax.reduce(usage[..., : 3 * _HOUR_MS // day_slots.SLOT_MS], axis=-1)
    requests, pods, young = _pods_of(view)
    asked = np.where(requests > 0.0, requests, scale)
    day = 2.0 * np.pi * view.end_ms / (24.0 * _HOUR_MS)
    circles = np.sin(day), np.cos(day), np.sin(day / 7.0), np.cos(day / 7.0)
    whole = np.ones((k, *_SERIES))
    per_node = [part[:, None, None] * whole for part in circles]
    result = np.stack(
        [
            *per_node,
            *(np.nan_to_num(part) / scale for part in (usage[..., 0], mean, *quantiles, recent)),
            np.clip(np.log(asked / scale), -MOST_LOG, MOST_LOG),
            np.log1p(pods)[..., None] * whole,
            young[..., None] * whole,
            count / slots,
        ],
        axis=-1,
    )  # fmt: skip
    scale = np.where(count > 0, scale, np.nan)
    # Entities without a sample have no features.
    result = np.where(np.isnan(scale)[..., None], 0.0, result)
    return result.astype(np.float32).astype(np.float64), scale


def _day(view: View) -> FloatArray:
    """Usage (k, E, 2, slots) of entities in the last day, the newest slot first, NaN unknown."""
    recent, newest = view.models.store["recent"], view.models.store["recent_slot"]
    slots = ((view.end_ms - 1) // day_slots.SLOT_MS)[:, None] - np.arange(day_slots.SLOTS)
    rows = view.entities[:, :, None]
    usage = np.empty((*view.entities.shape, 2, day_slots.SLOTS))
    for r in range(2):
        codes = recent[rows, r, (slots % day_slots.SLOTS)[:, None]]
        values = day_slots.CODE_VALUES[r][codes]
        # Slots after the row's newest one still hold those of the day before.
        usage[:, :, r] = np.where(slots[:, None] <= newest[rows], values, np.nan)
    return usage


def _pods_of(view: View) -> tuple[FloatArray, FloatArray, FloatArray]:
    """By entity: requests (k, E, 2), the number of active pods and the share of young ones, (k, E)
    each; those of the node are of all its pods."""
    k, entities = view.entities.shape
    first_ms = view.models.first_ms[view.pods]
    young = (first_ms == NEVER) | (view.end_ms[view.node_index] - first_ms < _DAY_MS)
    values = np.column_stack([np.nan_to_num(view.requests), np.ones(len(view.pods)), young])
    values = values * view.active[:, None]
    groups = view.node_index * entities + FIRST_CLASS + view.classes
    sums = np.concatenate(
        [group_sums(groups, values[:, pair], k * entities) for pair in ([0, 1], [2, 3])], axis=1
    ).reshape(k, entities, 4)
    sums[:, NODE] = sums[:, FIRST_CLASS:].sum(axis=1)
    pods = sums[..., 2]
    return sums[..., :2], pods, sums[..., 3] / np.maximum(pods, 1.0)


@dataclass(frozen=True, slots=True)
class Example:
    """An example whose horizon is over: node, entity and resource by position, its features (F,),
    and the logarithm of the highest usage since then / its scale."""

    node: int
    entity: int
    resource: int
    features: FloatArray
    log_ratio: float


class PendingExamples:
    """Examples of k nodes, in `rows` of the columns of a prefix, that are followed for the horizons
    `horizon_ms` (E,)."""

    def __init__(self, columns: Columns, prefix: str, rows: IntArray, horizon_ms: IntArray) -> None:
        self._columns, self._prefix, self._rows = columns, prefix, rows
        self._horizon_ms = horizon_ms[:, None]

    def follow(self, usage: FloatArray, end_ms: IntArray, window_ms: IntArray) -> None:
        """Raise the highest usage since each example by a window with `usage` (k, E, 2)."""
        made_ms = self._get("made_ms")
        runs = (made_ms != NEVER) & (end_ms[:, None, None] <= made_ms + self._horizon_ms)
        if not runs.any():
            return
        counts = runs[:, :, None] & ~np.isnan(usage)[..., None]
        seen = np.where(counts, np.nan_to_num(usage)[..., None], 0.0)
        highest, known_ms = self._get("highest"), self._get("known_ms")
        self._set("highest", np.maximum(highest, seen))
        self._set("known_ms", known_ms + np.where(counts, window_ms[:, None, None, None], 0))

    def ended(self, end_ms: IntArray) -> list[Example]:
        """Take out the examples whose horizon is over at `end_ms` (k,), the oldest first."""
        made_ms = self._get("made_ms")
        over = (made_ms != NEVER) & (made_ms + self._horizon_ms <= end_ms[:, None, None])
        places = np.argwhere(over).tolist()
        result = []
        for node, entity, place in sorted(places, key=lambda at: int(made_ms[*at])):
            for r in range(len(RESOURCES)):
                at = self._rows[node], entity, r, place
                scale, known_ms = self._column("scale")[at], self._column("known_ms")[at]
                if known_ms < _KNOWN_SHARE * self._horizon_ms[entity, 0] or not scale > 0.0:
                    continue
                ratio = self._column("highest")[at] / scale
                log_ratio = float(np.log(max(ratio, np.exp(-MOST_LOG))))
                features = self._column("features")[at].astype(np.float64)
                result.append(Example(node, entity, r, features, min(log_ratio, MOST_LOG)))
            self._column("made_ms")[self._rows[node], entity, place] = NEVER
        return result

    def enter(self, features: FloatArray, scale: FloatArray, end_ms: IntArray) -> None:
        """Follow an example of each entity whose last one is a 24th of the horizon old. Call
        `ended` first: it frees the ring."""
        made_ms = self._get("made_ms")
        interval_ms = np.maximum(self._horizon_ms[:, 0] // (PENDING - 1), 1)
        free = (made_ms == NEVER).any(axis=-1)
        due = made_ms.max(axis=-1) // interval_ms < end_ms[:, None] // interval_ms
        for node, entity in np.argwhere(due & free & ~np.isnan(scale).all(axis=-1)).tolist():
            place = int(made_ms[node, entity].argmin())
            row = self._rows[node]
            self._column("made_ms")[row, entity, place] = end_ms[node]
            self._column("features")[row, entity, :, place] = features[node, entity]
            self._column("scale")[row, entity, :, place] = scale[node, entity]
            self._column("highest")[row, entity, :, place] = 0.0
            self._column("known_ms")[row, entity, :, place] = 0

    def _column(self, name: str) -> npt.NDArray[Any]:
        return self._columns[self._prefix + name]

    def _get(self, name: str) -> npt.NDArray[Any]:
        return self._column(name)[self._rows]

    def _set(self, name: str, values: npt.NDArray[Any]) -> None:
        self._column(name)[self._rows] = values
