"""Hypothesis strategies for every record: made from the types of their fields."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.checkpoints import (
    Claim,
    DepartedNode,
    NodeCheckpoint,
    RoundMarker,
    SkippedWindow,
)
from pipeline.topics.codec import Record
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.pool_outcomes import OutcomeQuantiles, PoolOutcomesRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.recommendations import RecommendationRecord
from pipeline.topics.result_header import Result
from pipeline.topics.what_if import WhatIfRecord
from pipeline.topics.workload_histories import HistoryHours, WorkloadHistoryRecord
from pipeline.topics.workloads import WorkloadRecord

JSON_RECORDS: tuple[type[Record], ...] = (
    NodeRecord, NodeResourcesRecord, NodeStateRecord, NodeViewRecord, ActionRecord, WorkloadRecord,
    PodRecord, PoolOutcomesRecord, PredictionRecord, RecommendationRecord,
    WorkloadHistoryRecord, WhatIfRecord,
)  # fmt: skip
PACK_RECORDS: tuple[type[Record], ...] = (
    NodeCheckpoint, RoundMarker, Claim, SkippedWindow, DepartedNode,
)  # fmt: skip

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=64),
    NoneType: st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Any: st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=6,
    ),
}

_TIMES = st.integers(0, 253_402_300_799).map(format_time)
_SCALARS[msgspec.Raw] = _SCALARS[Any].map(msgspec.json.encode).map(msgspec.Raw)


def records(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Any valid record of `kind`, in the version of today."""
    return _built(kind, left_out={"version"})


def _built(kind: type, left_out: frozenset[str] | set[str] = frozenset()) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    values = {name: _values(hint) for name, hint in hints.items() if name not in left_out}
    if issubclass(kind, Result):
        values["as_of"] = _TIMES
    if issubclass(kind, OpenAlert):
        values["since"] = _TIMES
    if issubclass(kind, PoolOutcomesRecord):
        values["at"] = _TIMES
    if issubclass(kind, HistoryHours):
        values["until"] = st.integers(0, 70_389_527).map(lambda hour: format_time(3600 * hour))
    if issubclass(kind, WorkloadHistoryRecord):
        values["cpu"] = _built(HistoryHours)
    if issubclass(kind, OutcomeQuantiles):
        values["quantiles"] = values["quantiles"].map(sorted).map(tuple)
    return st.builds(kind, **values)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(*(_values(argument) for argument in arguments))
    if origin is Annotated:
        return _within(*arguments[:2])  # the first has the range, the second describes it
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=2).map(tuple)
    assert issubclass(hint, msgspec.Struct), hint
    return _built(hint)


def _within(kind: type, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(min_size=meta.min_length or 0, max_size=meta.max_length or 20)
    if kind is bytes:
        return st.binary(min_size=meta.min_length or 0, max_size=meta.max_length or 64)
    if kind is int:
        most: Any = meta.le if meta.lt is None else meta.lt - 1
        return st.integers(meta.ge, most)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        values = _values(get_args(kind)[0])
        least = meta.min_length or 0
        return st.lists(values, min_size=least, max_size=max(least, 2)).map(tuple)
    assert kind is float, kind
    return st.floats(
        meta.ge if meta.gt is None else meta.gt, meta.le if meta.lt is None else meta.lt,
        exclude_min=meta.gt is not None, exclude_max=meta.lt is not None,
        allow_nan=False, allow_infinity=False,
    )  # fmt: skip
