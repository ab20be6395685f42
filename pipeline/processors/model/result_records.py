"""Encode predictions and node states as JSON, from the models and the last windows.

The same window and peaks give the same bytes, from any writer at any time; only `epoch` names the
writer. Models hold cores and bytes, Kubernetes amounts in records are millicores. Numbers are
encoded by column (`json_templates`), because most of a record are numbers between constant texts.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.json_templates import (
    VALUE,
    Template,
    number_texts,
    raw,
    string_texts,
)
from pipeline.processors.model.model_config import FIRST_CLASS, NODE, SYSTEM
from pipeline.processors.model.node_peaks import NodePeaks, PeakSummary, ProdReclaimable
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.usage_points import RecentUsage, fractions
from pipeline.processors.model.window_batch import WindowBatch, amounts
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import (
    AGGREGATED,
    AGGREGATIONS,
    DEVIATION,
    AggregatedUsage,
    Counters,
    Dispute,
    Fractions,
    NodeStateRecord,
    UsageDeviation,
)
from pipeline.topics.nodes import Strategy
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
from pipeline.topics.resource_amounts import RATES, ByResource, Usage
from pipeline.topics.windows import Window

Position = Mapping[str, int]
"""`generation`, `offset` and `epoch` of a result."""

_UNKNOWN: Final = CLASSES.index("unknown")
_USAGE: Final = Usage(cpu_cores=VALUE, memory_bytes=VALUE)
_BY_RESOURCE: Final = ByResource(cpu=VALUE, memory=VALUE)
_FRACTIONS: Final = Fractions(cpu=VALUE, memory=VALUE)


# -- node states

_AGGREGATED: Final = Template(
    dict.fromkeys(AGGREGATED, AggregatedUsage(**dict.fromkeys(AGGREGATIONS, _USAGE)))
)
_DEVIATION: Final = Template(
    dict.fromkeys(
        DEVIATION,
        UsageDeviation(
            mean=_USAGE, stdev=_USAGE, mean_fractions=_FRACTIONS, stdev_fractions=_FRACTIONS
        ),
    )
)
# JSON has mappings in order of their keys.
_AGGREGATED_ORDER: Final = [[*AGGREGATED].index(span) for span in sorted(AGGREGATED)]
_DEVIATION_ORDER: Final = [[*DEVIATION].index(span) for span in sorted(DEVIATION)]


def encode_node_states(
    batch: WindowBatch,
    summaries: Sequence[PeakSummary],
    recent: RecentUsage,
    counters: Sequence[Counters],
    disputes: Sequence[Dispute | None],
    alerts: Sequence[tuple[OpenAlert, ...]],
    compared_percent: Sequence[Mapping[str, float]],
    positions: Sequence[Position],
) -> list[bytes]:
    """The row of the state table of each node after its window in `batch`, as JSON.

    `summaries`, `recent`, `counters`, `disputes`, open `alerts`, `compared_percent` by rule and the
    `positions` in the log are of the same nodes.
    """
    average = batch.average
    allocatable = amounts([window.node.allocatable for window in batch.windows])
    usages = np.stack(
        [
            allocatable / TO_KUBERNETES,
            amounts([window.node.capacity for window in batch.windows]) / TO_KUBERNETES,
            average.node,
            average.system,
            average.host_apps,
        ],
        axis=1,
    ).tolist()
    coverage, rates = batch.coverage.tolist(), average.rates.tolist()
    class_usage, class_pods = average.classes.tolist(), average.class_pods.tolist()
    young = _young_pods(batch, summaries)
    spans = _spans(recent, allocatable / TO_KUBERNETES)
    return [
        encode_json(
            NodeStateRecord(
                node=window.header.node,
                as_of=_time(window.header.window_end_ms),
                **positions[i],
                window_seconds=(window.header.window_end_ms - window.header.window_start_ms) / 1000,
                coverage=coverage[i],
                simulated=window.header.simulated,
                node_known=window.node.known,
                source=window.header.source,
                dispute=disputes[i],
                skew_seconds=(window.appended_ms - window.header.window_end_ms) / 1000,
                allocatable=_usage(*usages[i][0]),
                capacity=_usage(*usages[i][1]),
                usage=_usage(*usages[i][2]),
                system_usage=_usage(*usages[i][3]),
                host_app_usage=_usage(*usages[i][4]),
                rates={n: r for n, r in zip(RATES, rates[i], strict=True) if 0 <= r < math.inf},
                gauges=dict(average.gauges[i]),
                class_usage={
                    name: _usage(*usage)
                    for name, usage, pods in zip(
                        CLASSES, class_usage[i], class_pods[i], strict=True
                    )
                    if pods
                },
                pods=len(batch.facts[i].rows),
                unknown_pods=class_pods[i][_UNKNOWN],
                young_pods=raw(young[i]),
                aggregated=raw(spans[i][0]),
                deviation=raw(spans[i][1]),
                predictor=summary.decides,
                peaks={name: _usage(*peak) for name, peak in summary.peaks.items()},
                peak_counts_requests=summary.peak_counts_requests,
                prod_reclaimable=_kubernetes(*summary.amount),
                prod_peak=_kubernetes(*summary.peak),
                counters=counters[i],
                alerts=alerts[i],
                compared_percent=dict(compared_percent[i]),
            )
        )
        for i, (window, summary) in enumerate(zip(batch.windows, summaries, strict=True))
    ]


def _young_pods(batch: WindowBatch, summaries: Sequence[PeakSummary]) -> list[bytes]:
    """`young_pods` of each node."""
    pods: list[int] = []
    uids: list[str] = []
    counts: list[int] = []
    for facts, own, summary in zip(batch.facts, batch.pod_slices, summaries, strict=True):
        young = summary.young
        if young is facts.pods.uids or young == facts.pods.uids:
            pods += range(own.start, own.stop)
        elif young:
            places = {uid: place for place, uid in enumerate(facts.pods.uids, own.start)}
            pods += [places[uid] for uid in young]
        uids += young
        counts.append(len(young))
    keys, numbers = string_texts(uids), number_texts(batch.average.pods.take(pods, axis=0))
    return [
        _usages_by_key(keys[end - count : end], numbers[2 * (end - count) : 2 * end])
        for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True)
    ]


_OPEN, _BETWEEN, _CLOSE = Template(_USAGE).texts


def _usages_by_key(keys: list[bytes], numbers: list[bytes]) -> bytes:
    """A mapping of keys, ascending, to usages, two numbers each."""
    if not keys:
        return b"{}"
    pieces = [b":" + _OPEN, b"", _BETWEEN, b"", _CLOSE + b",", b""] * len(keys)
    pieces[1::6], pieces[3::6], pieces[5::6] = numbers[0::2], numbers[1::2], [*keys[1:], b""]
    pieces[-2] = _CLOSE
    return b"".join([b"{", keys[0], *pieces, b"}"])


def _spans(recent: RecentUsage, allocatable: FloatArray) -> list[tuple[bytes, bytes]]:
    """`aggregated` and `deviation` of each node, which has `allocatable` (n, 2) cores and bytes."""
    parts = fractions(recent.deviation, allocatable[:, None, None])
    deviation = np.concatenate([recent.deviation, parts], axis=2)[:, _DEVIATION_ORDER]
    aggregated = recent.aggregated[:, _AGGREGATED_ORDER]
    numbers = [number_texts(aggregated), number_texts(deviation)]
    sizes = [aggregated[0].size, deviation[0].size]
    return [
        (
            _AGGREGATED.fill(numbers[0][i * sizes[0] : (i + 1) * sizes[0]]),
            _DEVIATION.fill(numbers[1][i * sizes[1] : (i + 1) * sizes[1]]),
        )
        for i in range(len(allocatable))
    ]


# -- predictions


def encode_prediction(window: Window, peaks: NodePeaks, position: Position) -> bytes:
    """All peaks of a node after `window`, which is at this position of the log, as JSON."""
    strategy = window.node.strategy
    fields: dict[str, Any] = {name: getattr(strategy, name) for name in _STATED_FIELDS}
    # The node's strategy may name a predictor that cannot decide.
    fields |= {"predictor": peaks.decides, **position}
    entities: list[bytes] = _entities(peaks)
    has_samples = [any(samples) for samples in peaks.samples.tolist()]
    return encode_json(
        PredictionRecord(
            node=peaks.node,
            as_of=_time(peaks.end_ms),
            **fields,
            simulated=window.header.simulated,
            allocatable=_kubernetes(*amounts([window.node.allocatable])[0].tolist()),
            node_peaks=raw(entities[NODE]),
            system=raw(entities[SYSTEM]),
            classes={
                name: raw(entities[i])
                for i, name in enumerate(CLASSES, FIRST_CLASS)
                if has_samples[i]
            },
            pods=_pods(window, peaks),
            reclaimable={
                name: raw(_reclaimable(answer.reclaimable))
                for name, answer in peaks.predictors.items()
            },
            cold_pods=tuple(compress(peaks.pod_uids, peaks.pod_cold.tolist())),
            outcomes=peaks.outcomes,
        )
    )


_STATED_FIELDS: Final = {*Strategy.__struct_fields__} & {*PredictionRecord.__struct_fields__}
"""The fields of a node's strategy that a prediction states, because `explain` needs them."""


