"""Make the CustomResourceDefinitions in `deploy/chart/crds` from the structs of their fields.

So the API server refuses objects that the structs cannot decode. The columns that kubectl prints
are declared here.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from pipeline.processors.slo.crd_fields import API_VERSION, GROUP
from pipeline.processors.slo.nodemetric import NodeMetric
from pipeline.processors.slo.nodeslo import NodeSLO
from pipeline.topics.field_texts import field_texts, text_of

Schema = dict[str, Any]

_USAGE: Final = ".status.nodeMetric.nodeUsage.resources"
_AGE: Final = ("Age", "date", ".metadata.creationTimestamp")
_OWN: Final = frozenset({"apiVersion", "kind", "metadata"})


class Kind(NamedTuple):
    """A custom resource: its struct, and the columns of kubectl by header, type and path. Those in
    `wide` are shown with `-o wide` alone."""

    struct: type[msgspec.Struct]
    columns: tuple[tuple[str, str, str], ...]
    wide: tuple[tuple[str, str, str], ...] = ()
    group: str = GROUP
    short_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.struct.__name__

    @property
    def plural(self) -> str:
        return f"{self.name.lower()}s"


KINDS: Final = (
    Kind(
        NodeMetric,
        (
            ("CPU", "string", f"{_USAGE}.cpu"),
            ("Interval", "integer", ".spec.metricCollectPolicy.reportIntervalSeconds"),
            ("Updated", "date", ".status.updateTime"),
            _AGE,
        ),
        # In bytes, as koordlet writes it: a column cannot convert it.
        wide=(("Memory", "string", f"{_USAGE}.memory"),),
    ),
    Kind(
        NodeSLO,
        (
            ("Threshold", "boolean", ".spec.resourceUsedThresholdWithBE.enable"),
            ("Suppress", "string", ".spec.resourceUsedThresholdWithBE.cpuSuppressPolicy"),
            ("Burst", "string", ".spec.cpuBurstStrategy.policy"),
            _AGE,
        ),
    ),
)


def definition(kind: Kind) -> Schema:
    version = {
        "name": API_VERSION.rpartition("/")[2],
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            *({"name": name, "type": type, "jsonPath": path} for name, type, path in kind.columns),
            *(
                {"name": name, "type": type, "jsonPath": path, "priority": 1}
                for name, type, path in kind.wide
            ),
        ],
        "schema": {"openAPIV3Schema": _resource(kind.struct)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                **({"shortNames": [*kind.short_names]} if kind.short_names else {}),
            },
            "versions": [version],
        },
    }


def _resource(struct: type[msgspec.Struct]) -> Schema:
    """The schema of a whole object; the API server knows type and metadata itself."""
    schema = schema_of(inspect.type_info(struct))
    own = {name: field for name, field in schema["properties"].items() if name not in _OWN}
    plain = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema["properties"] = {**plain, "metadata": {"type": "object"}, **own}
    del schema["required"]
    return schema


def schema_of(kind: inspect.Type) -> Schema:
    """The structural schema of a type. Raises TypeError for a type without one."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return schema_of(inner) | dict(extra or {})
        case inspect.UnionType(types=types):
            return _of_any(types)
        case inspect.StructType(cls=struct, fields=fields):
            return _object(struct, fields)
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": schema_of(value)}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": schema_of(item)}
        case inspect.LiteralType(values=words):
            return {"type": "string", "enum": list(words)}
        case inspect.IntType():
            return {"type": "integer", "format": "int64"}
        case inspect.StrType():
            return {"type": "string"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case _:
            raise TypeError(f"{kind} has no schema")


def _of_any(types: Iterable[inspect.Type]) -> Schema:
    """The schema of an optional type, or of an integer or text."""
    kinds = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
    if len(kinds) == 1:
        return schema_of(kinds[0])
    if {type(kind) for kind in kinds} != {inspect.IntType, inspect.StrType}:
        raise TypeError(f"{kinds} has no schema")
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _object(struct: type, fields: Iterable[inspect.Field]) -> Schema:
    """The schema of a struct, with the descriptions in its docstring."""
    described = field_texts(struct)
    properties: dict[str, Schema] = {}
    schema: Schema = {"type": "object"}
    for field in fields:
        name = field.encode_name
        text = {"description": described[name]} if name in described else {}
        properties[name] = schema_of(field.type) | text
    if properties:
        schema["properties"] = properties
    if required := [field.encode_name for field in fields if field.required]:
        schema["required"] = required
    return schema | {"description": text_of(struct)}
