"""Derive what is reclaimable of Prod, and the peak of Prod, from a prediction record.

Reclaimable are the requests that Prod will not use. A predictor computes them twice, from the peaks
of the pods and from the peaks of the classes, and the smaller result counts: each alone would
overlook usage that the other sees. All amounts are whole millicores and bytes. The results are
those of the record, not of this module, so that the text reveals a wrong step of the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pipeline.processors.explain.derivation import (
    PodValues,
    Resource,
    indented,
    input_line,
    pod_values,
    step_line,
    sum_lines,
    unknown_line,
)
from pipeline.topics.predictions import EntityPeaks, PredictionRecord, Reclaimable

PROD_CLASSES: Final = ("prod", "none", "unknown")
"""Classes whose pods count as Prod. A pod without a class, or with an unknown one, may be Prod."""


def reclaimable_lines(
    record: PredictionRecord, resource: Resource, predictor: str
) -> Iterator[str]:
    """The lines that derive what is reclaimable of one resource, by one predictor."""
    derivation = _Derivation(record, resource, predictor)
    yield derivation.allocatable_line()
    if derivation.answer.pair:
        yield "by the pods:"
        yield from indented(derivation.by_pods())
    yield "by the classes:"
    yield from indented(derivation.by_classes())
    yield from derivation.outcome()


def margin_of(record: PredictionRecord) -> float:
    """The factor of the safety margin."""
    return (100.0 + record.safety_margin_percent) / 100.0


class _Derivation:
    """The derivation of one predictor's answer for one resource; amounts are in whole units.

    A pod counts either its peak (`by_peak`) or, while the peak is unknown or not trusted, its
    request (`by_request`). The surplus of a pod is its request above its peak.
    """

    def __init__(self, record: PredictionRecord, resource: Resource, predictor: str) -> None:
        self.record = record
        self.resource = resource
        self.predictor = predictor
        self.unit = resource.whole_unit
        self.margin = margin_of(record)
        self.answer: Reclaimable = record.reclaimable[predictor]
        self.allocatable = resource.whole(resource.value(record.allocatable))
        self.pods = [
            pod
            for pod in pod_values(record.pods, resource, predictor)
            if pod.pod_class in PROD_CLASSES and not pod.ended
        ]
        self.by_request = [pod for pod in self.pods if pod.counts_request]
        self.by_peak = [pod for pod in self.pods if pod.raw is not None and not pod.counts_request]

    def published(self, name: str) -> int | None:
        """A field of the record's answer."""
        return self.resource.whole(self.resource.value(getattr(self.answer, name)))

    def peak_of(self, pod: PodValues) -> int:
        return 0 if pod.raw is None else int(self.margin * self.resource.cut(pod.raw))

    def peak_text(self, pod: PodValues) -> str:
        cut = "0" if pod.raw is None else self.resource.cut_text(pod.raw)
        return cut if pod.raw is None else f"trunc({self.margin!r} * {cut})"

    def allocatable_line(self) -> str:
        if self.allocatable is None:
            return unknown_line("allocatable", "no record of the node states it")
        return input_line("allocatable", self.allocatable, self.unit)

    def by_pods(self) -> Iterator[str]:
        """Peaks of pods, requests that count in place of peaks, and what both leave."""
        for pod in self.pods:
            if pod.raw is None and pod.request is None:
                why = f"{pod.why_unknown} and no request, so it adds nothing"
                yield unknown_line(f"peak of {pod.uid}", why)
        if left_out := self.resource.value(self.answer.left_out):
            yield input_line("pods that add nothing", left_out, "")
        peaks = _sum(map(self.peak_of, self.by_peak))
        yield from sum_lines("peaks", map(self._peak_line, self.by_peak), peaks, self.unit)
        requests = self.published("unpredicted")
        request_lines = (
            input_line(f"request of {pod.uid}, {pod.why_by_request}", pod.request or 0, self.unit)
            for pod in self.by_request
        )
        yield from sum_lines("requests that stand in for peaks", request_lines, requests, self.unit)
        reclaimable = [pod for pod in self.by_peak if pod.can_be_reclaimed]
        left = _sum(map(self._surplus, reclaimable))
        yield from sum_lines("left", map(self._left_line, reclaimable), left, self.unit)
        yield self._step(
            "peak by the pods, peaks + requests",
            f"{peaks} + {requests}",
            self.published("pods_peak"),
        )
        yield self._step(
            "reclaimable by the pods, least of allocatable - peaks and left",
            f"min(max({self.allocatable} - {peaks}, 0), {left})", self.published("pods_amount"),
        )  # fmt: skip

    def by_classes(self) -> Iterator[str]:
        """The peaks of system and classes, and the requests of Prod."""
        used: list[int] = []
        for name in ("system", *PROD_CLASSES):
            peaks = self.record.system if name == "system" else self.record.classes.get(name)
            raw = self.resource.value((peaks or EntityPeaks()).raw.get(self.predictor))
            if raw is not None:
                used.append(self.resource.cut(raw))
                yield self._step(f"{name}, whole", self.resource.cut_text(raw), used[-1])
            elif name == "unknown" and (peaks or EntityPeaks()).model.last_at is None:
                used.append(0)
                yield input_line("unknown, without a model", 0, self.unit)
            else:
                yield unknown_line(f"{name}, whole", "no peak")
        surplus, peak = self.published("surplus"), self.published("classes_peak")
        beyond, held = _sum(map(self._surplus, self.by_request)), self.published("held")
        yield from sum_lines(
            "requests beyond peaks that are not trusted", map(self._surplus_line, self.by_request),
            beyond, self.unit,
        )  # fmt: skip
        if held:
            yield input_line("of this, already in the peaks of classes", held, self.unit)
            yield self._step("requests beyond, and not in them yet", f"{beyond} - {held}", surplus)
        yield self._step(
            "peak by the classes, margin * (system + prod + none + unknown) + requests beyond",
            f"trunc({self.margin!r} * ({' + '.join(map(str, used))})) + {surplus}", peak,
        )  # fmt: skip
        requests = self.published("requests")
        request_lines = (
            input_line(f"request of {pod.uid}", pod.request or 0, self.unit)
            for pod in self.pods
            if pod.can_be_reclaimed
        )
        yield from sum_lines("requests of Prod", request_lines, requests, self.unit)
        yield self._step(
            "reclaimable by the classes, least of allocatable - peak and requests - peak",
            f"min(max({self.allocatable} - {peak}, 0), max({requests} - {peak}, 0))",
            self.published("classes_amount"),
        )  # fmt: skip

    def outcome(self) -> Iterator[str]:
        """The smaller amount and the higher peak of both, or the result of the classes alone."""
        amount, peak = self.published("classes_amount"), self.published("classes_peak")
        if not self.answer.pair:
            amounts = "reclaimable of Prod, by the classes", f"{amount}"
            peaks = "peak of Prod, by the classes", f"{peak}"
        else:
            system = self.published("system")
            raw = self.resource.value(self.record.system.raw.get(self.predictor)) or 0.0
            expression = f"trunc({self.margin!r} * {self.resource.cut_text(raw)})"
            yield self._step("peak of the system, margin * system", expression, system)
            pods = self.published("pods_amount"), self.published("pods_peak")
            amounts = "reclaimable of Prod, least of pods and classes", f"min({pods[0]}, {amount})"
            peaks = (
                "peak of Prod, highest of pods + system and classes",
                f"max({pods[1]} + {system}, {peak})",
            )
        yield self._step(*amounts, self.published("amount"))
        yield self._step(*peaks, self.published("peak"))

    def _peak_line(self, pod: PodValues) -> str:
        return self._step(
            f"peak of {pod.uid}, margin * raw", self.peak_text(pod), self.peak_of(pod)
        )

    def _surplus(self, pod: PodValues) -> int:
        return max((pod.request or 0) - self.peak_of(pod), 0)

    def _left_line(self, pod: PodValues) -> str:
        expression = f"max({pod.request} - {self.peak_of(pod)}, 0)"
        return self._step(f"left by {pod.uid}, request - peak", expression, self._surplus(pod))

    def _surplus_line(self, pod: PodValues) -> str:
        expression = f"max({pod.request} - {self.peak_text(pod)}, 0)"
        return self._step(f"{pod.uid}, request - margin * raw", expression, self._surplus(pod))

    def _step(self, label: str, expression: str, value: int | None) -> str:
        return step_line(label, expression, value, self.unit)


def _sum(amounts: Iterable[int]) -> int:
    """The sum as float64 has it, which is exact below 2**53."""
    return int(sum(map(float, amounts)))