@lru_cache(maxsize=64)
def _entity_template(terms: tuple[tuple[str, tuple[str, ...]], ...]) -> Template:
    """Of an entity with these predictors, each with the names of its terms."""
    usages = dict.fromkeys((name for name, _ in terms), _USAGE)
    counts, times = Counts(cpu=VALUE, memory=VALUE), DriftTimes(cpu=VALUE, memory=VALUE)
    return Template(
        EntityPeaks(
            peaks=usages,
            raw=usages,
            terms={name: dict.fromkeys(own, _BY_RESOURCE) for name, own in terms if own},
            model=ModelTerms(
                samples=counts, first_at=VALUE, last_at=VALUE, drift_at=times, drifts=counts
            ),
        )
    )


def _entities(peaks: NodePeaks) -> list[bytes]:
    """Each of `ENTITIES`."""
    answers = sorted(peaks.predictors.items())
    terms = tuple((name, tuple(sorted(answer.terms))) for name, answer in answers)
    columns = [
        *(answer.peaks for _, answer in answers),
        *(answer.raw for _, answer in answers),
        *(answer.terms[term] for _, answer in answers for term in sorted(answer.terms)),
    ]
    numbers = number_texts(np.concatenate(columns, axis=1))
    samples, drifts = number_texts(peaks.samples), number_texts(peaks.drifts)
    times = np.column_stack([peaks.first_ms, peaks.last_ms, peaks.drift_ms]).ravel().tolist()
    texts = [_time_text(time) for time in times]
    template, size = _entity_template(terms), 2 * len(columns)
    return [
        template.fill(
            numbers[i * size : (i + 1) * size]
            + samples[2 * i : 2 * i + 2]
            + texts[4 * i : 4 * i + 4]
            + drifts[2 * i : 2 * i + 2]
        )
        for i in range(len(peaks.samples))
    ]


