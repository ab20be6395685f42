"""What a pod asks for and may take, out of what its containers, itself and its overhead state.

Owes the rest: one set of rules for every resource, those by which kube-scheduler counts requests
and `kubectl describe node` limits; whole amounts by Kubernetes' own names, cpu in millicores, all
else in units or bytes, rounded up. What is none raises `InvalidRecordError`, which says where.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.objects import ContainerSpec, PodSpec, Quantity, Requirements
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources, Scalars, millicores, whole_bytes

Amounts = Mapping[str, int]
"""Amounts by resource; one that is not there is not stated, which is not 0."""

NATIVE: Final = ("cpu", "memory")
"""The resources of `Resources`; all others are `Scalars`."""


class Stated(NamedTuple):
    """What a container, or the pod itself, states. Of all but cpu and memory a limit stands for a
    request where there is none, as the API server has it."""

    requests: Amounts
    limits: Amounts


class Asked(NamedTuple):
    """What follows from what a pod states; the names are those of `PodRecord`."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    requests: Resources
    limits: Resources
    scalars: Scalars | None
    scalar_limits: Scalars | UnsetType
    overhead: Resources
    scalar_overhead: Scalars | UnsetType
    kube_qos: str


def asked_for(spec: PodSpec) -> Asked:
    """What a pod of this spec asks for and may take."""
    requests, limits = _pairs_of(spec.resources)
    return _asked_for(
        tuple(_said_of(one) for one in spec.containers),
        tuple(_said_of(one) for one in spec.init_containers),
        (_for_pods(requests), _for_pods(limits)),
        tuple(spec.overhead.items()),
    )


def amounts(stated: Iterable[tuple[str, Quantity]], where: str) -> dict[str, int]:
    """The amounts in quantities; `where` they are is for the error."""
    found = {}
    for name, quantity in stated:
        try:
            amount = millicores(quantity) if name == "cpu" else whole_bytes(quantity)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{where}: {name:.80}: {error.message}") from error
        if amount < 0:
            raise InvalidRecordError(f"{where}: {name:.80}: an amount is negative")
        found[name] = amount
    return found


def native(of: Amounts) -> Resources:
    """What there is of cpu and memory."""
    return Resources(cpu_millicores=of.get("cpu"), memory_bytes=of.get("memory"))


def scalars(of: Amounts) -> Scalars:
    """What there is of all others; 0 of one is none of it."""
    return {name: amount for name, amount in of.items() if amount and name not in NATIVE}


def effective_requests(
    containers: Iterable[Amounts],
    init_containers: Iterable[tuple[Amounts, bool]],
    of_pod: Amounts,
    overhead: Amounts,
) -> dict[str, int]:
    """What the scheduler reserves: containers and restartable init containers (True) together, at
    least what an ordinary init container needs beside the restartable ones started before it; where
    the pod itself states an amount, that; plus the overhead.
    """
    return _sum(_needed(containers, init_containers) | dict(of_pod), overhead)


def effective_limits(
    containers: Iterable[Amounts],
    init_containers: Iterable[tuple[Amounts, bool]],
    of_pod: Amounts,
    overhead: Amounts,
) -> dict[str, int]:
    """Limits by the rules of `effective_requests`; overhead only on top of a limit.

    As in Kubernetes a container without a limit adds nothing: look at the containers to know
    whether each has one.
    """
    limits = _needed(containers, init_containers) | dict(of_pod)
    return {name: limit and limit + overhead.get(name, 0) for name, limit in limits.items()}


def kube_qos(containers: Iterable[Stated], of_pod: Stated) -> str:
    """Guaranteed, Burstable or BestEffort, as the API server would say (all containers, also init).

    Guaranteed: every container has limits of CPU and memory, and the requests are equal to them.
    """
    stated = _of_native(of_pod)
    parts = [stated] if any(stated) else [_of_native(one) for one in containers]
    requests = [sum(values) for values in zip(*(part[:2] for part in parts), strict=True)]
    limits = [sum(values) for values in zip(*(part[2:] for part in parts), strict=True)]
    if not any(requests) and not any(limits):
        return "BestEffort"
    if all(part[2] and part[3] for part in parts) and requests == limits:
        return "Guaranteed"
    return "Burstable"


def _of_native(stated: Stated) -> list[int]:
    return [of.get(name, 0) for of in stated for name in NATIVE]


def _needed(
    containers: Iterable[Amounts], init_containers: Iterable[tuple[Amounts, bool]]
) -> dict[str, int]:
    together, restartable, most = _sum(*containers), dict[str, int](), dict[str, int]()
    for one, is_restartable in init_containers:
        beside = _sum(restartable, one)
        most = _highest(most, beside)
        if is_restartable:
            together, restartable = _sum(together, one), beside
    return _highest(together, most)


def _sum(*parts: Amounts) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, 0) + amount
    return found


def _highest(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


# What was stated, as a key: the pods of a workload state the same.
_Pairs = tuple[tuple[str, Quantity], ...]
_Said = tuple[str, bool, tuple[_Pairs, _Pairs]]


def _said_of(container: ContainerSpec) -> _Said:
    restartable = container.restart_policy == "Always"
    return container.name, restartable, _pairs_of(container.resources)


def _pairs_of(stated: Requirements) -> tuple[_Pairs, _Pairs]:
    return tuple(stated.requests.items()), tuple(stated.limits.items())


def _for_pods(stated: _Pairs) -> _Pairs:
    """Those that a pod as a whole may state; Kubernetes looks at no others there."""
    return tuple(one for one in stated if one[0] in NATIVE or one[0].startswith("hugepages-"))


@lru_cache(maxsize=4096)
def _asked_for(
    containers: tuple[_Said, ...],
    init_containers: tuple[_Said, ...],
    of_pod: tuple[_Pairs, _Pairs],
    overhead: _Pairs,
) -> Asked:
    main, init = ([*map(_container, said)] for said in (containers, init_containers))
    pod, more = _stated(of_pod, "spec.resources"), amounts(overhead, "spec.overhead")
    requests = effective_requests(
        [of.requests for of, _ in main],
        [(of.requests, record.restartable) for of, record in init],
        pod.requests,
        more,
    )
    limits = effective_limits(
        [of.limits for of, _ in main],
        [(of.limits, record.restartable) for of, record in init],
        pod.limits,
        more,
    )
    return Asked(
        containers=tuple(record for _, record in main),
        init_containers=tuple(record for _, record in init),
        requests=native(requests),
        limits=native(limits),
        scalars=scalars(requests) or None,
        scalar_limits=_apart(scalars(limits), scalars(requests)),
        overhead=native(more),
        scalar_overhead=scalars(more) or UNSET,
        kube_qos=kube_qos([of for of, _ in (*main, *init)], pod),
    )


def _container(said: _Said) -> tuple[Stated, Container]:
    name, restartable, pairs = said
    of = _stated(pairs, f"resources of container {name}")
    return of, Container(
        name=name,
        requests=native(of.requests),
        limits=native(of.limits),
        scalars=scalars(of.requests) or None,
        scalar_limits=_apart(scalars(of.limits), scalars(of.requests)),
        restartable=restartable,
    )


def _stated(pairs: tuple[_Pairs, _Pairs], where: str) -> Stated:
    requests, limits = (amounts(one, where) for one in pairs)
    others = {name: limit for name, limit in limits.items() if name not in NATIVE}
    return Stated(others | requests, limits)


def _apart(limits: Scalars, requests: Scalars) -> Scalars | UnsetType:
    """Limits of a record: of most pods they are the requests, and not said again."""
    return UNSET if limits == requests else limits
