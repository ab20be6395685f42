"""Result records: what a node's models and its last window say, as the topics carry it.

Pure: the same window and peaks give the same records, whoever makes them and when; only `epoch`
says who did. Units change here: models hold cores and bytes, Kubernetes amounts are millicores.
"""

import math
from functools import lru_cache
from itertools import compress
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.join.window_batch import WindowUsage, amounts
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.entity_columns import NEVER
from pipeline.processors.model.model_config import FIRST_CLASS, NODE, SYSTEM
from pipeline.processors.model.peaks import Headline, NodePeaks, ProdReclaimable
from pipeline.processors.model.reclaimable import TO_KUBERNETES
from pipeline.processors.model.usage_points import STATISTICS, RecentUsage, fractions
from pipeline.times import format_time
from pipeline.topics.node_state import (
    AGGREGATED,
    DEVIATION,
    AggregatedUsage,
    Counters,
    Fractions,
    NodeStateRecord,
    UsageDeviation,
)
from pipeline.topics.predictions import (
    CountColumns,
    Counts,
    DriftTimes,
    EntityPeaks,
    ModelTerms,
    PodPeaks,
    PredictionRecord,
    Reclaimable,
    UsageColumns,
)
from pipeline.topics.resource_amounts import RATES, ByResource, Resources, Usage
from pipeline.topics.windows import Window

_UNKNOWN: Final = CLASSES.index("unknown")
_NO_SAMPLES: Final = Counts()


def prediction_record(
    window: Window, peaks: NodePeaks, *, generation: int, offset: int, epoch: int
) -> PredictionRecord:
    """All peaks of a node after `window`, which lies at `offset` of the log."""
    strategy, entities = window.node.strategy, _entities(peaks)
    return PredictionRecord(
        node=peaks.node,
        as_of=_time(peaks.end_ms),
        generation=generation,
        offset=offset,
        epoch=epoch,
        safety_margin_percent=strategy.safety_margin_percent,
        cold_start_seconds=strategy.cold_start_seconds,
        cold_start_samples=strategy.cold_start_samples,
        nsigma_multiplier=strategy.nsigma_multiplier,
        predictor=peaks.decides,
        simulated=window.header.simulated,
        allocatable=_amount(window.node.allocatable),
        node_peaks=entities[NODE],
        system=entities[SYSTEM],
        classes={
            name: entity
            for name, entity in zip(CLASSES, entities[FIRST_CLASS:], strict=True)
            if entity.model.samples != _NO_SAMPLES
        },
        pods=_pods(window, peaks),
        reclaimable={
            name: _reclaimable(answer.reclaimable) for name, answer in peaks.predictors.items()
        },
        cold_pods=tuple(compress(peaks.pod_uids, peaks.pod_cold.tolist())),
    )


def node_state_record(
    window: Window,
    peaks: Headline,
    recent: RecentUsage,
    counters: Counters,
    used: WindowUsage,
    *,
    generation: int,
    offset: int,
    epoch: int,
) -> NodeStateRecord:
    """The row of the state table after `window`, which lies at `offset` of the log; `used` is what
    the window says was used."""
    header = window.header
    classes = zip(CLASSES, used.classes.tolist(), used.class_pods.tolist(), strict=True)
    return NodeStateRecord(
        node=header.node,
        as_of=_time(header.window_end_ms),
        generation=generation,
        offset=offset,
        epoch=epoch,
        window_seconds=(header.window_end_ms - header.window_start_ms) / 1000,
        coverage=used.coverage,
        simulated=header.simulated,
        node_known=window.node.known,
        skew_seconds=(window.appended_ms - header.window_end_ms) / 1000,
        allocatable=_amount(window.node.allocatable),
        capacity=_amount(window.node.capacity),
        usage=_usage(used.node),
        system_usage=_usage(used.system),
        host_app_usage=_usage(used.host_apps),
        rates=_rates(used.rates),
        class_usage={name: _known(*usage) for name, usage, pods in classes if pods},
        pods=len(used.pods),
        unknown_pods=int(used.class_pods[_UNKNOWN]),
        young_pods=_young(used, peaks.young),
        aggregated=_aggregated(recent),
        deviation=_deviation(recent, _room(window.node.allocatable)),
        predictor=peaks.decides,
        peaks={name: _known(*peak) for name, peak in peaks.peaks.items()},
        prod_reclaimable=_kubernetes(*peaks.amount),
        prod_peak=_kubernetes(*peaks.peak),
        counters=counters,
    )


def _rates(rates: FloatArray) -> dict[str, float]:
    """What is known of them, by name."""
    return {
        name: rate for name, rate in zip(RATES, rates.tolist(), strict=True) if 0 <= rate < math.inf
    }


def _young(used: WindowUsage, young: list[str]) -> dict[str, Usage]:
    if not young:
        return {}
    # Of a UID that is there twice the first counts.
    places = {uid: at for at, uid in reversed(list(enumerate(used.facts.listing.uids)))}
    return {uid: _usage(used.pods[places[uid]]) for uid in young}


def _entities(peaks: NodePeaks) -> list[EntityPeaks]:
    """What is said of each of `ENTITIES`; lists are read many times faster than arrays."""
    whole = {name: answer.peaks.tolist() for name, answer in peaks.predictors.items()}
    raw = {name: answer.raw.tolist() for name, answer in peaks.predictors.items()}
    terms = {
        name: {term: values.tolist() for term, values in answer.terms.items()}
        for name, answer in peaks.predictors.items()
        if answer.terms
    }
    models = _models(peaks)
    return [
        EntityPeaks(
            peaks={name: _known(*values[i]) for name, values in whole.items()},
            raw={name: _known(*values[i]) for name, values in raw.items()},
            terms={
                name: {term: _by_resource(*values[i]) for term, values in own.items()}
                for name, own in terms.items()
            },
            model=model,
        )
        for i, model in enumerate(models)
    ]


