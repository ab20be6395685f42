"""Vector groups of the models: training, served quantiles, and what Prod leaves unused.

All pass through a `Bank`, as a worker's partitions do: windows are applied, `bank.peaks` answers.

- `prediction_training`: `learner` and `lessons`; after one sample the `nsigma-v1` mean is it.
- `model_prediction`: the same window by window, and the predictor `percentile`.
- `pod_peak_predictor`: `peaks` with `reclaimable.pod_view`, from the pods as the window tells them,
  under a predictor that answers what the case says the models do.
- `priority_peak_predictor`: likewise with `reclaimable.class_view`.
- `prod_reclaimable`: likewise what `peaks` makes of both views.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, class_label
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig, NodeWindow
from pipeline.processors.model.peaks import NodePeaks, ProdReclaimable
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.percentile import Percentile
from tests.vectors.usage import class_of

Case = dict[str, Any]

START_MS = 1_700_000_000_000

FAILED_NODE = (
    "a failed node query trained the system with 0: the remainder of what is unknown is unknown, "
    "and trains nothing"
)
FAILED_POD = (
    "a pod whose query failed raised the system by its usage and trained its class without it: a "
    "sum and a remainder of which a part is not known are unknown, and train nothing"
)
IDLE = (
    "quantile grid: what never used any has a peak of 0; the end of the first bucket would cost "
    "a node 25 m and 5 MiB for each idle class"
)
DELETING = (
    "a deleting pod left the peak while it still ran: it counts its own peak until it has ended, "
    "and gives nothing"
)
FINISHED = "a young pod that has finished added its request to the peak: it uses nothing any more"
COLD_CLASS = (
    "cold start was not handled in the class view: a cold pod counts its request there as it does "
    "in the pod view, whatever it used in its first hours"
)
REFUSED = (
    "a pod without a model left the requests of the class view while its usage stayed in the "
    "peak: it keeps its request, on both sides"
)
WITH_SYSTEM = (
    "the peak of Prod is documented with the system and lacked it where the pod view is larger: "
    "it always has it"
)

MODEL_IDS = {
    "node": "__node__",
    "system": "__node-sys__",
    **{name: f"__node-{class_label(name)}__" for name in CLASS_CODES if name != "unknown"},
}


def prediction_training(case: Case) -> object:
    """One window through the bank; after one sample the mean is that sample."""
    node = np.array([np.nan if v is None else v for v in case["node_usage"] or [None] * 2], float)
    window = _window(START_MS, node, case["pods"])
    bank = Bank()
    bank.apply([window])
    (peaks,) = bank.peaks(["n"])
    # Before the margin, N-sigma of a single sample is the sample.
    samples = {}
    nsigma = peaks.predictors["nsigma-v1"]
    for uid, value, count in zip(
        (*ENTITIES, *peaks.pod_uids),
        np.concatenate([nsigma.raw, nsigma.pod_raw]),
        np.concatenate([peaks.samples, peaks.pod_samples]),
        strict=True,
    ):
        if count.any():
            known = [float(v) if c else None for v, c in zip(value, count, strict=True)]
            samples[MODEL_IDS.get(uid, uid)] = {"cpu_cores": known[0], "memory_bytes": known[1]}
    return {"model_count": len(samples), "samples": samples}


def _skipped_query(given: Case, expected: Case) -> tuple[str, Case] | None:
    """A query that failed, of the node or of a pod, teaches the system nothing, that of a pod its
    class neither."""
    node = given["node_usage"]
    failed = {MODEL_IDS[class_of(pod)] for pod in given["pods"] if pod["usage"] is None}
    if failed:
        left_out = failed | {"__node-sys__"}
        instead = {k: v for k, v in expected["samples"].items() if k not in left_out}
        return FAILED_POD, {"model_count": len(instead), "samples": instead}
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
    return FAILED_NODE, {"model_count": len(instead), "samples": instead}


def model_prediction(case: Case) -> object:
    """The samples as those of a node, window by window, and its percentiles."""
    samples: dict[float, list[float]] = {}
    for r, of_resource in enumerate((case["cpu_samples"], case["memory_samples"])):
        for value, offset in of_resource:
            samples.setdefault(offset, [np.nan, np.nan])[r] = value
    answer: dict[str, dict[str, int]] = {}
    for name, q in {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}.items():
        bank = Bank(ModelConfig(options={"percentile": {"cpu": q, "memory": q}}))
        for offset, usage in sorted(samples.items()):
            end_ms = round((case["start_unix"] + offset) * 1000)
            bank.apply([_window(end_ms, np.array(usage, float))])
        (peaks,) = bank.peaks(["n"])
        cpu, memory = peaks.predictors["percentile"].raw[ENTITIES.index("node")]
        answer[name] = {"cpu_milli": int(cpu * 1000), "memory_bytes": int(memory)}
    return answer


def _idle_is_zero(given: Case, expected: Case) -> tuple[str, Case] | None:
    idle = [
        key
        for key, samples in (("cpu_milli", "cpu_samples"), ("memory_bytes", "memory_samples"))
        if not any(value for value, _ in given[samples])
    ]
    zeros = dict.fromkeys(idle, 0)
    return (IDLE, {name: v | zeros for name, v in expected.items()}) if idle else None


class Stated(Percentile):
    """A predictor that answers what a case says: (cpu, memory) by model."""

    def __init__(self, peaks: Mapping[str, Sequence[float]], uids: Sequence[str]) -> None:
        super().__init__()
        self.entities = np.array([peaks[MODEL_IDS.get(name, name)] for name in ENTITIES])
        self.pods = np.array([peaks[uid] for uid in uids], float).reshape(-1, 2)

    def peak(self, view: View) -> Peaks:
        return Peaks(self.entities[None], self.pods)


def _answer(case: Case, *, pods_stated: bool = True) -> tuple[NodePeaks, list[str]]:
    """Pods and node as a window through the bank, with the peaks that the case says; and the UIDs
    that came twice. A case that says nothing of its pods' models has them use nothing."""
    listed = [pod["uid"] for pod in case["pods"]]
    stated = dict.fromkeys((*MODEL_IDS.values(), *ENTITIES), (np.nan, np.nan))
    stated |= dict.fromkeys(listed, (np.nan, np.nan) if pods_stated else (0.0, 0.0))
    for model, found in case["predictions"].items():
        if found is not None:
            pair = found["p95"]["cpu_milli"] / 1000, found["p98"]["memory_bytes"]
            # A millicore more than a last bit, so that cutting gives what was stated.
            stated[model] = np.nextafter(pair[0], np.inf), pair[1]
    bank = Bank(
        ModelConfig(
            cold_start_seconds=case.get("cold_start_seconds", 0.0),
            cold_start_samples=0,
            safety_margin_percent=case["safety_margin_percent"],
        ),
        {"percentile": Stated(stated, sorted({*listed}))},
    )
    window = _window(START_MS, np.full(2, np.nan), case["pods"])
    window.allocatable = np.array(_pair(case.get("node_allocatable")), float)
    bank.apply([window])
    (peaks,) = bank.peaks(["n"])
    return peaks, sorted({uid for uid in listed if listed.count(uid) > 1})


