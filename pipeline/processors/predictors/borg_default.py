"""Borg's default: a fixed share of the requests, regardless of usage."""

from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import positive
from pipeline.processors.predictors.pod_sums import by_entity
from pipeline.processors.predictors.stateless import Stateless


class BorgDefault(Stateless):
    """Peak_Borg-default of Koordinator's node prediction.

    The system has no requests: its peak is unknown, and so is what Prod leaves unused.
    """

    name = "borg-default"
    prod: Literal["pair", "classes"] = "pair"
    no_peak_for = ("system",)
    declaration: Final = Declaration(
        summary="sum of the requests of active pods / a",
        options=(positive("a", 1.1, "divisor of the requests"),),
        terms=(
            Term("requests", adds="requests", note="of active pods"),
            Term("counted", ""),
            Term("left_out", "", note="active pods without a known request"),
            Term("a", ""),
        ),
        formulas=(Formula("requests / a"),),
        unknown="it asks for nothing",
        needs_samples=False,
    )

    def __init__(self, **options: Any) -> None:
        self._a: float = self.declaration.checked(options)["a"]

    def peak(self, view: View) -> Peaks:
        """Return requests / a; unknown for an entity whose active pods all lack a request."""
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
        pods = view.requests / self._a
        return Peaks(usable / self._a, pods, terms, without_requests=np.full_like(usable, np.nan))


PREDICTOR: Final = BorgDefault