def _pods(window: Window, peaks: NodePeaks) -> PodPeaks:
    ages = dict(zip(window.rows.listing.uids, window.rows.ages.tolist(), strict=True))
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


_AMOUNTS: Final = [
    name for name in Reclaimable.__struct_fields__ if name not in ("pair", "left_out")
]
_RECLAIMABLE: Final = {
    pair: Template(Reclaimable(pair=pair, left_out=_BY_RESOURCE, **dict.fromkeys(_AMOUNTS, _USAGE)))
    for pair in (False, True)
}


def _reclaimable(prod: ProdReclaimable) -> bytes:
    values = np.stack([getattr(prod, name) for name in _AMOUNTS]) / TO_KUBERNETES
    return _RECLAIMABLE[prod.pair].fill(number_texts(values) + number_texts(prod.left_out))


# -- values


def _usage(cpu: float, memory: float) -> Usage:
    # JSON has null for NaN.
    return Usage(cpu_cores=cpu, memory_bytes=memory)


def _kubernetes(millicores: float, size: float) -> Usage:
    return _usage(millicores / 1000.0, size)


def _columns(values: FloatArray) -> UsageColumns:
    return UsageColumns(cpu_cores=values[:, 0].tolist(), memory_bytes=values[:, 1].tolist())


@lru_cache(maxsize=1024)
def _time(milliseconds: int) -> str:
    return format_time(milliseconds / 1000)


@lru_cache(maxsize=1024)
def _time_text(milliseconds: int) -> bytes:
    return b"null" if milliseconds == NEVER else b'"%b"' % _time(milliseconds).encode()