def _window(end_ms: int, usage: FloatArray, pods: Sequence[Case] = ()) -> NodeWindow:
    """A window of a minute whose pods, where a case says so, used something."""
    used = [pod["usage"] if pod.get("usage") else (np.nan, np.nan) for pod in pods]
    ended = np.array([pod.get("phase") in ("Succeeded", "Failed") for pod in pods], np.bool_)
    deleting = np.array([bool(pod.get("deleting")) for pod in pods], np.bool_)
    return NodeWindow(
        node="n",
        machine_id="m",
        epoch=1,
        start_ms=end_ms - 60_000,
        end_ms=end_ms,
        coverage=1.0,
        node_usage=usage,
        pod_uids=[pod["uid"] for pod in pods],
        pod_classes=np.array([CLASS_CODES[class_of(pod)] for pod in pods], np.int8),
        pods=np.array(used, float).reshape(-1, 2),
        requests=np.array([_pair(pod.get("requests", {})) for pod in pods], float).reshape(-1, 2),
        pod_ages=np.array([pod.get("age_seconds", 0.0) for pod in pods], float),
        pod_active=~deleting & ~ended,
        pod_ended=ended,
    )


def _pair(resources: Case | None) -> list[float]:
    if resources is None:
        return [np.nan, np.nan]
    return [resources.get("cpu_milli", 0), resources.get("memory_bytes", 0)]


