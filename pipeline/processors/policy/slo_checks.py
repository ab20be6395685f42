"""Check the strategies of a NodeSLO: ranges, orders, amounts, names.

`problems_of` names every value that the API server would refuse or the node's agent would ignore.
`oddities_of` warns of accepted but unusual values. Decoding checks types and words.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.crd_schema import Schema, schema_of
from pipeline.processors.slo.nodeslo import (
    HostApplication,
    QosStrategy,
    ResctrlQos,
    ThresholdStrategy,
)
from pipeline.topics.resource_amounts import parse_quantity

HOST_CLASSES: Final[Mapping[str, str]] = {
    f"koord-{name}": name for name in ("prod", "mid", "batch", "free")
}
"""The class of each priority of host applications."""
_QOS: Final = ("LSE", "LSR", "LS", "BE", "SYSTEM")
_LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}
# The first of each pair must be less than the second.
_IN_ORDER: Final = {
    ThresholdStrategy: (
        ("memory_evict_lower_percent", "memory_evict_threshold_percent"),
        ("cpu_evict_lower_percent", "cpu_evict_threshold_percent"),
        ("cpu_evict_be_satisfaction_lower_percent", "cpu_evict_be_satisfaction_upper_percent"),
        ("memory_allocatable_evict_lower_percent", "memory_allocatable_evict_threshold_percent"),
        ("cpu_allocatable_evict_lower_percent", "cpu_allocatable_evict_threshold_percent"),
    ),
    ResctrlQos: (("cat_range_start_percent", "cat_range_end_percent"),),
}


class HostApplications(Document, frozen=True, kw_only=True):
    """The host applications of the cluster or of an entry."""

    applications: tuple[HostApplication, ...] | None = None


def problems_of(of: Document) -> Iterator[tuple[str, str]]:
    """Every value that is out of range, not an amount, or not less than its upper limit. The field
    is empty, because annotations of nodes do not set these."""
    for text in _problems(of):
        yield "", text


def _problems(of: Document) -> Iterator[str]:
    yield from _outside(msgspec.to_builtins(of), _schema(type(of)), "")
    yield from _out_of_order(of)
    if isinstance(of, QosStrategy):
        for name in of.__struct_fields__:
            found = getattr(getattr(of, name), "resctrl_qos", None)
            if found is not None:
                yield from _out_of_order(found, f"{_name(type(of), name)}.resctrlQOS.")
    if isinstance(of, HostApplications):
        yield from _unnamed(of)


def oddities_of(of: Document) -> Iterator[str]:
    """Warn of unknown priorities and QoS classes of host applications."""
    for one in (of.applications or ()) if isinstance(of, HostApplications) else ():
        for field, value, known in (
            ("priority", one.priority, tuple(HOST_CLASSES)),
            ("qos", one.qos, _QOS),
        ):
            if value and value not in known:
                where = f"{field} of application {one.name!r:.60}"
                yield f"{where} is {value!r:.60}, allowed are {', '.join(known)}"


def _outside(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        for name, one in value.items():
            way = f"{path}.{name}" if path else name
            yield from _outside(one, properties.get(name, {}), way)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _outside(one, schema["items"], f"{path}[{number}]")
    elif schema.get("x-kubernetes-int-or-string"):
        yield from _no_amount(value, path, is_percent="pattern" not in schema)
    elif schema.get("type") == "integer":
        most = _LARGEST[schema["format"]]
        yield from _out_of_range(
            value, path, schema.get("minimum", -most - 1), schema.get("maximum", most), most
        )


def _no_amount(value: int | str, path: str, is_percent: bool) -> Iterator[str]:
    if is_percent and isinstance(value, int):
        yield from _out_of_range(value, path, 0, 100, _LARGEST["int64"])
        return
    try:
        amount = parse_quantity(value)
    except InvalidRecordError as error:
        yield f"{path}: {error.message}"
        return
    if amount < 0:
        yield f"{path} is {value}, allowed is 0 or more"


def _out_of_range(value: int, path: str, least: int, most: int, largest: int) -> Iterator[str]:
    if not least <= value <= most:
        allowed = f"{least} or more" if most == largest and value < least else f"{least} to {most}"
        yield f"{path} is {value}, allowed is {allowed}"


def _out_of_order(of: Document, path: str = "") -> Iterator[str]:
    for lower, upper in _IN_ORDER.get(type(of), ()):
        less, more = getattr(of, lower), getattr(of, upper)
        if less is not None and more is not None and not less < more:
            name, other = (_name(type(of), field) for field in (lower, upper))
            yield f"{path}{name} is {less}, allowed is less than {other}, which is {more}"


def _unnamed(of: HostApplications) -> Iterator[str]:
    names = sorted(one.name or "" for one in of.applications or ())
    for name, alike in groupby(names):
        if not name:
            yield "an application has no name"
        elif len(list(alike)) > 1:
            yield f"application {name!r:.60} is listed twice"


@lru_cache
def _schema(struct: type[Document]) -> Schema:
    return schema_of(msgspec.inspect.type_info(struct))


def _name(struct: type[Document], field: str) -> str:
    place = struct.__struct_fields__.index(field)
    return struct.__struct_encode_fields__[place]
