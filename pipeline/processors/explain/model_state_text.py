"""The state of a node's models as text: what it covers, and what each entity has learned.

An entity without samples is shown without numbers, never as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.explain.quantity_text import UNKNOWN, format_bytes, format_cpu
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.model import cold_start, moments
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.state_codec import ModelState, unpack, unpack_columns
from pipeline.times import format_time

_TITLES: Final = (
    "ENTITY", "PROFILE", "FIRST", "LAST", "RESOURCE", "SAMPLES", "BUCKETS", "MEAN", "STDEV",
)  # fmt: skip
_FORMATS: Final = (format_cpu, format_bytes)


class _Models(NamedTuple):
    """The columns of a state, a row per entity and then per pod."""

    names: tuple[str, ...]
    profile: npt.NDArray[Any]
    first_ms: npt.NDArray[Any]
    last_ms: npt.NDArray[Any]
    samples: npt.NDArray[Any]
    buckets: npt.NDArray[Any]
    mean: npt.NDArray[Any]
    stdev: npt.NDArray[Any]


def head(state: ModelState) -> Iterator[str]:
    """Node, model and covered windows of a state, in lines."""
    yield f"node {state.node}, machine {state.machine_id}, exporter epoch {state.epoch}"
    yield f"model {state.fingerprint}"
    yield (
        f"last window {_time(state.end_ms)}, {state.window_ms / 1000:g} s, "
        f"coverage {state.coverage:g}"
    )
    yield f"windows: {state.applied} applied, {state.gaps} missing"
    strategy = state.strategy
    yield (
        f"strategy: {strategy.predictor} decides, margin {strategy.safety_margin_percent:g}%, "
        f"pods are cold if {cold_start.criteria(strategy)}"
    )
    yield f"models: {len(ENTITIES)} entities, {len(state.uids)} pods"
    yield f"columns: {_sizes(state.columns)}; of the node: {_sizes(state.node_columns)}"


def brief(state: ModelState) -> str:
    """How much a state has learned, until when, and on which machine, in one line."""
    machine = f"of machine {state.machine_id}" if state.machine_id else "of an unknown machine"
    return (
        f"{len(ENTITIES)} entities and {len(state.uids)} pods {machine}, {state.applied} windows "
        f"applied, the last ended {_time(state.end_ms)}"
    )


def table(
    state: ModelState, names: Sequence[str] = (), *, pods: bool = False,
    pod_names: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """Two lines per entity, cpu and memory: of `names`, or of all entities, with `pods` also of
    pods, shown by their `pod_names` by UID if they have one. Raises KeyError for a name without a
    model."""
    models = _models(state)
    shown = _shown(models, names, pods=pods)
    models = models._replace(names=tuple(pod_names.get(name, name) for name in models.names))
    grid = [list(_TITLES)]
    for row in shown:
        grid.extend(_lines(models, row))
    return [*align_columns(grid)]


def items(
    state: ModelState, names: Sequence[str] = (), *, pods: bool = False,
    pod_names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The rows of `table` as JSON objects, cores and bytes, null where unknown. `entity` is
    an entity or the UID of a pod, `name` that of a pod. Raises KeyError as `table` does."""
    models = _models(state)
    for row in _shown(models, names, pods=pods):
        for r, resource in enumerate(RESOURCES):
            known = bool(models.samples[row, r] > 0)
            yield {
                "entity": models.names[row],
                "name": pod_names.get(models.names[row]),
                "profile": int(models.profile[row]),
                "first": _time_or_none(int(models.first_ms[row])),
                "last": _time_or_none(int(models.last_ms[row])),
                "resource": resource,
                "samples": int(models.samples[row, r]),
                "buckets": int(models.buckets[row, r]) if known else None,
                "mean": float(models.mean[row, r]) if known else None,
                "stdev": float(models.stdev[row, r]) if known else None,
            }


def peaks_table(peaks: NodePeaks) -> list[str]:
    """The peaks of each predictor, with the margin, for entities with samples, and what Prod leaves
    unused by the deciding predictor."""
    grid = [["ENTITY", "RESOURCE", *map(str.upper, peaks.predictors)]]
    for row, entity in enumerate(ENTITIES):
        for r, resource in enumerate(RESOURCES):
            if peaks.samples[row, r] > 0:
                values = [answer.peaks[row, r] for answer in peaks.predictors.values()]
                grid.append([entity, resource, *map(_FORMATS[r], values)])
    millicores, size = peaks.reclaimable.amount
    amounts = f"cpu {format_cpu(millicores / 1000)}, memory {format_bytes(size)}"
    return [*align_columns(grid), f"prod leaves unused, by {peaks.decides}: {amounts}"]


def names_of(state: ModelState) -> tuple[str, ...]:
    """The names of rows: entities, then pods by UID."""
    return (*ENTITIES, *state.uids)


def _models(state: ModelState) -> _Models:
    names, columns = names_of(state), unpack_columns(state)
    count = len(names)
    return _Models(
        names=names,
        profile=unpack(state.profile, "<i1", count),
        first_ms=columns["first_ms"],
        last_ms=columns["last_ms"],
        samples=columns["samples"],
        buckets=np.stack([unpack(counts, "<u2", count) for counts in state.bucket_counts], axis=1),
        mean=columns["mean"],
        stdev=moments.stdev(columns["weight"], columns["squares"]),
    )


def _shown(models: _Models, names: Sequence[str], *, pods: bool) -> Sequence[int]:
    if not names:
        return range(len(models.names) if pods else len(ENTITIES))
    row_of = {name: row for row, name in enumerate(models.names)}
    return [row_of[name] for name in names]


def _lines(models: _Models, row: int) -> Iterable[list[str]]:
    """A line per resource."""
    for r, resource in enumerate(RESOURCES):
        known = models.samples[row, r] > 0
        mean, stdev = float(models.mean[row, r]), float(models.stdev[row, r])
        yield [
            models.names[row],
            str(models.profile[row]),
            _time(int(models.first_ms[row])),
            _time(int(models.last_ms[row])),
            resource,
            str(models.samples[row, r]) if known else "none",
            str(models.buckets[row, r]) if known else "-",
            _FORMATS[r](mean) if known else UNKNOWN,
            _FORMATS[r](stdev) if known else UNKNOWN,
        ]


def _time(milliseconds: int) -> str:
    return _time_or_none(milliseconds) or "never"


def _time_or_none(milliseconds: int) -> str | None:
    return None if milliseconds == NEVER else format_time(milliseconds / 1000)


def _sizes(columns: Mapping[str, bytes]) -> str:
    return ", ".join(f"{name} {len(data)} B" for name, data in columns.items()) or "none"
