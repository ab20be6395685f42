"""Import models of Koordinator and of the Vertical Pod Autoscaler into the state of a node.

If both have the same buckets, each weight stays in its bucket. Otherwise it goes to the bucket that
contains the end of its own, so that no usage is understated. A histogram without weight is unknown:
it is not imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.histogram import (
    MAX_HALF_LIVES,
    Layout,
    load_checkpoint,
    nearest_reference_ms,
)
from pipeline.processors.model.model_config import ENTITIES, KOORDINATOR, RESOURCES, VPA, Profile
from pipeline.processors.model.state_codec import (
    ModelState,
    SparseHistograms,
    dense_weights,
    pack_columns,
    pack_histograms,
    unpack,
    unpack_columns,
)
from pipeline.times import format_time, parse_time

KOORDINATOR_IDS: Final[Mapping[str, str]] = {
    "__node__": "node",
    "__node-sys__": "system",
    "__node-__": "none",
    **{f"__node-koord-{name}__": name for name in ("prod", "mid", "batch", "free")},
}
"""Entities by their UID in Koordinator."""

_VPA_VERSION: Final = "v3"
_MOST_HALF_LIVES: Final = 10 * MAX_HALF_LIVES
_MOST_SAMPLES: Final = 1 << 40
CLOCK_TOLERANCE_MS: Final = 3_600_000
"""How far imported times may be ahead of the clock or the last window: clocks differ."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """One resource: `weights` of the buckets of `layout`, relative to a sample at `reference_ms`
    and halving every `half_life_ms`."""

    layout: Layout
    weights: FloatArray
    reference_ms: int
    half_life_ms: int

    def remaining(self, time_ms: int) -> FloatArray:
        """The weights relative to a sample at `time_ms`."""
        return self.weights * _decay(self.reference_ms - time_ms, self.half_life_ms)


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """An imported model: `name` is an entity, the UID of a pod, or the name in the file.
    `histograms` are of cpu and memory, None if unknown; `samples` is their number, None if not
    stated; `first_ms` and `last_ms` are the times of the first and last sample."""

    name: str
    histograms: tuple[Histogram | None, Histogram | None]
    last_ms: int
    first_ms: int | None = None
    samples: int | None = None


class ImportResult(NamedTuple):
    """The import of one resource: the number of `buckets` with weight, 0 if all has decayed;
    `moved` if the layouts differ."""

    buckets: int
    moved: bool


ImportResults = Mapping[str, tuple[ImportResult | None, ImportResult | None]]
"""The import of cpu and memory by name; None if unknown."""


def from_koordinator(document: Mapping[str, Any]) -> ImportedModel:
    """Read a prediction checkpoint of Koordinator: `UID`, `CPU`, `Memory`, `LastUpdated`. Raises
    CheckpointError for anything else."""
    name = document.get("UID")
    if not isinstance(name, str) or not name:
        raise CheckpointError("not a prediction checkpoint of Koordinator: it has no UID")
    histograms = (
        _histogram(document.get("CPU"), KOORDINATOR, 0, f"CPU of {name}"),
        _histogram(document.get("Memory"), KOORDINATOR, 1, f"Memory of {name}"),
    )
    last_ms = _time_ms(document.get("LastUpdated"), f"LastUpdated of {name}")
    return ImportedModel(
        KOORDINATOR_IDS.get(name, name), histograms, _last(last_ms, histograms, name)
    )


def from_vpa(document: Mapping[str, Any]) -> ImportedModel:
    """Read a VerticalPodAutoscalerCheckpoint as kubectl prints it; `name` is the object's. Raises
    CheckpointError for anything else."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    name = name if isinstance(name, str) else ""
    status = document.get("status")
    if document.get("kind") != "VerticalPodAutoscalerCheckpoint" or not isinstance(status, dict):
        raise CheckpointError(f"not a VerticalPodAutoscalerCheckpoint with a status: {name!r:.100}")
    if not name:
        raise CheckpointError("a VerticalPodAutoscalerCheckpoint without metadata.name")
    if (version := status.get("version")) != _VPA_VERSION:
        raise CheckpointError(
            f"{name} has the checkpoint version {version!r:.40}, not {_VPA_VERSION!r}",
            hint="it is of another release of VPA: wait until the present one has written it",
        )
    histograms = (
        _histogram(status.get("cpuHistogram"), VPA, 0, f"cpuHistogram of {name}"),
        _histogram(status.get("memoryHistogram"), VPA, 1, f"memoryHistogram of {name}"),
    )
    times = {
        key: _time_ms(status.get(key), f"{key} of {name}")
        for key in ("lastUpdateTime", "lastSampleStart", "firstSampleStart")
    }
    last_ms = times["lastSampleStart"] or times["lastUpdateTime"]
    return ImportedModel(
        name, histograms, _last(last_ms, histograms, name), times["firstSampleStart"],
        _count(status.get("totalSamplesCount"), f"totalSamplesCount of {name}"),
    )  # fmt: skip


