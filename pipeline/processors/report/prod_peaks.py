"""Peaks of Prod of each node within the next day, at declared risks.

The calibrated predictor runs over the hours of the report, as in a backtest: it learns the usage of
each hour, predicts once a day, and takes in what happened. All nodes are one pool. A sample is the
highest usage of a pod in an hour, so the sum over the pods of a node, and with it a peak, is rather
too high than too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.calibrated_runs import entity_id
from pipeline.processors.backtest.trace import MEBIBYTE
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, COUNTED_AS_PROD
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.report.cluster_usage import HOUR_SECONDS, ClusterUsage

RISKS: Final = (0.01, 0.02, 0.05)
HORIZON_HOURS: Final = 24
_EVERY_HOURS: Final = 24
_GROWTH: Final = 4.0
"""A pod without a limit may grow to this multiple of its request, as in a worker."""
_UNITS: Final = (1.0, MEBIBYTE)
_LEAST: Final = 1e-9


def is_prod(usage: ClusterUsage) -> BoolArray:
    """Whether each pod counts as Prod, (n,)."""
    return np.isin(usage.classes, [CLASS_CODES[name] for name in COUNTED_AS_PROD])


def prod_peaks(usage: ClusterUsage, risks: Sequence[float] = RISKS) -> FloatArray:
    """The peaks of the Prod pods that run now, (risks, k, 2): 0 for a node without such a pod, NaN
    if the usage of none is known. The requests of running pods without usage are no part of it.

    Where the prediction gives nothing of the requests away, the peak is no lower than the highest
    sum of an hour.
    """
    pods = np.flatnonzero(is_prod(usage))
    ids = np.array([entity_id(usage.pods[pod]) for pod in pods.tolist()], np.int64)
    nodes = np.array([entity_id(name) for name in usage.nodes], np.int64)
    workloads = np.array([_workload_id(usage.workloads[pod]) for pod in pods.tolist()], np.int64)
    peaks = np.full((len(risks), len(usage.nodes), 2), np.nan)
    has_prod = np.zeros(len(usage.nodes), np.bool_)
    has_prod[usage.node_index[pods[usage.runs[pods]]]] = True

    def of_resource(r: int) -> FloatArray:
        known = np.flatnonzero(usage.has_usage[pods, r])
        if not len(known):
            return peaks[:, :, r]
        own = pods[known]
        # A pod that was on two nodes is two pods, with one name.
        own_ids = ids[known] ^ nodes[usage.node_index[own]]
        # The pool wants ascending ids.
        order = np.argsort(own_ids, kind="stable")
        known, own, own_ids = known[order], own[order], own_ids[order]
        return _peaks(usage, r, own, own_ids, nodes, workloads[known], risks)

    # Most of the work is numpy's, which leaves other threads the interpreter.
    with ThreadPoolExecutor(len(RESOURCES)) as threads:
        peaks = np.stack([*threads.map(of_resource, range(len(RESOURCES)))], axis=2)
    peaks[:, ~has_prod] = 0.0
    return peaks


def _workload_id(name: str) -> int:
    return entity_id(name) if name else -1


def _peaks(
    usage: ClusterUsage,
    r: int,
    pods: IntArray,
    ids: IntArray,
    nodes: IntArray,
    workloads: IntArray,
    risks: Sequence[float],
) -> FloatArray:
    """The peaks of one resource, (risks, k), by these `pods`, each with known usage."""
    unit = _UNITS[r]
    samples = np.ascontiguousarray(usage.highest[pods, :, r].T) / unit  # (h, pods)
    highest = np.fmax.reduce(samples, axis=0)
    requests = usage.requests[pods, r] / unit
    # A pod without a request counts as its highest usage.
    requests = np.where(requests > 0.0, requests, highest)
    limits = usage.limits[pods, r] / unit
    limits = np.maximum(np.where(limits > 0.0, limits, _GROWTH * requests), highest)
    first, end = (span[pods] for span in usage.spans)
    node_index = usage.node_index[pods]
    pool = CalibratedPool(Horizon(HORIZON_HOURS, HOUR_SECONDS), risks, most_departed=len(pods))
    for hour in range(usage.hours):
        (own,) = ((first <= hour) & (hour < end)).nonzero()
        pool.observe(
            hour,
            PodUsage(
                ids[own], nodes[node_index[own]], samples[hour, own], requests[own], limits[own],
                workloads[own],
            ),
        )  # fmt: skip
        if (hour + 1) % _EVERY_HOURS == 0 or hour + 1 == usage.hours:
            predicted = pool.predict()
    order = np.argsort(nodes)
    at = order[np.searchsorted(nodes[order], predicted.nodes)]
    peaks = np.full((len(risks), len(nodes)), np.nan)
    past = _highest_sums(samples, node_index, usage.runs[pods], len(nodes))[at]
    gives_nothing = (1.0 - _LEAST) * predicted.requests <= predicted.peaks.T
    peaks[:, at] = np.where(gives_nothing, np.fmax(predicted.peaks.T, past), predicted.peaks.T)
    return peaks * unit


def _highest_sums(samples: FloatArray, node_index: IntArray, runs: BoolArray, k: int) -> FloatArray:
    """The highest sum of an hour over the running pods of each node, (k,)."""
    (own,) = runs.nonzero()
    sums = [np.bincount(node_index[own], np.nan_to_num(hour[own]), minlength=k) for hour in samples]
    highest: FloatArray = np.max(sums, axis=0)
    return highest
