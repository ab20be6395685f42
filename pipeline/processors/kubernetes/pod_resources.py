"""Requests and limits of a pod from its containers, its own resources and its overhead.

The rules are those by which kube-scheduler counts requests and `kubectl describe node` limits.
Amounts are whole and rounded up: cpu in millicores, all else in units or bytes. A tenant may state
any limit, so amounts and their sums end at `LARGEST_AMOUNT`. An invalid amount raises
`InvalidRecordError`, which names its place.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.objects import ContainerSpec, PodSpec, Quantity, Requirements
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import (
    LARGEST_AMOUNT,
    Resources,
    Scalars,
    millicores,
    whole_bytes,
)

Amounts = Mapping[str, int]
"""Amounts by resource. A missing resource is not stated, which is not 0."""

NATIVE: Final = ("cpu", "memory")
"""The resources of `Resources`; all others are `Scalars`."""


class StatedResources(NamedTuple):
    """Requests and limits of a container, or of the pod itself. For all but cpu and memory the
    limit stands in for a missing request, as in the API server."""

    requests: Amounts
    limits: Amounts


class PodResources(NamedTuple):
    """The fields of `PodRecord` about resources, and the Kubernetes QoS class."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    requests: Resources
    limits: Resources
    scalars: Scalars | None
    scalar_limits: Scalars | UnsetType
    overhead: Resources
    scalar_overhead: Scalars | UnsetType
    kube_qos: str


def pod_resources(spec: PodSpec) -> PodResources:
    """Requests and limits of a pod with this spec. Raises `InvalidRecordError`."""
    requests, limits = _stated_pairs(spec.resources)
    return _cached_resources(
        tuple(map(_container_key, spec.containers)),
        tuple(map(_container_key, spec.init_containers)),
        (_pod_level_pairs(requests), _pod_level_pairs(limits)),
        tuple(spec.overhead.items()),
    )


def amounts(stated: Iterable[tuple[str, Quantity]], where: str) -> dict[str, int]:
    """Read quantities as amounts. Raises `InvalidRecordError`, which names `where`."""
    read = {}
    for name, quantity in stated:
        try:
            amount = millicores(quantity) if name == "cpu" else whole_bytes(quantity)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{where}: {name:.80}: {error.message}") from error
        if amount < 0:
            raise InvalidRecordError(f"{where}: {name:.80}: an amount is negative")
        read[name] = min(amount, LARGEST_AMOUNT)
    return read


def native(amounts: Amounts) -> Resources:
    return Resources(cpu_millicores=amounts.get("cpu"), memory_bytes=amounts.get("memory"))


def scalars(amounts: Amounts) -> Scalars:
    """The amounts of all other resources that are not 0."""
    return {name: amount for name, amount in amounts.items() if amount and name not in NATIVE}


def effective_requests(
    containers: Iterable[Amounts],
    init_containers: Iterable[tuple[Amounts, bool]],
    pod: Amounts,
    overhead: Amounts,
) -> dict[str, int]:
    """The requests that the scheduler reserves.

    They are the sum of containers and restartable init containers (True), but at least what an
    ordinary init container needs beside the restartable init containers started before it. An
    amount that the pod itself states replaces that. The overhead is added.
    """
    return _sum(_needed(containers, init_containers) | dict(pod), overhead)


def effective_limits(
    containers: Iterable[Amounts],
    init_containers: Iterable[tuple[Amounts, bool]],
    pod: Amounts,
    overhead: Amounts,
) -> dict[str, int]:
    """Limits by the rules of `effective_requests`; overhead is added to existing limits only.

    As in Kubernetes, a container without a limit adds nothing, so the sum does not tell whether
    each container has a limit.
    """
    limits = _needed(containers, init_containers) | dict(pod)
    stated = {name: overhead.get(name, 0) for name, limit in limits.items() if limit}
    return _sum(limits, stated)


