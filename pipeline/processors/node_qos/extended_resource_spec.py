"""Read the amounts of Batch and Mid that Koordinator's webhook notes in an annotation of a pod."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.objects import Quantities
from pipeline.processors.kubernetes.pod_resources import amounts
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH, MID, Scalars

ANNOTATION: Final = "node.koordinator.sh/extended-resource-spec"
_NAMES: Final = frozenset((*BATCH, *MID))


class _ContainerSpec(msgspec.Struct, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class _Spec(msgspec.Struct, frozen=True):
    containers: dict[str, _ContainerSpec] = {}


def with_extended_resources(
    containers: tuple[Container, ...], annotations: Mapping[str, str]
) -> tuple[Container, ...]:
    """The containers of a pod, with the Batch and Mid of its annotation where they state none.

    What a container itself states wins: that is what the scheduler counted. An invalid annotation
    counts as none.
    """
    if (text := annotations.get(ANNOTATION)) is None:
        return containers
    try:
        spec = msgspec.json.decode(text, type=_Spec)
        stated = {
            name: (_of_tiers(container.requests), _of_tiers(container.limits))
            for name, container in spec.containers.items()
        }
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidRecordError):
        return containers
    return tuple(
        _extended(container, *stated[container.name]) if container.name in stated else container
        for container in containers
    )


def _of_tiers(quantities: Quantities) -> Scalars:
    tiers = ((name, quantity) for name, quantity in quantities.items() if name in _NAMES)
    return amounts(tiers, ANNOTATION)


def _extended(container: Container, requests: Scalars, limits: Scalars) -> Container:
    scalars = container.scalars or {}
    if not _NAMES.isdisjoint(scalars):
        return container
    own_limits = scalars if container.scalar_limits is UNSET else container.scalar_limits
    return msgspec.structs.replace(
        container, scalars=scalars | requests, scalar_limits=own_limits | limits
    )
