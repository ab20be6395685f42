"""Read range exports: the JSON that `/api/v1/query_range` of Prometheus answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray

_HINT: Final = "save what /api/v1/query_range answers: docs/reference/backtest.md"
_MOST_SECONDS: Final = 2.0**35


class RangeSeries(NamedTuple):
    """A series of an export: its labels, and values (n,) at Unix times (n,), NaN unknown."""

    labels: Mapping[str, str]
    seconds: IntArray
    values: FloatArray


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


_answers: Final = msgspec.json.Decoder(_Answer)
_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_series: Final = msgspec.json.Decoder(_Series)


def read_range(body: bytes) -> list[RangeSeries]:
    """The series of one answer; those without a value are left out.

    Raises InvalidRecordError for an error of Prometheus, for any other kind of answer, for text
    that is no JSON, for a value that is no number, and for a time that is no whole second.
    """
    try:
        answer = _answers.decode(body)
        if answer.status != "success" or answer.data is None:
            raise InvalidRecordError(
                f"Prometheus answered with an error: "
                f"{answer.error_type or answer.status:.40}: {answer.error:.200}",
                hint="repeat the query; shorten its range if it has too many points or samples",
            )
        if answer.data.result_type != "matrix":
            raise InvalidRecordError(
                f"the answer is a {answer.data.result_type:.40}, not a matrix", hint=_HINT
            )
        # One series at a time: numbers as Python objects take ten times the memory.
        decoded = (_series.decode(part) for part in _parts.decode(answer.data.result))
        return [_numbers(series) for series in decoded if series.values]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecordError(f"not an answer of Prometheus: {error!s:.200}", hint=_HINT) from (
            error
        )


def _numbers(series: _Series) -> RangeSeries:
    times = np.array([time for time, _ in series.values])
    if not ((times >= 0.0) & (times <= _MOST_SECONDS) & (times == np.floor(times))).all():
        raise InvalidRecordError(
            f"{series.metric!r:.200}: a time is not a whole second since 1970",
            hint="give whole seconds as start, end and step of the query",
        )
    texts = pa.array([text for _, text in series.values], pa.string())
    try:
        values = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"{series.metric!r:.200}: {error!s:.200}", hint=_HINT) from error
    return RangeSeries(series.metric, times.astype(np.int64), values)
