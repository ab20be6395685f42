"""Tables of the fields of custom resources, from the structs that also make their definitions."""

from typing import Any, Final

import msgspec

from pipeline.processors.admission.colocation_profile import DEFINITION as COLOCATION_PROFILE
from pipeline.processors.eviction.migration_job_object import DEFINITION as MIGRATION_JOB
from pipeline.processors.slo.crd_schema import KINDS, Kind, Schema, schema_of
from pipeline.topics.field_texts import field_texts, structs_of, text_of
from tests.docs.record_tables import type_text

RESOURCES: Final = (*KINDS, MIGRATION_JOB, COLOCATION_PROFILE)
_NAMES: Final = {kind.name for kind in RESOURCES}
_OF_EVERY_OBJECT: Final = frozenset({"apiVersion", "kind", "metadata"})


def page_of(kind: Kind) -> str:
    """The page of a custom resource, below docs."""
    return f"reference/{kind.name.lower()}.md"


def resource_fields(kind: Kind) -> str:
    """A section for the object and for each object in it, with a row for each field."""
    return "\n\n".join(map(_section, structs_of((kind.struct,))))


def _section(struct: type) -> str:
    texts = field_texts(struct)
    rows = [
        f"| `{field.encode_name}` | {type_text(field.type).removesuffix(' or null')} "
        f"| {_allowed(field)} | {texts.get(field.encode_name) or _text_of_struct(field.type)} |"
        for field in msgspec.structs.fields(struct)
        if field.encode_name not in _OF_EVERY_OBJECT or struct.__name__ not in _NAMES
    ]
    heading = f"## {struct.__name__}\n\n{text_of(struct)}"
    if not rows:
        return heading
    return "\n".join(
        (heading, "", "| field | type | allowed | meaning |", "|---|---|---|---|", *rows)
    )


def _text_of_struct(kind: Any) -> str:
    """The first sentence about the only struct in a type, empty without one."""
    structs = structs_of((kind,))[:1]
    return "".join(text_of(struct).partition(". ")[0].rstrip(".") + "." for struct in structs)


def _allowed(field: msgspec.structs.FieldInfo) -> str:
    """What the API server checks beside the type."""
    checks = [_range(schema_of(msgspec.inspect.type_info(field.type)))]
    return ", ".join(filter(None, ["required" if field.required else "", *checks]))


def _range(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    if low is not None:
        return f"at least {low:g}"
    return "" if high is None else f"at most {high:g}"
