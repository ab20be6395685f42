"""Lines of a derivation: what a number is called, from which numbers it came, and what it is.

Owes the rest: text from which a result can be computed again to its last digit. A line is an input
(`label: value unit`), a step (`label: expression = value unit`), or the sum of the lines right
above it (`label, sum of N: value unit`). Expressions have numbers, + - * / **, `min`, `max` and
`trunc`, and read as float64 arithmetic from left to right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pipeline.topics.predictions import CountColumns, Counts, PodPeaks, UsageColumns
from pipeline.topics.resource_amounts import ByResource, Usage


@dataclass(frozen=True, slots=True)
class Resource:
    """cpu or memory: the field that carries it, its unit, and the whole units of Kubernetes."""

    name: str
    field: str
    unit: str
    whole_unit: str
    scale: int

    @property
    def other(self) -> str:
        """The name of the other one."""
        (name,) = RESOURCES.keys() - {self.name}
        return name

    def of(self, found: Usage | ByResource | None) -> float | None:
        """What is said of it."""
        name = self.name if isinstance(found, ByResource) else self.field
        value: float | None = None if found is None else getattr(found, name)
        return value

    def column(self, columns: UsageColumns | None, count: int) -> Sequence[float | None]:
        """What `columns` say of it, of each of `count` entities."""
        values: Sequence[float | None] = () if columns is None else getattr(columns, self.field)
        return values or [None] * count

    def count(self, counts: Counts) -> int:
        """How many of it `counts` are."""
        count: int = getattr(counts, self.name)
        return count

    def whole(self, amount: float | None) -> int | None:
        """An amount that was published in `unit` and is whole in `whole_unit`."""
        return None if amount is None else round(amount * self.scale)

    def cut(self, value: float) -> int:
        """Usage in whole units, cut toward zero."""
        return math.trunc(value * self.scale)

    def cut_text(self, value: float) -> str:
        """How `cut` came about."""
        return f"trunc({value!r})" if self.scale == 1 else f"trunc({value!r} * {self.scale})"


RESOURCES: Final[Mapping[str, Resource]] = {
    "cpu": Resource("cpu", "cpu_cores", "cores", "m", 1000),
    "memory": Resource("memory", "memory_bytes", "bytes", "bytes", 1),
}


class Pod(NamedTuple):
    """A pod as one resource of a prediction shows it; `raw` is in usage units, `request` whole.
    `samples` are those of the resource, `others` of the other one, in words."""

    uid: str
    pod_class: str
    cold: bool
    active: bool
    ended: bool
    samples: int
    others: str
    age_seconds: float | None
    request: int | None
    raw: float | None

    @property
    def why_by_request(self) -> str:
        """Why its request stands for its peak."""
        if not self.cold:
            return f"of which there is {self.why_unknown}"
        age = "of unknown age" if self.age_seconds is None else f"{self.age_seconds!r} s old"
        return f"cold, {age}, {self.samples} samples ({self.others})"

    @property
    def why_unknown(self) -> str:
        """What there is instead of a peak."""
        return "no peak by this predictor" if self.samples else "no sample"


def pods_of(peaks: PodPeaks, resource: Resource, predictor: str) -> list[Pod]:
    """The pods of a prediction, in order of uid, with the peaks of one predictor."""
    count = len(peaks.uid)
    requests = [resource.whole(value) for value in resource.column(peaks.request, count)]
    raw = resource.column(peaks.raw.get(predictor), count)
    ended = peaks.ended or [False] * count
    own, other = (_counts(peaks.samples, name) for name in (resource.name, resource.other))
    others = [f"{samples} of {resource.other}" for samples in other]
    return [
        Pod(*row)
        for row in zip(
            peaks.uid, peaks.pod_class, peaks.cold, peaks.active, ended, own, others,
            peaks.age_seconds, requests, raw, strict=True,
        )
    ]  # fmt: skip


def _counts(columns: CountColumns, name: str) -> Sequence[int]:
    counts: Sequence[int] = getattr(columns, name)
    return counts


def given(label: str, value: float, unit: str) -> str:
    """An input."""
    return f"{label}: {value!r} {unit}".rstrip()


def step(label: str, expression: str, value: float | None, unit: str) -> str:
    """A result and how it came about; a result that is not known is said to be so."""
    if value is None:
        return unknown(label, "not all of it is known")
    return f"{label}: {expression} = {value!r} {unit}".rstrip()


def unknown(label: str, why: str) -> str:
    """What is not known, and why."""
    return f"{label}: unknown: {why}"


def added(label: str, lines: Iterable[str], total: float | None, unit: str) -> Iterator[str]:
    """The lines, each of which ends with a value, and their sum."""
    counted = 0
    for line in lines:
        counted += 1
        yield f"  {line}"
    summed = f"{label}, sum of {counted}"
    yield unknown(summed, "not stated") if total is None else given(summed, total, unit)


_NAME: Final = re.compile(r"[A-Za-z_][\w.]*(?:-[\w.]+)*")
_FUNCTIONS: Final = frozenset({"max", "min", "trunc"})


def names_in(formula: str) -> list[str]:
    """The names that a formula speaks of, in its order, each once.

    >>> names_in("max(nsigma-v1, mean + N * stdev)")
    ['nsigma-v1', 'mean', 'N', 'stdev']
    """
    return [name for name in dict.fromkeys(_NAME.findall(formula)) if name not in _FUNCTIONS]


def filled_in(formula: str, values: Mapping[str, float]) -> str:
    """The formula with numbers in place of names.

    >>> filled_in("mean + N * stdev", {"mean": 0.5, "N": 3.0, "stdev": 0.25})
    '0.5 + 3.0 * 0.25'
    """
    if formula in values:
        return repr(values[formula])
    return _NAME.sub(
        lambda match: match[0] if match[0] in _FUNCTIONS else repr(values[match[0]]), formula
    )
