"""As much of JSON Schema as our OpenAPI document uses; any other keyword is an error."""

from collections.abc import Iterator, Mapping
from typing import Any

_IGNORED = {"title", "description", "format", "default", "example"}
_TYPES: Mapping[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
}  # fmt: skip


def is_of(value: Any, kind: str) -> bool:
    """Whether a value of JSON has this type."""
    if kind in ("integer", "number"):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or float(value).is_integer())
    return isinstance(value, _TYPES[kind])


def wrong(value: Any, schema: Any, document: Any, path: str = "$") -> Iterator[str]:
    """What of `value` is not as `schema` of `document` has it."""
    for keyword, schema_part in schema.items():
        if keyword in _IGNORED:
            continue
        yield from _check(keyword, schema_part, value, schema, document, path)


def _check(
    keyword: str, schema_part: Any, value: Any, schema: Any, document: Any, path: str
) -> Iterator[str]:
    members = value if isinstance(value, dict) else {}
    match keyword:
        case "$ref":
            resolved = document
            for part in schema_part.removeprefix("#/").split("/"):
                resolved = resolved[part]
            yield from wrong(value, resolved, document, path)
        case "type":
            kinds = [schema_part] if isinstance(schema_part, str) else schema_part
            if not any(is_of(value, kind) for kind in kinds):
                yield f"{path} is {value!r:.60}, not {schema_part}"
        case "enum" | "const":
            if value not in (schema_part if keyword == "enum" else [schema_part]):
                yield f"{path} is {value!r:.60}, not {schema_part}"
        case "required":
            yield from (f"{path} has no {name}" for name in schema_part if name not in members)
        case "properties":
            for name in schema_part.keys() & members.keys():
                yield from wrong(members[name], schema_part[name], document, f"{path}.{name}")
        case "additionalProperties":
            for name in members.keys() - schema.get("properties", {}).keys():
                yield from wrong(members[name], schema_part, document, f"{path}.{name}")
        case "items":
            for place, item in enumerate(value if isinstance(value, list) else []):
                yield from wrong(item, schema_part, document, f"{path}[{place}]")
        case "allOf":
            for choice in schema_part:
                yield from wrong(value, choice, document, path)
        case "anyOf":
            tried = [[*wrong(value, choice, document, path)] for choice in schema_part]
            if all(tried):
                yield from tried[0]
        case "minimum" | "maximum":
            if is_of(value, "number") and (
                value < schema_part if keyword == "minimum" else value > schema_part
            ):
                yield f"{path} is {value}, {keyword} {schema_part}"
        case _:
            yield f"{path}: the keyword {keyword} is not understood"
