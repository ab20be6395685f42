"""Select resources, entities and predictors of a prediction record, as a JSON document.

The selected part is as published. Other parts have no key, because null would mean unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

import msgspec

from pipeline.processors.explain.derivation import RESOURCES
from pipeline.processors.explain.prod_text import PROD_CLASSES
from pipeline.topics.predictions import PredictionRecord

Document = dict[str, Any]

_BY_PREDICTOR: Final = ("peaks", "raw", "terms")
_OF_RESOURCE: Final = {
    name: resource.name
    for resource in RESOURCES.values()
    for name in (resource.name, resource.field)
}
"""The resource of each struct field that holds a single resource. Keys of mappings are not checked:
a class or a pod may have such a name."""


def part_of(
    record: PredictionRecord,
    *,
    resources: Sequence[str] = tuple(RESOURCES),
    entities: Sequence[str] = (),
    predictors: Sequence[str] = (),
) -> Document:
    """Select what `explain` shows for these; none named selects all. Other fields stay."""
    document: Document = _selected(record, resources)
    if entities:
        _keep_entities(document, entities)
    if predictors:
        _keep_predictors(document, predictors)
    return document


def _selected(value: Any, resources: Sequence[str]) -> Any:
    if isinstance(value, msgspec.Struct):
        names = (
            name
            for name in value.__struct_fields__
            if _OF_RESOURCE.get(name, resources[0]) in resources
        )
        return {name: _selected(getattr(value, name), resources) for name in names}
    if isinstance(value, dict):
        return {name: _selected(item, resources) for name, item in value.items()}
    return value


def _keep_entities(document: Document, entities: Sequence[str]) -> None:
    """Keep these entities, and the pods that are part of their sums."""
    for name, field in (("node", "node_peaks"), ("system", "system")):
        if name not in entities:
            del document[field]
    document["classes"] = _only(document["classes"], entities)
    if "prod" not in entities:
        del document["reclaimable"]
    if "node" in entities:
        return
    classes = {*entities, *(PROD_CLASSES if "prod" in entities else ())}
    pods = document["pods"]
    is_kept = [pod_class in classes for pod_class in pods["pod_class"]]
    document["pods"] = _rows(pods, is_kept)
    document["cold_pods"] = [
        uid for uid in document["cold_pods"] if uid in document["pods"]["uid"]
    ]  # fmt: skip


def _rows(columns: Any, is_selected: Sequence[bool]) -> Any:
    """The selected rows of columns, which may be nested."""
    if isinstance(columns, dict):
        return {name: _rows(column, is_selected) for name, column in columns.items()}
    return [*compress(columns, is_selected)]


def _keep_predictors(document: Document, predictors: Sequence[str]) -> None:
    entities = [document.get("node_peaks"), document.get("system"), *document["classes"].values()]
    for entity in entities:
        for name in _BY_PREDICTOR if entity else ():
            entity[name] = _only(entity[name], predictors)
    document["pods"]["raw"] = _only(document["pods"]["raw"], predictors)
    if "reclaimable" in document:
        document["reclaimable"] = _only(document["reclaimable"], predictors)


def _only(mapping: Document, names: Sequence[str]) -> Document:
    return {name: value for name, value in mapping.items() if name in names}