def _models(peaks: NodePeaks) -> list[ModelTerms]:
    return [
        ModelTerms(
            samples=_counts(*samples),
            first_at=None if first == NEVER else _time(first),
            last_at=None if last == NEVER else _time(last),
            drift_at=_drift_at(drift_ms),
            drifts=_counts(*drifts),
        )
        for samples, first, last, drift_ms, drifts in zip(
            peaks.samples.tolist(), peaks.first_ms.tolist(), peaks.last_ms.tolist(),
            peaks.drift_ms.tolist(), peaks.drifts.tolist(), strict=True,
        )
    ]  # fmt: skip


def _counts(cpu: int, memory: int) -> Counts:
    return Counts(cpu=cpu, memory=memory)


def _drift_at(times_ms: list[int]) -> DriftTimes:
    cpu, memory = (None if ms == NEVER else _time(ms) for ms in times_ms)
    return DriftTimes(cpu=cpu, memory=memory)


def _pods(window: Window, peaks: NodePeaks) -> PodPeaks:
    listing, seconds = window.rows.listing, window.rows.ages
    ages = dict(zip(listing.uids, seconds[listing.pods].tolist(), strict=True))
    cpu, memory = peaks.pod_samples.T.tolist()
    return PodPeaks(
        uid=list(peaks.pod_uids),
        pod_class=[CLASSES[code] for code in peaks.pod_classes.tolist()],
        cold=peaks.pod_cold.tolist(),
        active=peaks.pod_active.tolist(),
        ended=peaks.pod_ended.tolist(),
        samples=CountColumns(cpu=cpu, memory=memory),
        age_seconds=[ages.get(uid) for uid in peaks.pod_uids],
        request=_columns(peaks.pod_requests / TO_KUBERNETES),
        raw={name: _columns(answer.pod_raw) for name, answer in peaks.predictors.items()},
    )


def _reclaimable(prod: ProdReclaimable) -> Reclaimable:
    return Reclaimable(
        pair=prod.pair,
        amount=_kubernetes(*prod.amount.tolist()),
        peak=_kubernetes(*prod.peak.tolist()),
        unpredicted=_kubernetes(*prod.unpredicted.tolist()),
        requests=_kubernetes(*prod.requests.tolist()),
        pods_amount=_kubernetes(*prod.pods_amount.tolist()),
        pods_peak=_kubernetes(*prod.pods_peak.tolist()),
        classes_amount=_kubernetes(*prod.classes_amount.tolist()),
        classes_peak=_kubernetes(*prod.classes_peak.tolist()),
        surplus=_kubernetes(*prod.surplus.tolist()),
        held=_kubernetes(*prod.held.tolist()),
        system=_kubernetes(*prod.system.tolist()),
        left_out=_by_resource(*prod.left_out.tolist()),
    )


def _aggregated(recent: RecentUsage) -> dict[str, AggregatedUsage]:
    return {
        span: AggregatedUsage(
            **{name: _known(*usage) for name, usage in zip(STATISTICS, usages, strict=True)}
        )
        for span, usages in zip(AGGREGATED, recent.aggregated.tolist(), strict=True)
    }


def _deviation(recent: RecentUsage, room: FloatArray) -> dict[str, UsageDeviation]:
    parts = fractions(recent.deviation, room)
    return {
        span: UsageDeviation(
            mean=_known(*mean),
            stdev=_known(*stdev),
            mean_fractions=_fractions(*mean_parts),
            stdev_fractions=_fractions(*stdev_parts),
        )
        for span, (mean, stdev), (mean_parts, stdev_parts) in zip(
            DEVIATION, recent.deviation.tolist(), parts.tolist(), strict=True
        )
    }


def _usage(values: FloatArray) -> Usage:
    return _known(*values.tolist())


def _known(cpu: float, memory: float) -> Usage:
    # Only NaN differs from itself; numpy is slow to ask of a single number.
    return Usage(
        cpu_cores=cpu if cpu == cpu else None, memory_bytes=memory if memory == memory else None
    )


def _by_resource(cpu: float, memory: float) -> ByResource:
    return ByResource(cpu=cpu if cpu == cpu else None, memory=memory if memory == memory else None)


def _fractions(cpu: float, memory: float) -> Fractions:
    return Fractions(cpu=cpu if cpu == cpu else None, memory=memory if memory == memory else None)


def _kubernetes(millicores: float, size: float) -> Usage:
    return _known(millicores / 1000.0, size)


@lru_cache(maxsize=1024)
def _amount(resources: Resources) -> Usage:
    return _kubernetes(*amounts(resources))


@lru_cache(maxsize=1024)
def _room(resources: Resources) -> FloatArray:
    return np.asarray(np.array(amounts(resources)) / TO_KUBERNETES)


def _columns(values: FloatArray) -> UsageColumns:
    cpu, memory = values[:, 0].tolist(), values[:, 1].tolist()
    return UsageColumns(cpu_cores=cpu, memory_bytes=memory)


@lru_cache(maxsize=1024)
def _time(milliseconds: int) -> str:
    return format_time(milliseconds / 1000)