def _published(amount: FloatArray, peak: FloatArray) -> Case:
    if np.isnan(amount).any() or np.isnan(peak).any():
        raise ValueError("unknown: a model or the node's allocatable is missing")
    return {
        name: {"cpu_milli": int(cpu), "memory_bytes": int(memory)}
        for name, (cpu, memory) in (("reclaimable", amount), ("peak", peak))
    }


def pod_peak_predictor(case: Case) -> object:
    peaks, twice = _answer(case)
    prod: ProdReclaimable = peaks.reclaimable
    without = np.isnan(peaks.decided.pod_raw).any(axis=1) & peaks.pod_active & ~peaks.pod_cold
    prod_classes = [CLASS_CODES[name] for name in ("prod", "none")]
    refused = without & np.isin(peaks.pod_classes, prod_classes)
    uids = [uid for uid, no_model in zip(peaks.pod_uids, refused, strict=True) if no_model]
    return _published(prod.pods_amount, prod.pods_peak) | {"pods_with_error": [*uids, *twice]}


def priority_peak_predictor(case: Case) -> object:
    peaks, _ = _answer(case, pods_stated=False)
    return _published(peaks.reclaimable.classes_amount, peaks.reclaimable.classes_peak)


def prod_reclaimable(case: Case) -> object:
    peaks, _ = _answer(case)
    return _published(peaks.reclaimable.amount, peaks.reclaimable.peak)


# -- what we give instead, once more in plain arithmetic


def _by_hand(given: Case, key: str, quantile: str) -> tuple[dict[str, int], set[str]]:
    """Our rules for one resource, pod by pod, and the reasons why upstream's would differ."""
    factor = (100 + given["safety_margin_percent"]) / 100

    def peak_of(model: str) -> int | None:
        found = given["predictions"].get(model)
        return None if found is None else int(factor * found[quantile][key])

    sums = dict.fromkeys(("peaks", "waiting", "unused", "surplus", "requests"), 0)
    reasons = set()
    for pod in {pod["uid"]: pod for pod in reversed(given["pods"])}.values():
        if class_of(pod) not in ("prod", "none"):
            continue
        peak, request = peak_of(pod["uid"]), (pod["requests"] or {}).get(key, 0)
        cold = pod["age_seconds"] <= given["cold_start_seconds"]
        deleting = bool(pod.get("deleting"))
        if pod.get("phase") in ("Succeeded", "Failed"):
            reasons |= {FINISHED} if cold else set()
            continue
        reasons |= {DELETING} if deleting and not cold and peak else set()
        if cold or peak is None:
            reasons.add(COLD_CLASS if cold else REFUSED)
            sums["waiting"] += request
            sums["surplus"] += max(request - (peak or 0), 0)
        else:
            sums["peaks"] += peak
            sums["unused"] += 0 if deleting else max(request - peak, 0)
        sums["requests"] += 0 if deleting else request
    return sums, reasons


def _allocatable(given: Case, key: str) -> int:
    allocatable: int = given["node_allocatable"].get(key, 0)
    return allocatable


_RESOURCES = (("cpu_milli", "p95"), ("memory_bytes", "p98"))