def rebucket(histogram: Histogram, layout: Layout) -> FloatArray:
    """The weights in the buckets of `layout`: unchanged if the layouts are equal, otherwise each in
    the bucket with the end of its own.

    Raises CheckpointError if a weight lies beyond the last bucket.
    """
    if histogram.layout == layout:
        return histogram.weights
    filled = np.flatnonzero(histogram.weights)
    ends = histogram.layout.ends[filled]
    if (ends > layout.ends[-1]).any():
        raise CheckpointError(
            f"a histogram holds values up to {ends.max():g}; its buckets are not those of the "
            f"model, which end at {layout.ends[-1]:g}",
            hint="set model.histogram to a larger maximum, or to the preset of the other system",
        )
    weights = np.zeros(layout.num_buckets)
    np.add.at(weights, layout.digitize(ends), histogram.weights[filled])
    return weights


def merge_models(
    state: ModelState, learned: Mapping[str, ImportedModel], profiles: tuple[Profile, ...]
) -> tuple[ModelState, ImportResults]:
    """Add imported models, by name of entity or pod, to a state. Returns the new state, and the
    import of each name.

    `profiles` are those of the state's model. Mean and deviation are those of the weights, each at
    the end of its bucket. Raises CheckpointError for a pod without a model in the state, for times
    after the node's last window, and for a histogram that does not fit.
    """
    names = (*ENTITIES, *state.uids)
    if unknown := sorted(learned.keys() - set(names)):
        raise CheckpointError(
            f"node {state.node!r:.100} has no model of {', '.join(unknown):.300}",
            hint="a pod must run on the node, and be in its newest checkpoint",
        )
    for model in learned.values():
        _require_past(model, state.end_ms)
    rows = _Rows(state, profiles)
    received = {}
    for name, model in learned.items():
        row = names.index(name)
        cpu, memory = (
            None if histogram is None else rows.add(row, resource, model, histogram)
            for resource, histogram in enumerate(model.histograms)
        )
        received[name] = cpu, memory
    return rows.state(), received


class _Rows:
    """The decoded columns of a state, to add to."""

    def __init__(self, state: ModelState, profiles: tuple[Profile, ...]) -> None:
        count = len(ENTITIES) + len(state.uids)
        self._state = state
        self._profiles = profiles
        self._profile = unpack(state.profile, "<i1", count)
        self._references = [list(pair) for pair in state.reference_ms]
        self._columns = {name: array.copy() for name, array in unpack_columns(state).items()}
        self._moments = [self._columns[name] for name in ("weight", "mean", "squares")]
        self._weights = [dense_weights(state, r, profiles) for r in range(len(RESOURCES))]

    def add(
        self, row: int, resource: int, learned: ImportedModel, histogram: Histogram
    ) -> ImportResult:
        number = self._profile[row]
        profile = self._profiles[number]
        layout, half_life_ms = profile.layouts[resource], profile.half_life_ms[resource]
        reference = self._references[number][resource]
        if reference is None:
            reference = nearest_reference_ms(learned.last_ms, half_life_ms)
            self._references[number][resource] = reference
        current = Histogram(
            histogram.layout, histogram.remaining(learned.last_ms), learned.last_ms,
            histogram.half_life_ms,
        )  # fmt: skip
        total = float(current.weights.sum())
        if not total <= _MOST_SAMPLES:
            raise CheckpointError(f"{learned.name} is worth {total:g} samples, which is too many")
        count = learned.samples
        if count is None:
            # As many samples of full weight: at most the real number.
            count = max(int(total), 1)
        added = rebucket(current, layout) * _decay(learned.last_ms - reference, half_life_ms)
        added[added < layout.epsilon] = 0.0
        received = ImportResult(int(np.count_nonzero(added)), histogram.layout != layout)
        if not received.buckets:
            return received
        self._weights[resource][row, : layout.num_buckets] += added
        self._add_moments(row, resource, added, layout.ends)
        self._columns["samples"][row, resource] += count
        first_ms, last_ms = self._columns["first_ms"], self._columns["last_ms"]
        first = [ms for ms in (int(first_ms[row]), learned.first_ms) if ms is not None]
        first_ms[row] = min((ms for ms in first if ms != NEVER), default=learned.last_ms)
        last_ms[row] = max(int(last_ms[row]), learned.last_ms)
        return received

    def _add_moments(self, row: int, resource: int, added: FloatArray, ends: FloatArray) -> None:
        """Formula: T. F. Chan et al., Updating formulae for combining sample variances (1979)."""
        weight, mean, squares = (column[row, resource] for column in self._moments)
        added_weight = float(added.sum())
        added_mean = float((added * ends).sum()) / added_weight
        total, delta = weight + added_weight, added_mean - mean
        spread = float((added * (ends - added_mean) ** 2).sum())
        for column, value in zip(
            self._moments,
            (
                total,
                mean + delta * (added_weight / total),
                squares + spread + delta * delta * weight * (added_weight / total),
            ),
            strict=True,
        ):
            if not math.isfinite(value):
                raise CheckpointError("with the import the weights of a model are too large")
            column[row, resource] = value

    def state(self) -> ModelState:
        return msgspec.structs.replace(
            self._state,
            reference_ms=tuple((cpu, memory) for cpu, memory in self._references),
            **pack_columns(self._columns),
            **pack_histograms(map(_sparse, self._weights)),
        )


