"""Read what Prometheus answers as JSON: series over time of `/api/v1/query_range`, one sample of
each series of `/api/v1/query`, and labels of `/api/v1/series`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray

_HINT: Final = "save what /api/v1/query_range answers: docs/reference/backtest.md"
_MOST_SECONDS: Final = 2.0**35
_AT_ONCE: Final = 1000
_MARKS: Final = b'[],"'
_NO_MARKS: Final = bytes(byte for byte in range(256) if byte not in _MARKS)


class RangeSeries(NamedTuple):
    """A series of an export: its labels, and values (n,) at Unix times (n,), NaN unknown."""

    labels: Mapping[str, str]
    seconds: IntArray
    values: FloatArray


class RangeColumns(NamedTuple):
    """The s series of an export, with m values: the labels of each, how many values it has (s,),
    and all values (m,) at Unix times (m,), series after series, NaN unknown."""

    labels: Sequence[Mapping[str, str]]
    counts: IntArray
    seconds: IntArray
    values: FloatArray


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw


class _Sample(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


_answers: Final = msgspec.json.Decoder(_Answer)
_data: Final = msgspec.json.Decoder(_Data)
_labels: Final = msgspec.json.Decoder(list[dict[str, str]])
_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_series: Final = msgspec.json.Decoder(list[_Series])
_points: Final = msgspec.json.Decoder(list[tuple[float, str]])
_samples: Final = msgspec.json.Decoder(list[_Sample])


def read_range(body: bytes) -> list[RangeSeries]:
    """The series of one answer; those without a value are left out. Raises as `read_columns`."""
    columns = read_columns(body)
    if not len(columns.counts):
        return []
    ends = np.cumsum(columns.counts)[:-1]
    parts = np.split(columns.seconds, ends), np.split(columns.values, ends)
    return [RangeSeries(*each) for each in zip(columns.labels, *parts, strict=True)]


def read_columns(body: bytes, warnings: set[str] | None = None) -> RangeColumns:
    """The series of one answer as columns; those without a value are left out. `warnings` gets
    those of the server.

    Raises InvalidRecordError for an error of Prometheus, for any other kind of answer, for text
    that is no JSON, for a value that is no number, and for a time that is no whole second.
    """
    with _translated_errors():
        parts = _parts.decode(_result(body, "matrix", warnings))
        # Some series at a time: numbers as Python objects take ten times the memory.
        columns = [
            _columns(_series.decode(_joined(parts[first : first + _AT_ONCE])))
            for first in range(0, len(parts), _AT_ONCE)
        ] or [_columns([])]
    return RangeColumns(
        [labels for each in columns for labels in each.labels],
        *(np.concatenate([each[i] for each in columns]) for i in (1, 2, 3)),
    )


def read_vector(
    body: bytes, warnings: set[str] | None = None
) -> list[tuple[Mapping[str, str], float]]:
    """Labels and value of each series in the answer of an instant query. `warnings` gets those of
    the server. Raises as `read_columns`."""
    with _translated_errors():
        samples = _samples.decode(_result(body, "vector", warnings))
        return [(sample.metric, float(sample.value[1])) for sample in samples]


def read_labels(
    body: bytes, names: Sequence[str], warnings: set[str] | None = None
) -> list[dict[str, str]]:
    """The labels `names` of the series in an answer, each combination once; "" is a label that is
    missing. `warnings` gets those of the server. Raises as `read_columns`."""
    with _translated_errors():
        series = _labels.decode(_checked(body, warnings))
    different = dict.fromkeys(tuple([own.get(name, "") for name in names]) for own in series)
    return [dict(zip(names, values, strict=True)) for values in different]


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except InvalidRecordError:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRecordError(f"not an answer of Prometheus: {error!s:.200}", hint=_HINT) from (
            error
        )


def _checked(body: bytes, warnings: set[str] | None) -> msgspec.Raw:
    """The data of an answer that is no error."""
    answer = _answers.decode(body)
    if answer.status != "success":
        raise InvalidRecordError(
            f"Prometheus answered with an error: "
            f"{answer.error_type or answer.status:.40}: {answer.error:.200}",
            hint="repeat the query; shorten its range if it has too many points or samples",
        )
    if warnings is not None:
        warnings.update(answer.warnings)
    return answer.data


def _result(body: bytes, kind: str, warnings: set[str] | None) -> msgspec.Raw:
    data = _data.decode(_checked(body, warnings))
    if data.result_type != kind:
        raise InvalidRecordError(
            f"the answer is a {data.result_type:.40}, not a {kind}", hint=_HINT
        )
    return data.result


def _joined(parts: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(map(bytes, parts)) + b"]"


def _columns(series: Sequence[_Series]) -> RangeColumns:
    texts = [bytes(each.values) for each in series]
    plain = _plain_numbers(texts)
    counts, times, values = plain if plain is not None else _decoded(series)
    own = [each for each, count in zip(series, counts.tolist(), strict=True) if count]
    counts = counts[counts > 0]
    wrong = ~((times >= 0.0) & (times <= _MOST_SECONDS) & (times == np.floor(times)))
    if wrong.any():
        at = int(np.searchsorted(np.cumsum(counts), wrong.argmax(), side="right"))
        raise InvalidRecordError(
            f"{own[at].metric!r:.200}: a time is not a whole second since 1970",
            hint="give whole seconds as start, end and step of the query",
        )
    return RangeColumns([each.metric for each in own], counts, times.astype(np.int64), values)


def _plain_numbers(texts: Sequence[bytes]) -> tuple[IntArray, FloatArray, FloatArray] | None:
    """The number of points of each text, (s,), and all times and values, (m,). None for texts that
    are not as Prometheus writes them: `[[1700000000,"0.5"],[1700000060,"0.25"]]`.

    Numbers never become Python objects: that takes four times as long.
    """
    counts = np.array([text.count(b'"') // 2 for text in texts], np.int64)
    whole = b",".join(text for text in texts if text != b"[]")
    marks = b",".join(b"[" + (b'[,""],' * count)[:-1] + b"]" for count in counts.tolist() if count)
    if whole.translate(None, _NO_MARKS) != marks:
        return None
    commas = np.flatnonzero(np.frombuffer(whole.translate(None, b'[]"'), np.uint8) == ord(","))
    digits = whole.translate(None, _MARKS)
    offsets = np.concatenate([[0], commas - np.arange(len(commas)), [len(digits)]])
    if not len(commas) or offsets[-1] >= 2**31:
        return None
    numbers = pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(digits)
    )
    try:
        parsed = numbers.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return counts, parsed[::2], parsed[1::2]


def _decoded(series: Sequence[_Series]) -> tuple[IntArray, FloatArray, FloatArray]:
    """As `_plain_numbers`, of any JSON. Raises `InvalidRecordError`, which names the series, if a
    value is no number."""
    points = [_points.decode(each.values) for each in series]
    counts = np.array([len(own) for own in points], np.int64)
    times = np.array([time for own in points for time, _ in own], np.float64)
    values = [_numbers(each, own) for each, own in zip(series, points, strict=True)]
    return counts, times, np.concatenate([np.zeros(0), *values])


def _numbers(series: _Series, points: Sequence[tuple[float, str]]) -> FloatArray:
    texts = pa.array([text for _, text in points], pa.string())
    try:
        values: FloatArray = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"{series.metric!r:.200}: {error!s:.200}", hint=_HINT) from error
    return values
