"""Translate cpu and memory of Batch and Mid pods into the resources of their tier.

Units are Koordinator's: `kubernetes.io/batch-cpu` and `mid-cpu` in millicores, `-memory` in bytes.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from pipeline.processors.kubernetes.pod_resources import NATIVE
from pipeline.topics.resource_amounts import BATCH, MID, millicores, parse_quantity, whole_bytes

TIER_RESOURCES: Final[Mapping[str, tuple[str, str]]] = {"batch": BATCH, "mid": MID}
"""The resources for cpu and memory by class of pod; other classes keep theirs."""

JsonObject = dict[str, Any]


def translate(spec: JsonObject, priority_class: str) -> bool:
    """Replace cpu and memory of all containers and init containers by the resources of the class;
    returns whether anything changed. `spec` gets new lists; the containers in the old ones stay as
    they are.

    A tier's resource that a container states itself stays, and its cpu or memory is removed: a
    LimitRange adds cpu and memory again between two calls of a webhook, and its default limit may
    be below the stated request. A limit without a request is also the request. Amounts are rounded
    up. Raises `InvalidRecordError` for what is no quantity.
    """
    names = TIER_RESOURCES.get(priority_class)
    if names is None:
        return False
    changed = False
    for key in ("initContainers", "containers"):
        containers = spec.get(key) or []
        translated = [_translated(container, names) for container in containers]
        if any(new is not old for new, old in zip(translated, containers, strict=True)):
            spec[key], changed = translated, True
    return changed


def extended_resource_spec(spec: JsonObject) -> str | None:
    """The text of Koordinator's annotation with the Batch and Mid of the containers, for agents on
    the node that do not see their spec; None without any."""
    containers: JsonObject = {}
    for container in spec.get("containers") or []:
        resources = container.get("resources") or {}
        stated = {
            part: {name: amounts[name] for name in (*BATCH, *MID) if name in amounts}
            for part in ("limits", "requests")
            if (amounts := resources.get(part) or {})
        }
        if stated := {part: amounts for part, amounts in stated.items() if amounts}:
            containers[container["name"]] = stated
    return msgspec.json.encode({"containers": containers}).decode() if containers else None


def _translated(container: JsonObject, names: tuple[str, str]) -> JsonObject:
    """The container in the resources `names` of a tier; the same object if that changes nothing."""
    resources = container.get("resources") or {}
    requests, limits = (dict(resources.get(part) or {}) for part in ("requests", "limits"))
    changed = False
    for native, tier in zip(NATIVE, names, strict=True):
        is_stated = tier in requests or tier in limits
        for amounts in (requests, limits):
            if native in amounts:
                amount, changed = _amount(native, amounts.pop(native)), True
                if not is_stated:
                    amounts[tier] = amount
        if tier in limits and tier not in requests:
            requests[tier], changed = limits[tier], True
    if not changed:
        return container
    parts = {
        name: amounts
        for name, amounts in (("requests", requests), ("limits", limits))
        if amounts or resources.get(name) is not None
    }
    return {**container, "resources": {**resources, **parts}}


def _amount(native: str, quantity: str | int | float) -> str:
    """An amount of a tier; memory keeps its text, such as 2Gi, if it is whole."""
    if native == "cpu":
        return str(millicores(quantity))
    is_whole = parse_quantity(quantity) == Decimal(whole_bytes(quantity))
    return str(quantity) if is_whole else str(whole_bytes(quantity))
