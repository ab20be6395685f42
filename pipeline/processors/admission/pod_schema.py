"""The API server's own schema of pods: strategic merge patches, and whether a result is a pod.

The schema is the OpenAPI v3 document of `/openapi/v3/api/v1`. It says by which key the entries of a
list are merged (`x-kubernetes-patch-merge-key`), so that patches have the effect that they have in
`kubectl patch`, also for fields that a later Kubernetes adds. The API server decodes the pod that a
webhook returns, and refuses the request where it cannot, whatever the failure policy: therefore the
result of a patch is compared with the schema first.
"""

from collections.abc import Mapping
from typing import Any, Final

from pipeline.errors import InvalidPolicyError

Schema = Mapping[str, Any]

POD: Final = "io.k8s.api.core.v1.Pod"
_REFERENCE: Final = "#/components/schemas/"
_DIRECTIVE: Final = "$patch"
_RETAIN_KEYS: Final = "$retainKeys"
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


class PodSchema:
    """The schema of a pod within an OpenAPI v3 document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Raises `InvalidPolicyError` for a document without the schema."""
        components = document.get("components")
        schemas = components.get("schemas") if isinstance(components, Mapping) else None
        if not isinstance(schemas, Mapping) or POD not in schemas:
            raise InvalidPolicyError(f"the document has no schema {POD}")
        self._schemas = _reachable(schemas)

    def merged(self, pod: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a strategic merge patch. Raises `InvalidPolicyError` if the patch has an unknown
        directive or does not fit the pod, or if the result is no pod."""
        schema = self._resolve({"$ref": _REFERENCE + POD})
        try:
            result = self._merge(pod, patch, schema, "")
            self._check(result, schema, "")
        except RecursionError:
            raise InvalidPolicyError("it is nested too deeply") from None
        return result

    def _resolve(self, schema: Schema) -> Schema:
        """The schema behind references, which stand alone or in an `allOf` of one."""
        while True:
            whole = schema.get("allOf")
            reference = whole[0] if isinstance(whole, list) and len(whole) == 1 else schema
            name = str(reference.get("$ref", "")).removeprefix(_REFERENCE)
            if not name:
                return reference
            schema = self._schemas.get(name, {})

    def _merge(
        self, old: Mapping[str, Any], patch: Mapping[str, Any], schema: Schema, where: str
    ) -> dict[str, Any]:
        directive = patch.get(_DIRECTIVE)
        if directive not in (None, "merge", "replace"):
            raise InvalidPolicyError(f"{where or 'it'} has the directive $patch: {directive!r:.40}")
        result = {} if directive == "replace" else dict(old)
        if _RETAIN_KEYS in patch:
            retained = patch[_RETAIN_KEYS]
            if not isinstance(retained, list):
                raise InvalidPolicyError(f"{where}.{_RETAIN_KEYS} is no list")
            result = {key: value for key, value in result.items() if key in retained}
        for key, value in patch.items():
            if key in (_DIRECTIVE, _RETAIN_KEYS):
                continue
            if key.startswith("$"):
                raise InvalidPolicyError(f"the directive {key:.60} is not supported")
            place = f"{where}.{key}" if where else key
            if value is None:
                result.pop(key, None)
            else:
                result[key] = self._merged_value(
                    result.get(key), value, self._field(schema, key), place
                )
        return result

    def _merged_value(self, old: Any, new: Any, schema: Schema, where: str) -> Any:
        if isinstance(new, dict):
            inner = self._resolve(schema)
            return self._merge(old if isinstance(old, dict) else {}, new, inner, where)
        strategy = str(schema.get("x-kubernetes-patch-strategy", "")).split(",")
        key = schema.get("x-kubernetes-patch-merge-key")
        if not isinstance(new, list) or "merge" not in strategy or not isinstance(key, str):
            return new
        kept = old if isinstance(old, list) else []
        return self._merged_list(kept, new, key, self._resolve(schema.get("items", {})), where)

    def _merged_list(
        self, old: list[Any], new: list[Any], key: str, schema: Schema, where: str
    ) -> list[Any]:
        """Merge entries that are objects with the same value of `key`."""
        if not all(isinstance(entry, dict) for entry in new):
            raise InvalidPolicyError(f"{where} has an entry that is no mapping")
        # Such an entry stands for the whole list.
        is_replaced = any(e.get(_DIRECTIVE) == "replace" and key not in e for e in new)
        entries = [e for e in new if key in e or e.get(_DIRECTIVE) != "replace"]
        if any(key not in entry for entry in entries):
            raise InvalidPolicyError(f"{where} has an entry without {key}")
        known = {} if is_replaced else {repr(e.get(key)): e for e in old if isinstance(e, dict)}
        named = {repr(entry[key]) for entry in entries}
        merged = [
            (
                repr(e[key]),
                self._merge(known.get(repr(e[key]), {}), e, schema, f"{where}[{e[key]}]"),
            )
            for e in entries
            if e.get(_DIRECTIVE) != "delete"
        ]
        others = [(name, entry) for name, entry in known.items() if name not in named]
        return _in_order(others, merged, list(known))

    def _field(self, schema: Schema, key: str) -> Schema:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            field: Schema = properties[key]
            return field
        others = schema.get("additionalProperties")
        return others if isinstance(others, Mapping) else {}

    def _check(self, value: Any, schema: Schema, where: str) -> None:
        """Raise `InvalidPolicyError` if the API server could not decode a value."""
        schema = self._resolve(schema)
        choices = schema.get("oneOf") or schema.get("anyOf") or [schema]
        kinds = [_TYPES[choice["type"]] for choice in choices if choice.get("type") in _TYPES]
        # In Python, True is an integer.
        is_odd = isinstance(value, bool) and bool not in kinds
        if kinds and (is_odd or not any(isinstance(value, kind) for kind in kinds)):
            expected = " or ".join(str(choice.get("type")) for choice in choices)
            raise InvalidPolicyError(f"{where} is no {expected}: {value!r:.60}")
        if isinstance(value, dict):
            for key in schema.get("required", ()):
                if key not in value:
                    raise InvalidPolicyError(f"{where}.{key} is missing".removeprefix("."))
            for key, inner in value.items():
                if inner is not None:
                    place = f"{where}.{key}" if where else key
                    self._check(inner, self._field(schema, key), place)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                self._check(inner, schema.get("items", {}), f"{where}[{number}]")


def _in_order(
    others: list[tuple[str, Any]], merged: list[tuple[str, Any]], former: list[str]
) -> list[Any]:
    """The entries of a merged list as `kubectl patch` orders them: those of the patch in its order,
    each other one before the first entry of the patch that it was before formerly."""
    places = {name: place for place, name in enumerate(former)}
    result, used = [], 0
    for name, entry in merged:
        while used < len(others) and places[others[used][0]] < places.get(name, -1):
            result.append(others[used][1])
            used += 1
        result.append(entry)
    return result + [entry for _, entry in others[used:]]


def _reachable(schemas: Mapping[str, Any]) -> dict[str, Schema]:
    """The schemas of a pod and of all that it contains: a tenth of the document."""
    found: dict[str, Schema] = {}
    pending = [POD]
    while pending:
        name = pending.pop()
        schema = schemas.get(name)
        if name in found or not isinstance(schema, Mapping):
            continue
        found[name] = schema
        pending += _references(schema)
    return found


def _references(tree: Any) -> list[str]:
    if isinstance(tree, Mapping):
        own = tree.get("$ref")
        names = [own.removeprefix(_REFERENCE)] if isinstance(own, str) else []
        return names + [name for inner in tree.values() for name in _references(inner)]
    if isinstance(tree, list):
        return [name for inner in tree for name in _references(inner)]
    return []