def _by_the_pods(given: Case, expected: Case) -> tuple[str, Case] | None:
    if expected.get("error"):
        return None
    ours: Case = {"reclaimable": {}, "peak": {}, "pods_with_error": expected["pods_with_error"]}
    reasons: set[str] = set()
    for key, quantile in _RESOURCES:
        sums, why = _by_hand(given, key, quantile)
        reasons |= why & {DELETING, FINISHED}
        room = max(_allocatable(given, key) - sums["peaks"], 0)
        ours["reclaimable"][key] = min(room, sums["unused"])
        ours["peak"][key] = sums["peaks"] + sums["waiting"]
    return None if ours == expected else (_stated(reasons), ours)


def _by_both(given: Case, expected: Case) -> tuple[str, Case] | None:
    if expected.get("error"):
        return None
    ours: Case = {"reclaimable": {}, "peak": {}}
    reasons: set[str] = set()
    factor = (100 + given["safety_margin_percent"]) / 100
    for key, quantile in _RESOURCES:
        sums, why = _by_hand(given, key, quantile)
        reasons |= why
        models = [
            given["predictions"][f"__node-{name}__"][quantile][key]
            for name in ("sys", "koord-prod", "")
        ]
        room = _allocatable(given, key)
        peak = int(factor * sum(models)) + sums["surplus"]
        ours["reclaimable"][key] = min(
            max(room - sums["peaks"], 0), sums["unused"],
            max(room - peak, 0), max(sums["requests"] - peak, 0),
        )  # fmt: skip
        by_pods = sums["peaks"] + sums["waiting"]
        reasons |= {WITH_SYSTEM} if by_pods > peak - sums["surplus"] else set()
        ours["peak"][key] = max(by_pods + int(factor * models[0]), peak)
    return None if ours == expected else (_stated(reasons), ours)


# -- the same cases with all that out of play


def _pods_out_of_play(given: Case) -> Case | None:
    """With other models, at which upstream does not look: a pod that is being deleted uses nothing,
    a cold pod no less than its request."""
    predictions = dict(given["predictions"])
    reasons = _by_hand(given, *_RESOURCES[0])[1] | _by_hand(given, *_RESOURCES[1])[1]
    if reasons & {FINISHED, REFUSED}:
        return None
    for pod in given["pods"]:
        cold = pod["age_seconds"] <= given["cold_start_seconds"]
        if cold or pod.get("deleting"):
            cpu, memory = _pair(pod["requests"] or {}) if cold else (0, 0)
            usage = {"cpu_milli": cpu, "memory_bytes": memory}
            predictions[pod["uid"]] = {"p95": usage, "p98": usage}
    return given | {"predictions": predictions}


def _out_of_play(given: Case) -> Case | None:
    """What the system uses is in the model of Prod, too: upstream looks at their sum alone."""
    plain = _pods_out_of_play(given)
    if plain is None:
        return None
    models = plain["predictions"]
    system, prod = models["__node-sys__"], models["__node-koord-prod__"]
    nothing = {q: dict.fromkeys(system[q], 0) for q in system}
    both = {q: {key: system[q][key] + prod[q][key] for key in system[q]} for q in system}
    moved = {"__node-sys__": nothing, "__node-koord-prod__": both}
    return plain | {"predictions": models | moved}


def _stated(reasons: set[str]) -> str:
    assert reasons, "it differs, and nobody says why"
    return "; ".join(sorted(reasons))


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "prediction_training": prediction_training,
    "model_prediction": model_prediction,
    "pod_peak_predictor": pod_peak_predictor,
    "priority_peak_predictor": priority_peak_predictor,
    "prod_reclaimable": prod_reclaimable,
}
DIFFERENCES = {
    "prediction_training": _skipped_query,
    "model_prediction": _idle_is_zero,
    "pod_peak_predictor": _by_the_pods,
    "prod_reclaimable": _by_both,
}
OUT_OF_PLAY = {"pod_peak_predictor": _pods_out_of_play, "prod_reclaimable": _out_of_play}
TRUNCATED = frozenset(
    {"model_prediction", "pod_peak_predictor", "priority_peak_predictor", "prod_reclaimable"}
)
