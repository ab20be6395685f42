"""Borg's default: a fixed share of what was asked for, whatever is used of it."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_positive
from pipeline.processors.predictors.pod_sums import by_entity
from pipeline.processors.predictors.stateless import Stateless


class BorgDefault(Stateless):
    """Requests / a, a = 1.1 by default. Raises ValueError for an `a` that is not above 0.

    The system asks for nothing: its peak, and with it what Prod leaves unused, is unknown.
    Formula: node prediction by Koordinator, Peak_Borg-default.
    """

    name = "borg-default"
    prod: Literal["pair", "classes"] = "pair"
    never = ("system",)

    def __init__(self, a: float = 1.1) -> None:
        self._a = check_positive("a", a)

    def peak(self, view: View) -> Peaks:
        """Terms: the sum of `requests` of active pods, how many are `counted` in it, how many are
        `left_out` because theirs is not known, and `a`. Unknown if all are."""
        active = view.active[:, None]
        known = active & ~np.isnan(view.requests)
        requests = by_entity(view, np.where(known, view.requests, 0.0))
        counted = by_entity(view, known.astype(np.float64))
        left_out = by_entity(view, (active & ~known).astype(np.float64))
        usable = np.where((counted == 0.0) & (left_out > 0.0), np.nan, requests)
        terms = {
            "requests": requests,
            "counted": counted,
            "left_out": left_out,
            "a": np.full(requests.shape, self._a),
        }
        own = view.requests / self._a
        return Peaks(usable / self._a, own, terms, bare=np.full_like(usable, np.nan))
