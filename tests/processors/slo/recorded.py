"""Recorded objects (tests/data/slo/PROVENANCE.md), and a strict reader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pipeline.processors.slo.nodemetric import NodeMetric
from pipeline.processors.slo.nodeslo import NodeSLO

FOLDER = Path(__file__).parents[2] / "data/slo"
STRUCTS: dict[str, type[msgspec.Struct]] = {"NodeMetric": NodeMetric, "NodeSLO": NodeSLO}

Json = dict[str, Any]


def load(name: str) -> Json:
    result: Json = yaml.safe_load((FOLDER / name).read_text())
    return result


def names() -> list[str]:
    """The files with an object of ours."""
    return sorted(path.name for path in FOLDER.glob("node*.yaml"))


def read_strictly(document: Json, struct: type[msgspec.Struct] | None = None) -> msgspec.Struct:
    """Read the object as `struct`, by default that of its kind. Raises msgspec.ValidationError for
    a field that is unknown, and for a value of another type."""
    struct = struct or STRUCTS[document["kind"]]
    read = msgspec.json.decode(msgspec.json.encode(document), type=struct)
    if unknown := list(_missing(document, msgspec.json.decode(msgspec.json.encode(read)), "$")):
        raise msgspec.ValidationError(f"{', '.join(unknown)}: no such field")
    return read


def _missing(whole: Any, part: Any, path: str) -> Iterator[str]:
    """What of `whole` is not in `part`."""
    if isinstance(whole, dict) and isinstance(part, dict):
        for name, value in whole.items():
            if name in part:
                yield from _missing(value, part[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        for number, (one, other) in enumerate(zip(whole, part, strict=True)):
            yield from _missing(one, other, f"{path}[{number}]")
    elif whole != part:
        yield path


def full_document(schema: Json) -> Any:
    """A value that says all that a schema has, each number the least of its range."""
    if "enum" in schema:
        return schema["enum"][-1]
    match schema.get("type"):
        case "object" if "additionalProperties" in schema:
            return {"some": full_document(schema["additionalProperties"])}
        case "object":
            return {name: full_document(of) for name, of in schema.get("properties", {}).items()}
        case "array":
            return [full_document(schema["items"])]
        case "integer":
            return schema.get("minimum", 7)
        case "boolean":
            return False
        case "string" if schema.get("format") == "date-time":
            return "2026-01-02T03:04:05Z"
        case "string":
            return ""
    return "5Gi" if "pattern" in schema else 5
