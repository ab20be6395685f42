"""Tables of the fields of records, from their types."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.field_texts import field_texts, structs_of
from pipeline.topics.hourly_usage import HourlyUsageRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pool_means import PoolMeansRecord
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.recommendations import RecommendationRecord
from pipeline.topics.what_if import WhatIfRecord
from pipeline.topics.workload_histories import WorkloadHistoryRecord

RECORDS: Final = (
    NodeStateRecord, PredictionRecord, NodeResourcesRecord, RecommendationRecord, AlertRecord,
    AccuracyRecord, PoolMeansRecord, PoolOutcomesRecord, HourlyUsageRecord, WorkloadHistoryRecord,
    EvictionRequestRecord, WhatIfRecord,
)  # fmt: skip
_NAMES: Final[Mapping[Any, str]] = {
    str: "text", bytes: "text", int: "whole number", float: "number", bool: "true or false",
    type(None): "null", Any: "any",
}  # fmt: skip


def record_fields() -> str:
    """A section for each record and each object in them, with a row for each field."""
    return "\n\n".join(map(_section, structs_of(RECORDS)))


def _section(struct: type) -> str:
    texts = field_texts(struct)
    fields = msgspec.structs.fields(struct)
    if missing := [field.name for field in fields if field.encode_name not in texts]:
        raise ValueError(f"{struct.__name__} does not describe {', '.join(missing)}")
    rows = [
        f"| `{field.encode_name}` | {type_text(field.type)} | {texts[field.encode_name]} |"
        for field in fields
    ]
    table = "\n".join(("| field | type | content |", "|---|---|---|", *rows))
    return f"## {struct.__name__}\n\n{table}"


def type_text(kind: Any) -> str:
    """A type in words; objects link to their section."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    parts: Sequence[Any] = get_args(kind)
    if hasattr(kind, "__metadata__"):
        return type_text(parts[0])
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(type_text, parts))
    if get_origin(kind) is Literal:
        return "text"
    if get_origin(kind) is dict:
        return f"map of {type_text(parts[1])}"
    if get_origin(kind) in (list, tuple):
        return f"list of {type_text(parts[0])}"
    return _NAMES[kind]
