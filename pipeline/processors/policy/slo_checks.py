"""Check the strategies of a NodeSLO: ranges, orders, amounts, names.

`problems_of` names every value that the API server would refuse or the node's agent would ignore,
so that the author of the ConfigMap learns of it at once and not on each node. `warnings_for` warns
of accepted but unusual values. Decoding checks types and words.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.pod_classes import CLASS_OF_LABEL
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.crd_schema import Schema, schema_of
from pipeline.processors.slo.nodeslo import (
    HostApplication,
    QosStrategy,
    ResctrlQos,
    ThresholdStrategy,
)
from pipeline.topics.resource_amounts import parse_quantity

_QOS: Final = ("LSE", "LSR", "LS", "BE", "SYSTEM")
_LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}
# The first of each pair must be less than the second.
_ORDERED_FIELDS: Final = {
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


def problems_of(config: Document) -> Iterator[tuple[str, str]]:
    """Every value that is out of range, not an amount, or not less than its upper limit. The field
    is empty, because annotations of nodes do not set these."""
    for text in _problems(config):
        yield "", text


def _problems(config: Document) -> Iterator[str]:
    yield from _outside(msgspec.to_builtins(config), _schema(type(config)), "")
    yield from _out_of_order(config)
    if isinstance(config, QosStrategy):
        for name in config.__struct_fields__:
            resctrl = getattr(getattr(config, name), "resctrl_qos", None)
            if resctrl is not None:
                yield from _out_of_order(resctrl, f"{_name(type(config), name)}.resctrlQOS.")
    if isinstance(config, HostApplications):
        yield from _unnamed(config)


def warnings_for(config: Document) -> Iterator[str]:
    """Warn of unknown priorities and QoS classes of host applications, and of limits of disks in
    classes that have none."""
    if isinstance(config, QosStrategy):
        for name in ("lsr_class", "ls_class", "system_class"):
            blkio = (rules := getattr(config, name)) and rules.blkio_qos
            if blkio and blkio.enable and blkio.blocks:
                where = f"{_name(QosStrategy, name)}.blkioQOS"
                yield f"{where} has no effect, only beClass and cgroupRoot have disks"
    for app in (config.applications or ()) if isinstance(config, HostApplications) else ():
        for field, value, known in (
            ("priority", app.priority, tuple(CLASS_OF_LABEL)),
            ("qos", app.qos, _QOS),
        ):
            if value and value not in known:
                where = f"{field} of application {app.name!r:.60}"
                yield f"{where} is {value!r:.60}, allowed are {', '.join(known)}"


def _outside(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        for name, item in value.items():
            inner = f"{path}.{name}" if path else name
            yield from _outside(item, properties.get(name, {}), inner)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _outside(item, schema["items"], f"{path}[{number}]")
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


def _out_of_order(struct: Document, path: str = "") -> Iterator[str]:
    for lower, upper in _ORDERED_FIELDS.get(type(struct), ()):
        low, high = getattr(struct, lower), getattr(struct, upper)
        if low is not None and high is not None and not low < high:
            name, other = (_name(type(struct), field) for field in (lower, upper))
            yield f"{path}{name} is {low}, allowed is less than {other}, which is {high}"


def _unnamed(hosts: HostApplications) -> Iterator[str]:
    names = sorted(app.name or "" for app in hosts.applications or ())
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