def kube_qos(containers: Iterable[StatedResources], pod: StatedResources) -> str:
    """Guaranteed, Burstable or BestEffort by the API server's rules, of all containers, also init.

    Guaranteed: every container has limits of CPU and memory, and the requests are equal to them.
    """
    stated = _native_amounts(pod)
    parts = [stated] if any(stated) else [*map(_native_amounts, containers)]
    requests = [sum(values) for values in zip(*(part[:2] for part in parts), strict=True)]
    limits = [sum(values) for values in zip(*(part[2:] for part in parts), strict=True)]
    if not any(requests) and not any(limits):
        return "BestEffort"
    if all(part[2] and part[3] for part in parts) and requests == limits:
        return "Guaranteed"
    return "Burstable"


def _native_amounts(stated: StatedResources) -> list[int]:
    return [amounts.get(name, 0) for amounts in stated for name in NATIVE]


def _needed(
    containers: Iterable[Amounts], init_containers: Iterable[tuple[Amounts, bool]]
) -> dict[str, int]:
    together, restartable, most = _sum(*containers), dict[str, int](), dict[str, int]()
    for container, is_restartable in init_containers:
        running = _sum(restartable, container)
        most = _highest(most, running)
        if is_restartable:
            together, restartable = _sum(together, container), running
    return _highest(together, most)


def _sum(*parts: Amounts) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = min(total.get(name, 0) + amount, LARGEST_AMOUNT)
    return total


def _highest(left: Amounts, right: Amounts) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


# Stated quantities as keys of a cache: all pods of a workload state the same.
_Pairs = tuple[tuple[str, Quantity], ...]
_ContainerKey = tuple[str, bool, tuple[_Pairs, _Pairs]]


def _container_key(container: ContainerSpec) -> _ContainerKey:
    restartable = container.restart_policy == "Always"
    return container.name, restartable, _stated_pairs(container.resources)


def _stated_pairs(stated: Requirements) -> tuple[_Pairs, _Pairs]:
    return tuple(stated.requests.items()), tuple(stated.limits.items())


def _pod_level_pairs(stated: _Pairs) -> _Pairs:
    """The resources that Kubernetes reads from a pod as a whole."""
    return tuple(pair for pair in stated if pair[0] in NATIVE or pair[0].startswith("hugepages-"))


@lru_cache(maxsize=4096)
def _cached_resources(
    containers: tuple[_ContainerKey, ...],
    init_containers: tuple[_ContainerKey, ...],
    pod_pairs: tuple[_Pairs, _Pairs],
    overhead_pairs: _Pairs,
) -> PodResources:
    main, init = ([*map(_container, keys)] for keys in (containers, init_containers))
    pod = _stated(pod_pairs, "spec.resources")
    overhead = amounts(overhead_pairs, "spec.overhead")
    requests = effective_requests(
        [stated.requests for stated, _ in main],
        [(stated.requests, record.restartable) for stated, record in init],
        pod.requests,
        overhead,
    )
    limits = effective_limits(
        [stated.limits for stated, _ in main],
        [(stated.limits, record.restartable) for stated, record in init],
        pod.limits,
        overhead,
    )
    return PodResources(
        containers=tuple(record for _, record in main),
        init_containers=tuple(record for _, record in init),
        requests=native(requests),
        limits=native(limits),
        scalars=scalars(requests) or None,
        scalar_limits=_if_different(scalars(limits), scalars(requests)),
        overhead=native(overhead),
        scalar_overhead=scalars(overhead) or UNSET,
        kube_qos=kube_qos([stated for stated, _ in (*main, *init)], pod),
    )


def _container(key: _ContainerKey) -> tuple[StatedResources, Container]:
    name, restartable, pairs = key
    stated = _stated(pairs, f"resources of container {name}")
    return stated, Container(
        name=name,
        requests=native(stated.requests),
        limits=native(stated.limits),
        scalars=scalars(stated.requests) or None,
        scalar_limits=_if_different(scalars(stated.limits), scalars(stated.requests)),
        restartable=restartable,
    )


def _stated(pairs: tuple[_Pairs, _Pairs], where: str) -> StatedResources:
    requests, limits = (amounts(quantities, where) for quantities in pairs)
    others = {name: limit for name, limit in limits.items() if name not in NATIVE}
    return StatedResources(others | requests, limits)


def _if_different(limits: Scalars, requests: Scalars) -> Scalars | UnsetType:
    """The limits, or UNSET where they equal the requests, as for most pods."""
    return UNSET if limits == requests else limits