def _sparse(weights: FloatArray) -> SparseHistograms:
    """The filled buckets of each row of `weights` (rows, buckets)."""
    rows, buckets = np.nonzero(weights)
    return np.bincount(rows, minlength=len(weights)), buckets, weights[rows, buckets]


def _histogram(
    stored: Mapping[str, Any] | None, profile: Profile, resource: int, name: str
) -> Histogram | None:
    """A histogram in the rounded form; None if there is none, or nothing in it."""
    if stored is None:
        return None
    layout = profile.layouts[resource]
    try:
        buckets = stored.get("bucketWeights") or {}
        weights = load_checkpoint(layout, {**stored, "bucketWeights": buckets})
        reference_ms = _time_ms(stored.get("referenceTimestamp"), name)
    except (CheckpointError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{name}: {error}") from error
    if not weights.any():
        return None
    if reference_ms is None:
        raise CheckpointError(f"{name} has weights and no referenceTimestamp")
    return Histogram(layout, weights, reference_ms, profile.half_life_ms[resource])


def _count(stored: object, name: str) -> int | None:
    """The number of samples; None if not stated."""
    if stored is None:
        return None
    if isinstance(stored, bool) or not isinstance(stored, int) or not 0 <= stored <= _MOST_SAMPLES:
        raise CheckpointError(f"{name} is {stored!r:.100}, not 0 to {_MOST_SAMPLES}")
    return stored


def _require_past(learned: ImportedModel, end_ms: int) -> None:
    """Raise CheckpointError for times after `end_ms`, the end of the node's last window.

    A row with a future sample would refuse samples until then. A reference is the nearest multiple
    of its half-life, which may be ahead.
    """
    latest = end_ms + CLOCK_TOLERANCE_MS
    times = [(learned.last_ms, latest), (learned.first_ms or 0, latest)]
    times += [
        (histogram.reference_ms, latest + histogram.half_life_ms)
        for histogram in learned.histograms
        if histogram is not None
    ]
    if any(time_ms > allowed_ms for time_ms, allowed_ms in times):
        raise CheckpointError(
            f"{learned.name} is of a time after the node's last window, which ended at "
            f"{format_time(end_ms / 1000)}",
            hint="wait until a worker has applied the node's newer windows, and compare the clocks",
        )


def _decay(distance_ms: int, half_life_ms: int) -> float:
    """2 ** (distance in half-lives). Raises CheckpointError for an implausible distance."""
    half_lives = distance_ms / half_life_ms
    if abs(half_lives) > _MOST_HALF_LIVES:
        raise CheckpointError(f"its times lie {abs(half_lives):.0f} half-lives apart")
    return float(2.0**half_lives)


def _last(
    last_ms: int | None, histograms: tuple[Histogram | None, Histogram | None], name: str
) -> int:
    """The time of the last sample; if not stated, the latest reference."""
    if last_ms is not None:
        return last_ms
    references = [histogram.reference_ms for histogram in histograms if histogram is not None]
    if not references:
        raise CheckpointError(f"{name} has neither samples nor a time: it is unknown")
    return max(references)


def _time_ms(text: object, name: str) -> int | None:
    """Milliseconds of an RFC 3339 time; None if unset, which is written as null or year 1."""
    if text is None:
        return None
    if isinstance(text, datetime):  # as YAML reads a time without quotes
        text = text.isoformat()
    try:
        seconds = parse_time(text) if isinstance(text, str) else math.nan
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f"{name}: {error}") from error
    if math.isnan(seconds):
        raise CheckpointError(f"{name} is {text!r:.100}, not a time")
    return round(seconds * 1000) if seconds > 0 else None
