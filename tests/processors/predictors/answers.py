"""Answers of predictors to windows, and a slow reference for sums over pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.registry import build
from tests.processors.windows import config_with

LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)


def learned(
    windows: Sequence[NodeWindow],
    *names: str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **config: Any,
) -> Bank:
    """A bank with these predictors that has seen the windows; the first decides, even if it could
    not by the settings."""
    options = options or {}
    made = build(names, options)
    stated = config_with(predictors=names, predictor=names[0], options=options, **config)
    bank = Bank(stated, made)
    bank.apply(windows)
    return bank


def answer(
    windows: Sequence[NodeWindow],
    *names: str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **config: Any,
) -> NodePeaks:
    """The answers of these predictors for the node of the windows."""
    bank = learned(windows, *names, options=options, **config)
    (result,) = bank.peaks(bank.nodes)
    return result


@dataclass(frozen=True)
class Sums:
    """Of one entity and resource."""

    pods: float
    requests: float
    counted: int
    left_out: int

    @property
    def total(self) -> float:
        return float("nan") if self.left_out and not self.counted else self.pods + self.requests


def sums_of(result: NodePeaks, name: str, entity: int, resource: int) -> Sums:
    """From what is published of each pod, one after the other."""
    units = (1000.0, 1.0)[resource]
    pods, requests, counted, left_out = 0.0, 0.0, 0, 0
    for i in range(len(result.pod_uids)):
        pod_class = CLASSES[result.pod_classes[i]]
        if ENTITIES[entity] not in ("node", pod_class) or result.pod_ended[i]:
            continue
        peak = result.predictors[name].pod_raw[i, resource]
        request = result.pod_requests[i, resource] / units
        asks = result.pod_active[i] and not np.isnan(request)
        if asks and (result.pod_cold[i] or np.isnan(peak)):
            requests += request
        elif not np.isnan(peak):
            pods += peak
        else:
            left_out += 1
            continue
        counted += 1
    return Sums(pods, requests, counted, left_out)


def same(one: float, other: float) -> bool:
    """To the last bit, unknown being equal to unknown."""
    return bool(one == other or (np.isnan(one) and np.isnan(other)))
