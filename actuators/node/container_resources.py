"""Decided values of a container as the resources of its runtime, and the reverse."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from actuators.node.knob_files import KNOB_FILES
from actuators.node.nri_messages import ContainerResources
from node_exporter.kernel.parse_files import cpu_list
from pipeline.errors import ContainerRuntimeError, KernelError
from pipeline.processors.node_qos.cgroup_values import (
    PERIOD_US,
    SMALLEST_QUOTA_US,
    UNLIMITED,
    CpuSet,
    Knob,
    Value,
    cpu_list_text,
)

UNIFIED_DEFAULTS: Final[Mapping[Knob, int]] = {
    Knob.MEMORY_MIN: 0,
    Knob.MEMORY_LOW: 0,
    Knob.MEMORY_HIGH: UNLIMITED,
    Knob.MEMORY_OOM_GROUP: 0,
}
"""Knobs of cgroup v2 that a runtime takes by the name of their file, with what a new cgroup has."""
_DEFAULT_SHARES: Final = 1024
_LONGEST_PERIOD_US: Final = 1_000_000
"""The kernel refuses longer ones."""


class Adjustment(NamedTuple):
    """Resources to answer with, and by knob the value that each would have had without them; None
    for a CPU set that the runtime leaves to the cgroup above."""

    resources: ContainerResources
    replaced: Mapping[Knob, Value | None]


def adjustment(
    decided: Mapping[Knob, Value],
    resources: ContainerResources,
    version: Literal[1, 2],
    *,
    is_update: bool,
) -> Adjustment:
    """What differs between decided values and the resources that a container shall have.

    `version` is that of the cgroups. An update keeps what it does not state. Raises
    `ContainerRuntimeError` for resources that are no resources.
    """
    planned = planned_values(resources, version)
    stated = _stated_knobs(resources)
    changed = {
        knob: value
        for knob, value in decided.items()
        if knob in planned and planned[knob] != value and (not is_update or knob in stated)
    }
    swap = resources.memory_swap_bytes or 0
    if 0 < swap < _number(changed.get(Knob.MEMORY_LIMIT, 0)):
        del changed[Knob.MEMORY_LIMIT]  # a runtime refuses less memory with swap than without
    return Adjustment(_resources(changed, resources), {knob: planned[knob] for knob in changed})


def planned_values(
    resources: ContainerResources, version: Literal[1, 2]
) -> dict[Knob, Value | None]:
    """The value of each knob that a runtime gives to a container with these resources."""
    values: dict[Knob, Value | None] = {
        Knob.CPU_SHARES: resources.cpu_shares or _DEFAULT_SHARES,
        Knob.CPU_QUOTA: _scaled_quota(resources),
        Knob.CPUSET: _cpus(resources.cpus),
        Knob.MEMORY_LIMIT: _limit(resources.memory_limit_bytes),
    }
    if version == 2:
        for knob, default in UNIFIED_DEFAULTS.items():
            file = KNOB_FILES[2][knob][0]
            text = resources.unified.get(file.name)
            try:
                values[knob] = default if text is None else file.value(text)
            except KernelError as error:
                raise ContainerRuntimeError(f"{file.name} {text!r:.100} is no value") from error
    return values


def _stated_knobs(resources: ContainerResources) -> set[Knob]:
    """The knobs that an update changes; 0 and the empty text are not stated."""
    stated = {
        Knob.CPU_SHARES: resources.cpu_shares,
        Knob.CPU_QUOTA: resources.cpu_quota_us,
        Knob.CPUSET: resources.cpus,
        Knob.MEMORY_LIMIT: resources.memory_limit_bytes,
    }
    unified = {
        knob for knob in UNIFIED_DEFAULTS if KNOB_FILES[2][knob][0].name in resources.unified
    }
    return {knob for knob, value in stated.items() if value} | unified


def _resources(values: Mapping[Knob, Value], planned: ContainerResources) -> ContainerResources:
    answer = ContainerResources(
        unified={
            KNOB_FILES[2][knob][0].name: KNOB_FILES[2][knob][0].text_of(value, "")
            for knob, value in values.items()
            if knob in UNIFIED_DEFAULTS
        }
    )
    if Knob.CPU_SHARES in values:
        answer = answer._replace(cpu_shares=_number(values[Knob.CPU_SHARES]))
    if Knob.CPU_QUOTA in values:
        period_us = _period_us(planned)
        quota_us = _number(values[Knob.CPU_QUOTA])
        scaled = max(quota_us * period_us // PERIOD_US, SMALLEST_QUOTA_US)
        answer = answer._replace(
            cpu_quota_us=-1 if quota_us == UNLIMITED else scaled, cpu_period_us=period_us
        )
    if isinstance(cpus := values.get(Knob.CPUSET), frozenset):
        answer = answer._replace(cpus=cpu_list_text(cpus))
    if Knob.MEMORY_LIMIT in values:
        limit = _number(values[Knob.MEMORY_LIMIT])
        answer = answer._replace(memory_limit_bytes=-1 if limit == UNLIMITED else limit)
    return answer


def _scaled_quota(resources: ContainerResources) -> int:
    quota_us = resources.cpu_quota_us or 0
    if quota_us <= 0:
        return UNLIMITED
    return min(quota_us * PERIOD_US // _period_us(resources), UNLIMITED)


def _period_us(resources: ContainerResources) -> int:
    period_us = resources.cpu_period_us or 0
    if period_us > _LONGEST_PERIOD_US:
        raise ContainerRuntimeError(f"no period: {period_us} us")
    return period_us if period_us > 0 else PERIOD_US


def _limit(amount: int | None) -> int:
    return amount if amount is not None and amount > 0 else UNLIMITED


def _cpus(text: str) -> CpuSet | None:
    try:
        return frozenset(cpu_list(text.encode())) if text else None
    except (KernelError, ValueError) as error:
        raise ContainerRuntimeError(f"no CPU set: {text!r:.100}") from error


def _number(value: Value) -> int:
    assert isinstance(value, int)  # only CPU sets are not
    return value
