"""Lines of a derivation: a label, the expression with its numbers filled in, and the result.

Every result can be computed again from the lines to its last digit. A line is an input (`label:
value unit`), a step (`label: expression = value unit`), or the sum of the lines right above it
(`label, sum of N: value unit`). Expressions have numbers, + - * / **, `min`, `max` and `trunc`, and
read as float64 arithmetic from left to right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pipeline.processors.model import cold_start
from pipeline.topics.predictions import Counts, PodPeaks, UsageColumns
from pipeline.topics.resource_amounts import ByResource, Usage


@dataclass(frozen=True, slots=True)
class Resource:
    """cpu or memory: the record field that carries it, its unit, and Kubernetes' whole units."""

    name: str
    field: str
    unit: str
    whole_unit: str
    scale: int

    @property
    def other(self) -> str:
        (name,) = RESOURCES.keys() - {self.name}
        return name

    def value(self, usage: Usage | ByResource | None) -> float | None:
        name = self.name if isinstance(usage, ByResource) else self.field
        value: float | None = None if usage is None else getattr(usage, name)
        return value

    def column(self, columns: UsageColumns | None, count: int) -> Sequence[float | None]:
        """The values of this resource for each of `count` pods."""
        values: Sequence[float | None] = () if columns is None else getattr(columns, self.field)
        return values or [None] * count

    def count(self, counts: Counts) -> int:
        count: int = getattr(counts, self.name)
        return count

    def whole(self, amount: float | None) -> int | None:
        """An amount in `unit`, in whole units."""
        return None if amount is None else round(amount * self.scale)

    def cut(self, value: float) -> int:
        """Usage in whole units, cut toward zero."""
        return math.trunc(value * self.scale)

    def cut_text(self, value: float) -> str:
        """The expression of `cut`."""
        return f"trunc({value!r})" if self.scale == 1 else f"trunc({value!r} * {self.scale})"


RESOURCES: Final[Mapping[str, Resource]] = {
    "cpu": Resource("cpu", "cpu_cores", "cores", "m", 1000),
    "memory": Resource("memory", "memory_bytes", "bytes", "bytes", 1),
}


class PodValues(NamedTuple):
    """One resource of a pod of a prediction; `raw` is in usage units, `request` in whole units.
    `samples` counts those of the resource, `other_samples` is a text about the other resource."""

    uid: str
    pod_class: str
    cold: bool
    active: bool
    ended: bool
    samples: int
    other_samples: str
    age_seconds: float | None
    request: int | None
    raw: float | None

    @property
    def counts_request(self) -> bool:
        return cold_start.counts_request(self.request is not None, self.cold, self.raw is None)

    @property
    def can_be_reclaimed(self) -> bool:
        """Whether the part of its request above its peak can be offered."""
        return self.active and self.pod_class != "unknown" and self.request is not None

    @property
    def why_by_request(self) -> str:
        """Why the request counts in place of the peak."""
        if self.cold:
            return cold_start.reason(self.age_seconds, self.samples, self.other_samples)
        return f"of which there is {self.why_unknown}"

    @property
    def why_unknown(self) -> str:
        return "no peak by this predictor" if self.samples else "no sample"


def pod_values(peaks: PodPeaks, resource: Resource, predictor: str) -> list[PodValues]:
    """The pods of a prediction, in order of uid, with the peaks of one predictor."""
    count = len(peaks.uid)
    requests = [resource.whole(value) for value in resource.column(peaks.request, count)]
    raw = resource.column(peaks.raw.get(predictor), count)
    ended = peaks.ended or [False] * count
    samples = getattr(peaks.samples, resource.name)
    others = getattr(peaks.samples, resource.other)
    other_samples = [f"{count} of {resource.other}" for count in others]
    return [
        PodValues(*row)
        for row in zip(
            peaks.uid, peaks.pod_class, peaks.cold, peaks.active, ended, samples, other_samples,
            peaks.age_seconds, requests, raw, strict=True,
        )
    ]  # fmt: skip


def input_line(label: str, value: float, unit: str) -> str:
    return f"{label}: {value!r} {unit}".rstrip()


def step_line(label: str, expression: str, value: float | None, unit: str) -> str:
    """The line of a result and its expression, or of an unknown result (None)."""
    if value is None:
        return unknown_line(label, "not all of it is known")
    return f"{label}: {expression} = {value!r} {unit}".rstrip()


def unknown_line(label: str, why: str) -> str:
    return f"{label}: unknown: {why}"


def sum_lines(label: str, lines: Iterable[str], total: float | None, unit: str) -> Iterator[str]:
    """The lines, each of which ends with a value, and the line of their sum."""
    count = 0
    for line in lines:
        count += 1
        yield f"  {line}"
    summed = f"{label}, sum of {count}"
    yield unknown_line(summed, "not stated") if total is None else input_line(summed, total, unit)


_NAME: Final = re.compile(r"[A-Za-z_][\w.]*(?:-[\w.]+)*")
_FUNCTIONS: Final = frozenset({"max", "min", "trunc"})


def names_in(formula: str) -> list[str]:
    """The names in a formula, in order, each once.

    >>> names_in("max(nsigma-v1, mean + N * stdev)")
    ['nsigma-v1', 'mean', 'N', 'stdev']
    """
    return [name for name in dict.fromkeys(_NAME.findall(formula)) if name not in _FUNCTIONS]


def fill_in(formula: str, values: Mapping[str, float]) -> str:
    """The formula with numbers in place of names.

    >>> fill_in("mean + N * stdev", {"mean": 0.5, "N": 3.0, "stdev": 0.25})
    '0.5 + 3.0 * 0.25'
    """
    if formula in values:
        return repr(values[formula])
    return _NAME.sub(
        lambda match: match[0] if match[0] in _FUNCTIONS else repr(values[match[0]]), formula
    )


def indented(lines: Iterable[str], spaces: int = 2) -> Iterator[str]:
    return (" " * spaces + line for line in lines)
