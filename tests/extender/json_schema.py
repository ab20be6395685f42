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


def wrong(value: Any, schema: Any, document: Any, at: str = "$") -> Iterator[str]:
    """What of `value` is not as `schema` of `document` has it."""
    for keyword, said in schema.items():
        if keyword in _IGNORED:
            continue
        yield from _check(keyword, said, value, schema, document, at)


def _check(
    keyword: str, said: Any, value: Any, schema: Any, document: Any, at: str
) -> Iterator[str]:
    members = value if isinstance(value, dict) else {}
    match keyword:
        case "$ref":
            found = document
            for part in said.removeprefix("#/").split("/"):
                found = found[part]
            yield from wrong(value, found, document, at)
        case "type":
            kinds = [said] if isinstance(said, str) else said
            if not any(is_of(value, kind) for kind in kinds):
                yield f"{at} is {value!r:.60}, not {said}"
        case "enum" | "const":
            if value not in (said if keyword == "enum" else [said]):
                yield f"{at} is {value!r:.60}, not {said}"
        case "required":
            yield from (f"{at} has no {name}" for name in said if name not in members)
        case "properties":
            for name in said.keys() & members.keys():
                yield from wrong(members[name], said[name], document, f"{at}.{name}")
        case "additionalProperties":
            for name in members.keys() - schema.get("properties", {}).keys():
                yield from wrong(members[name], said, document, f"{at}.{name}")
        case "items":
            for place, item in enumerate(value if isinstance(value, list) else []):
                yield from wrong(item, said, document, f"{at}[{place}]")
        case "allOf":
            for one in said:
                yield from wrong(value, one, document, at)
        case "anyOf":
            tried = [[*wrong(value, one, document, at)] for one in said]
            if all(tried):
                yield from tried[0]
        case "minimum" | "maximum":
            if is_of(value, "number") and (value < said if keyword == "minimum" else value > said):
                yield f"{at} is {value}, {keyword} {said}"
        case _:
            yield f"{at}: the keyword {keyword} is not understood"
