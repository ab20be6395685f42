"""The peaks that were predicted for a node over the last day, beside what it used."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from aiohttp import web

from pipeline import API_VERSION
from pipeline.clock import Clock
from pipeline.extender.http_responses import error_response
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import NODE, Response, Route
from pipeline.extender.series_api import RANGE, RESOURCES, columns_of, range_of
from pipeline.extender.tagged_documents import TAG, document_response
from pipeline.processors.arrays import FloatArray
from pipeline.processors.console.encoded_document import encode_document
from pipeline.processors.console.peak_history import STEP_SECONDS, PeakHistory, PeakSteps
from pipeline.table import FeedState
from pipeline.times import format_time

_DECIMALS: Final = {"cpu_cores": 4, "memory_bytes": 0}


class NodePeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a node in a range; null is unknown, in a step without windows in every list.

    node: Name of the node.
    step_seconds: Length of a step.
    held_from: Begin of the oldest step in memory, in the range or not.
    begin: Begin of each step, the oldest first.
    usage: By column, the highest average usage of a window that ended in each step.
    peaks: By predictor and column, the peak as it was first predicted in each step.
    """

    apiVersion: str = API_VERSION
    kind: str = "NodePeaks"
    node: str
    step_seconds: int
    held_from: str | None
    begin: list[str]
    usage: dict[str, list[float | None]]
    peaks: dict[str, dict[str, list[float | None]]]


class NodePeaksHandler:
    """The route over the steps that the feed of recent usage fills."""

    def __init__(self, history: PeakHistory, state: FeedState, clock: Clock) -> None:
        self._history = history
        self._state = state
        self._clock = clock

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        return [
            Route(
                "GET", "/v1/nodes/{node}/peaks", self.peaks,
                "The peaks that each predictor predicted over a range, and usage.",
                NodePeaks, parameters=(NODE, *RANGE, TAG), errors=(400, 404, 503),
                others={304: Response("nothing has changed", headers=("ETag",))},
            )
        ]  # fmt: skip

    async def peaks(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        first, last = range_of(request, self._clock.now())
        columns = columns_of(request)
        require_caught_up(self._state)
        steps = self._history.get(node)
        if steps is None:
            message = f"node {node[:253]!r} has no prediction in memory"
            return error_response(404, message, "GET /v1/nodes lists the known nodes")
        # A day of many predictors takes several milliseconds; a scheduler must not wait for them.
        encoded = await asyncio.to_thread(
            lambda: encode_document(node_peaks(node, steps, first, last, columns))
        )
        return document_response(request, encoded)


def node_peaks(
    node: str, steps: PeakSteps, first: float, last: float, columns: Sequence[str]
) -> NodePeaks:
    """The document of the steps with any part in this range."""
    inside = steps.between(first, last)
    begins = steps.begin_seconds.tolist()
    return NodePeaks(
        node=node,
        step_seconds=STEP_SECONDS,
        held_from=format_time(begins[0]) if begins else None,
        begin=[format_time(begin) for begin in inside.begin_seconds.tolist()],
        usage=_by_column(inside.usage, columns),
        peaks={name: _by_column(peak, columns) for name, peak in inside.peaks.items()},
    )


def _by_column(amounts: FloatArray, columns: Sequence[str]) -> dict[str, list[float | None]]:
    """Lists of each column, rounded to what 32 bits have; NaN becomes null."""
    every = dict(zip(RESOURCES.values(), amounts, strict=True))
    return {column: np.round(every[column], _DECIMALS[column]).tolist() for column in columns}
