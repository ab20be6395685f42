"""Vector groups of the models: training, served quantiles, and what Prod leaves unused."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.processors import histogram, reclaimable
from pipeline.processors.bank import Bank
from pipeline.processors.classes import CLASS_CODES, class_label
from pipeline.processors.histogram import CPU_LAYOUT, MEMORY_LAYOUT
from pipeline.processors.reclaimable import Reclaimable
from pipeline.processors.window import ENTITIES, FloatArray, ModelConfig, NodeWindow
from tests.vectors.histograms import DecayingHistogram
from tests.vectors.usage import class_of

Case = dict[str, Any]

HALF_LIFE_SECONDS = ModelConfig().profile.half_life_seconds
START_MS = 1_700_000_000_000

MODEL_IDS = {
    "node": "__node__",
    "system": "__node-sys__",
    **{name: f"__node-{class_label(name)}__" for name in CLASS_CODES if name != "unknown"},
}


def prediction_training(case: Case) -> object:
    """One window through the bank; after one sample the mean is that sample."""
    pods = case["pods"]
    usage = [pod["usage"] if pod["usage"] is not None else [np.nan, np.nan] for pod in pods]
    node = case["node_usage"]
    window = NodeWindow(
        node="n",
        machine_id="m",
        epoch=1,
        start_ms=START_MS,
        end_ms=START_MS + 60_000,
        coverage=1.0,
        node_usage=np.array([np.nan if v is None else v for v in node or [None, None]], float),
        pod_uids=[pod["uid"] for pod in pods],
        pod_classes=np.array([CLASS_CODES[class_of(pod)] for pod in pods], np.int8),
        pods=np.array(usage, float).reshape(-1, 2),
        requests=np.zeros((len(pods), 2)),
        pod_ages=np.zeros(len(pods)),
        pod_active=np.ones(len(pods), np.bool_),
    )
    bank = Bank()
    bank.apply([window])
    (peaks,) = bank.peaks(["n"])
    # N-sigma of a single sample is the sample times the margin.
    margin = 1.0 + bank.config.safety_margin_percent / 100.0
    samples = {}
    nsigma = peaks.predictors["nsigma-v1"]
    for uid, value, count in zip(
        (*ENTITIES, *peaks.pod_uids),
        np.concatenate([nsigma.peaks, nsigma.pod_peaks]) / margin,
        np.concatenate([peaks.samples, peaks.pod_samples]),
        strict=True,
    ):
        if count.any():
            known = [float(v) if c else None for v, c in zip(value, count, strict=True)]
            samples[MODEL_IDS.get(uid, uid)] = {"cpu_cores": known[0], "memory_bytes": known[1]}
    return {"model_count": len(samples), "samples": samples}


def _skipped_query(given: Case, expected: Case) -> tuple[str, Case] | None:
    """A node query that failed trains node and system with nothing, upstream the system with 0."""
    node = given["node_usage"]
    if node is not None and None not in node:
        return None
    instead = dict(expected["samples"])
    for model in ("__node__", "__node-sys__"):
        sample = dict(instead.get(model) or {})
        for key, value in zip(("cpu_cores", "memory_bytes"), node or (None, None), strict=True):
            if value is None:
                sample[key] = None
            elif model == "__node__":
                sample[key] = value
        if any(value is not None for value in sample.values()):
            instead[model] = sample
        else:
            instead.pop(model, None)
    reason = "the system remainder of an unknown node usage is unknown and trains nothing, not 0"
    return reason, {"model_count": len(instead), "samples": instead}


def model_prediction(case: Case) -> object:
    answer: dict[str, dict[str, int]] = {}
    fractions = {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}
    for r, (key, samples, layout, unit) in enumerate(
        (
            ("cpu_milli", case["cpu_samples"], CPU_LAYOUT, 1000.0),
            ("memory_bytes", case["memory_samples"], MEMORY_LAYOUT, 1.0),
        )
    ):
        one = DecayingHistogram(layout, HALF_LIFE_SECONDS[r])
        for value, offset in samples:
            one.add(value, 1.0, case["start_unix"] + offset)
        found = histogram.quantiles(one.weights, layout, [*fractions.values()])[:, 0]
        for name, value in zip(fractions, found, strict=True):
            answer.setdefault(name, {})[key] = int(np.trunc(value * unit))
    return answer


def _pair(resources: Case | None) -> list[float]:
    if resources is None:
        return [np.nan, np.nan]
    return [resources.get("cpu_milli", 0), resources.get("memory_bytes", 0)]


def _prediction(predictions: Case, model: str) -> list[float]:
    found = predictions.get(model)
    if found is None:
        return [np.nan, np.nan]
    return [found["p95"]["cpu_milli"], found["p98"]["memory_bytes"]]


def _margin(case: Case) -> FloatArray:
    return np.array([(100.0 + case["safety_margin_percent"]) / 100.0])


def _allocatable(case: Case) -> FloatArray:
    if case.get("node_allocatable") is None:
        raise ValueError("the node has no allocatable")
    return np.array([_pair(case["node_allocatable"])], float)


def _pods(case: Case) -> tuple[list[Case], list[str]]:
    """Pods by UID once each, and the UIDs that came twice."""
    by_uid: dict[str, Case] = {}
    twice = []
    for pod in case["pods"]:
        if pod["uid"] in by_uid:
            twice.append(pod["uid"])
        by_uid.setdefault(pod["uid"], pod)
    return list(by_uid.values()), twice


def _columns(pods: list[Case]) -> tuple[FloatArray, Any, Any]:
    requests = np.array([_pair(pod["requests"]) for pod in pods], float).reshape(-1, 2)
    classes = np.array([CLASS_CODES[class_of(pod)] for pod in pods], np.int8)
    ended = ("Succeeded", "Failed")
    active = np.array(
        [not pod.get("deleting") and pod.get("phase") not in ended for pod in pods], np.bool_
    )
    return requests, classes, active


def _pod_view(case: Case) -> tuple[Reclaimable, list[str]]:
    pods, twice = _pods(case)
    requests, classes, active = _columns(pods)
    quantiles = np.array([_prediction(case["predictions"], pod["uid"]) for pod in pods], float)
    ages = np.array([pod["age_seconds"] for pod in pods], float)
    cold = ages <= case["cold_start_seconds"]
    view = reclaimable.pod_view(
        np.zeros(len(pods), np.int64),
        quantiles.reshape(-1, 2),
        requests,
        classes,
        cold,
        active,
        _allocatable(case),
        _margin(case),
    )
    counted = reclaimable.counts_as_prod(classes, active) & ~cold & np.isnan(quantiles).any(axis=1)
    without = [pod["uid"] for pod, refused in zip(pods, counted, strict=True) if refused]
    return view, [*without, *twice]


def _class_view(case: Case) -> Reclaimable:
    pods, _ = _pods(case)
    requests, classes, active = _columns(pods)
    system, prod, none = (
        np.array([_prediction(case["predictions"], model)], float)
        for model in ("__node-sys__", "__node-koord-prod__", "__node-__")
    )
    nodes = np.zeros(len(pods), np.int64)
    return reclaimable.class_view(
        system,
        prod,
        none,
        np.full((1, 2), np.nan),
        reclaimable.request_sums(nodes, requests, classes, active, 1),
        _allocatable(case),
        _margin(case),
    )


def _published(view: Reclaimable) -> Case:
    if np.isnan(view.amount).any() or np.isnan(view.peak).any():
        raise ValueError("unknown: a model is missing")
    return {
        name: {"cpu_milli": int(cpu), "memory_bytes": int(memory)}
        for name, ((cpu, memory),) in (("reclaimable", view.amount), ("peak", view.peak))
    }


def pod_peak_predictor(case: Case) -> object:
    view, refused = _pod_view(case)
    return _published(view) | {"pods_with_error": refused}


def priority_peak_predictor(case: Case) -> object:
    return _published(_class_view(case))


def prod_reclaimable(case: Case) -> object:
    view, _ = _pod_view(case)
    return _published(reclaimable.combine(view, _class_view(case)))


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "prediction_training": prediction_training,
    "model_prediction": model_prediction,
    "pod_peak_predictor": pod_peak_predictor,
    "priority_peak_predictor": priority_peak_predictor,
    "prod_reclaimable": prod_reclaimable,
}
DIFFERENCES = {"prediction_training": _skipped_query}
TRUNCATED = frozenset(
    {"model_prediction", "pod_peak_predictor", "priority_peak_predictor", "prod_reclaimable"}
)
