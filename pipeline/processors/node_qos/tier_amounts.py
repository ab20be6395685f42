"""Amounts of Batch or Mid that containers and their pod state, and limits of the pod's cgroup.

An amount that is absent or 0 is not stated. CPU is in millicores, memory in bytes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from pipeline.processors.kubernetes.pod_resources import effective_limits, effective_requests
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources, Scalars


class TierAmounts(NamedTuple):
    """Requests and limits of one tier, None where not stated."""

    requests: Resources
    limits: Resources


def container_amounts(container: Container, names: tuple[str, str]) -> TierAmounts:
    """Amounts of a container; `names` are the tier's resources of CPU and memory, such as `BATCH`
    of `resource_amounts`."""
    requests = container.scalars or {}
    limits = requests if container.scalar_limits is UNSET else container.scalar_limits
    return TierAmounts(_of_tier(requests, names), _of_tier(limits, names))


def pod_amounts(
    containers: Iterable[Container],
    init_containers: Iterable[Container],
    names: tuple[str, str],
) -> TierAmounts:
    """Amounts of a whole pod, with init containers and sidecars, as the scheduler counts them.

    A limit is not stated as soon as one of the containers does not state it.
    """
    main = [container_amounts(container, names) for container in containers]
    init = [(container_amounts(c, names), c.restartable) for c in init_containers]
    requests = effective_requests(
        [_named(amounts.requests) for amounts in main],
        [(_named(amounts.requests), restartable) for amounts, restartable in init],
        {},
        {},
    )
    limits = effective_limits(
        [_named(amounts.limits) for amounts in main],
        [(_named(amounts.limits), restartable) for amounts, restartable in init],
        {},
        {},
    )
    parts = [amounts.limits for amounts in (*main, *(amounts for amounts, _ in init))]
    return TierAmounts(_of_tier(requests, _NAMES), _if_all_state(_of_tier(limits, _NAMES), parts))


def cgroup_limits(effective: Resources, containers: Iterable[Container]) -> Resources:
    """The limits that the kubelet writes to the cgroup of a pod with these effective limits.

    `containers` are all of the pod, also init containers: as soon as one of them does not state a
    limit, the pod has none.
    """
    return _if_all_state(effective, [container.limits for container in containers])


def _if_all_state(limits: Resources, parts: Sequence[Resources]) -> Resources:
    has_cpu = all(part.cpu_millicores for part in parts)
    has_memory = all(part.memory_bytes for part in parts)
    return Resources(
        cpu_millicores=limits.cpu_millicores if has_cpu else None,
        memory_bytes=limits.memory_bytes if has_memory else None,
    )


_NAMES = ("cpu", "memory")


def _of_tier(amounts: Scalars, names: tuple[str, str]) -> Resources:
    cpu, memory = (amounts.get(name, 0) for name in names)
    return Resources(
        cpu_millicores=cpu if cpu > 0 else None, memory_bytes=memory if memory > 0 else None
    )


def _named(amounts: Resources) -> Scalars:
    stated = zip(_NAMES, (amounts.cpu_millicores, amounts.memory_bytes), strict=True)
    return {name: amount for name, amount in stated if amount is not None}
