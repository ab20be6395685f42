"""Groups of the models: windows are applied to a bank, and `Bank.peaks` answers."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, class_label
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.node_peaks import NodePeaks, ProdReclaimable
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.percentile import Percentile
from pipeline.topics.nodes import Strategy
from tests.vectors.cases import Case, plain
from tests.vectors.runner import ERROR, Difference, group
from tests.vectors.usage import class_of

START_MS = 1_700_000_000_000
_PEAKS = "Bank.apply, Bank.peaks"


class Reason(NamedTuple):
    """Why the product differs, and what a user sees of it."""

    why: str
    effect: str


FAILED_NODE = Reason(
    "a failed query of the node trains nothing; upstream trains the system with 0",
    "peaks of the system do not sink when metrics are missing",
)
FAILED_POD = Reason(
    "a pod whose query failed makes the system and its class unknown, and both train nothing",
    "a failed query does not move the pod's usage to the system",
)
IDLE = Reason(
    "the peak of a model that never saw usage is 0, not the end of the first bucket",
    "each idle class leaves 25 millicores and 5 MiB more to Mid",
)
DELETING = Reason(
    "a pod that is being deleted counts its own peak until it has ended",
    "peaks sink when a pod has ended, not when its deletion begins",
)
FINISHED = Reason(
    "a young pod that has finished counts nothing",
    "a finished Job leaves its request to Mid at once",
)
COLD_CLASS = Reason(
    "a cold pod counts its request in the class view as in the pod view",
    "less is reclaimed in the first hours of a pod",
)
REFUSED = Reason(
    "a pod without a model keeps its request in both views",
    "a pod without a model neither raises nor lowers what is reclaimed",
)
WITH_SYSTEM = Reason(
    "the peak of Prod always includes the system, as documented",
    "the reported peak is higher where the pod view is the larger",
)

MODEL_IDS = {
    "node": "__node__",
    "system": "__node-sys__",
    **{name: f"__node-{class_label(name)}__" for name in CLASS_CODES if name != "unknown"},
}


def _skipped_query(given: Case, expected: Case) -> Difference | None:
    """A failed query of the node trains no system; that of a pod neither system nor class."""
    node = given["node_usage"]
    failed = {MODEL_IDS[class_of(pod)] for pod in given["pods"] or () if pod["usage"] is None}
    if failed:
        left_out = failed | {"__node-sys__"}
        instead = {k: v for k, v in expected["samples"].items() if k not in left_out}
        return Difference(*FAILED_POD, {"model_count": len(instead), "samples": instead})
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
    return Difference(*FAILED_NODE, {"model_count": len(instead), "samples": instead})


@group(_PEAKS, differs=_skipped_query)
def prediction_training(case: Case) -> object:
    """One window through the bank; after one sample the mean is that sample."""
    node = np.array([np.nan if v is None else v for v in case["node_usage"] or [None] * 2], float)
    window = _window(START_MS, node, case["pods"] or ())
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


def _idle_is_zero(given: Case, expected: Case) -> Difference | None:
    idle = [
        key
        for key, samples in (("cpu_milli", "cpu_samples"), ("memory_bytes", "memory_samples"))
        if not any(value for value, _ in given[samples])
    ]
    zeros = dict.fromkeys(idle, 0)
    answer = {name: values | zeros for name, values in expected.items()}
    return Difference(*IDLE, answer) if idle else None


@group(_PEAKS, differs=_idle_is_zero, truncated=True)
def model_prediction(case: Case) -> object:
    """Percentiles of a node that used the samples, one window each."""
    by_offset: dict[float, tuple[list[float], list[float]]] = {}
    for r, values in enumerate((case["cpu_samples"], case["memory_samples"])):
        for value, offset in values:
            by_offset.setdefault(offset, ([], []))[r].append(value)
    samples = [
        (offset, usage)
        for offset, both in sorted(by_offset.items())
        for usage in zip_longest(*both, fillvalue=np.nan)
    ]
    answer: dict[str, dict[str, int]] = {}
    for name, q in {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}.items():
        bank = Bank(ModelConfig(options={"percentile": {"cpu": q, "memory": q}}))
        # A bank takes one window of a node at a time: of samples at one time, each a bit later.
        for index, (offset, usage) in enumerate(samples):
            end_ms = round((case["start_unix"] + offset) * 1000) + index
            bank.apply([_window(end_ms, np.array(usage, float))])
        (peaks,) = bank.peaks(["n"])
        cpu, memory = peaks.predictors["percentile"].raw[ENTITIES.index("node")]
        answer[name] = {"cpu_milli": int(cpu * 1000), "memory_bytes": int(memory)}
    return answer


class Stated(Percentile):
    """A predictor that answers the predictions of a case: (cpu, memory) by model."""

    def __init__(self, peaks: Mapping[str, Sequence[float]], uids: Sequence[str]) -> None:
        super().__init__()
        self.entities = np.array([peaks[MODEL_IDS.get(name, name)] for name in ENTITIES])
        self.pods = np.array([peaks[uid] for uid in uids], float).reshape(-1, 2)

    def peak(self, view: View) -> Peaks:
        return Peaks(self.entities[None], self.pods)


def _peaks_of(case: Case, *, has_pod_models: bool = True) -> tuple[NodePeaks, list[str]]:
    """The peaks after a window with the pods of a case, and the UIDs that it lists twice. Without
    models of pods, pods use nothing."""
    listed = [pod["uid"] for pod in case["pods"] or ()]
    stated = dict.fromkeys((*MODEL_IDS.values(), *ENTITIES), (np.nan, np.nan))
    stated |= dict.fromkeys(listed, (np.nan, np.nan) if has_pod_models else (0.0, 0.0))
    for model, quantiles in (plain(case["predictions"]) or {}).items():
        if quantiles is not None:
            pair = quantiles["p95"]["cpu_milli"] / 1000, quantiles["p98"]["memory_bytes"]
            # The next float: truncation must give the stated amount.
            stated[model] = np.nextafter(pair[0], np.inf), pair[1]
    bank = Bank(
        ModelConfig(
            strategy=Strategy(
                cold_start_seconds=case.get("cold_start_seconds", 0.0),
                cold_start_samples=0,
                safety_margin_percent=case["safety_margin_percent"],
            )
        ),
        {"percentile": Stated(stated, sorted({*listed}))},
    )
    window = _window(START_MS, np.full(2, np.nan), case["pods"] or ())
    window.allocatable = np.array(_pair(case.get("node_allocatable")), float)
    bank.apply([window])
    (peaks,) = bank.peaks(["n"])
    return peaks, sorted({uid for uid in listed if listed.count(uid) > 1})


def _window(end_ms: int, usage: FloatArray, pods: Sequence[Case] = ()) -> NodeWindow:
    """A window of a minute with the usage of the node and of the pods that have one."""
    used = [pod["usage"] if pod.get("usage") else (np.nan, np.nan) for pod in pods]
    ended = np.array([pod.get("phase") in ("Succeeded", "Failed") for pod in pods], np.bool_)
    deleting = np.array([bool(pod.get("deleting")) for pod in pods], np.bool_)
    return NodeWindow(
        node="n", machine_id="m", epoch=1, start_ms=end_ms - 60_000, end_ms=end_ms, coverage=1.0,
        node_usage=usage, pod_uids=[pod["uid"] for pod in pods],
        pod_classes=np.array([CLASS_CODES[class_of(pod)] for pod in pods], np.int8),
        pod_usage=np.array(used, float).reshape(-1, 2),
        requests=np.array([_pair(pod.get("requests", {})) for pod in pods], float).reshape(-1, 2),
        pod_ages=np.array([pod.get("age_seconds", 0.0) for pod in pods], float),
        pod_active=~deleting & ~ended, pod_ended=ended,
    )  # fmt: skip


def _pair(resources: Case | None) -> list[float]:
    if resources is None:
        return [np.nan, np.nan]
    return [resources.get("cpu_milli", 0), resources.get("memory_bytes", 0)]


def _published(amount: FloatArray, peak: FloatArray) -> Case:
    if np.isnan(amount).any() or np.isnan(peak).any():
        return ERROR  # unknown: a model or the allocatable of the node is missing
    return {
        name: {"cpu_milli": int(cpu), "memory_bytes": int(memory)}
        for name, (cpu, memory) in (("reclaimable", amount), ("peak", peak))
    }


def _by_the_pods(given: Case, expected: Case) -> Difference | None:
    if expected.get("error"):
        return None
    ours: Case = {"reclaimable": {}, "peak": {}, "pods_with_error": expected["pods_with_error"]}
    reasons: set[Reason] = set()
    for key, quantile in _RESOURCES:
        sums, why = _by_hand(given, key, quantile)
        reasons |= why & {DELETING, FINISHED}
        room = max(_allocatable(given, key) - sums["peaks"], 0)
        ours["reclaimable"][key] = min(room, sums["unused"])
        ours["peak"][key] = sums["peaks"] + sums["waiting"]
    return None if ours == expected else _difference(reasons, ours)


def _other_pod_models(given: Case) -> Case | None:
    """Other models of pods that upstream ignores: a pod that is being deleted uses nothing, a cold
    pod its request."""
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


@group(_PEAKS, differs=_by_the_pods, without=_other_pod_models, truncated=True)
def pod_peak_predictor(case: Case) -> object:
    peaks, twice = _peaks_of(case)
    prod: ProdReclaimable = peaks.reclaimable
    without = np.isnan(peaks.decided.pod_raw).any(axis=1) & peaks.pod_active & ~peaks.pod_cold
    prod_classes = [CLASS_CODES[name] for name in ("prod", "none")]
    refused = without & np.isin(peaks.pod_classes, prod_classes)
    uids = [uid for uid, no_model in zip(peaks.pod_uids, refused, strict=True) if no_model]
    answer = _published(prod.pods_amount, prod.pods_peak)
    return answer if answer is ERROR else answer | {"pods_with_error": [*uids, *twice]}


@group(_PEAKS, truncated=True)
def priority_peak_predictor(case: Case) -> object:
    peaks, _ = _peaks_of(case, has_pod_models=False)
    return _published(peaks.reclaimable.classes_amount, peaks.reclaimable.classes_peak)


def _by_both(given: Case, expected: Case) -> Difference | None:
    if expected.get("error"):
        return None
    ours: Case = {"reclaimable": {}, "peak": {}}
    reasons: set[Reason] = set()
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
    return None if ours == expected else _difference(reasons, ours)


def _other_models(given: Case) -> Case | None:
    """The system's model moved into Prod's: upstream uses their sum alone."""
    plain = _other_pod_models(given)
    if plain is None:
        return None
    models = plain["predictions"]
    system, prod = models["__node-sys__"], models["__node-koord-prod__"]
    nothing = {q: dict.fromkeys(system[q], 0) for q in system}
    both = {q: {key: system[q][key] + prod[q][key] for key in system[q]} for q in system}
    moved = {"__node-sys__": nothing, "__node-koord-prod__": both}
    return plain | {"predictions": models | moved}


@group(_PEAKS, differs=_by_both, without=_other_models, truncated=True)
def prod_reclaimable(case: Case) -> object:
    peaks, _ = _peaks_of(case)
    return _published(peaks.reclaimable.amount, peaks.reclaimable.peak)


# -- the product's rules in plain arithmetic


def _by_hand(given: Case, key: str, quantile: str) -> tuple[dict[str, int], set[Reason]]:
    """Sums over the pods for one resource, and the reasons for which upstream's differ."""
    factor = (100 + given["safety_margin_percent"]) / 100

    def peak_of(model: str) -> int | None:
        quantiles = given["predictions"].get(model)
        return None if quantiles is None else int(factor * quantiles[quantile][key])

    sums = dict.fromkeys(("peaks", "waiting", "unused", "surplus", "requests"), 0)
    reasons: set[Reason] = set()
    for pod in {pod["uid"]: pod for pod in reversed(given["pods"] or [])}.values():
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


def _difference(reasons: set[Reason], answer: Case) -> Difference:
    assert reasons, "it differs without a reason"
    why, effect = ("; ".join(texts) for texts in zip(*sorted(reasons), strict=True))
    return Difference(why, effect, answer)
