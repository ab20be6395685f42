"""Amplification: nodes that tell schedulers of more than they have (colocation 13).

Owes the rest: the section `resource-amplification-config`, the ratios that it comes to for a node,
their annotation, and what they make of a node's allocatable and of requests. Of a ratio the digits
count that are written, and every product is cut or rounded exactly.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import Section
from pipeline.processors.policy.normalization import read_ratio
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Resources

RATIOS: Final = "node.koordinator.sh/resource-amplification-ratio"
"""Annotation of a Node."""

LARGEST_RATIO: Final = 1000
"""With it what the largest node has still is a number of 64 bits."""

_CPU: Final = "cpu"
_HUNDREDTH: Final = Decimal("0.01")


class Amplification(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one place says: the cluster, or an entry of `nodeConfigs`."""

    enable: bool | None = None
    resource_amplification_ratio: dict[str, float] | None = None


def problems_of(of: Amplification) -> Iterator[tuple[str, str]]:
    """Every ratio that is out of range, as our name of the field and what is wrong with it."""
    for name, ratio in (of.resource_amplification_ratio or {}).items():
        # That of the CPU is multiplied by the CPU's normalization, which may be more than 1.
        low = ratio <= 0 if name == _CPU else ratio < 1
        if low or not ratio <= LARGEST_RATIO:
            least = "more than 0" if name == _CPU else "1 or more"
            yield (
                "resource_amplification_ratio",
                f"resourceAmplificationRatio of {name!r:.100} is {ratio:g}, allowed is {least}, "
                f"and at most {LARGEST_RATIO}",
            )


AMPLIFICATION: Final = Section(
    "resource-amplification-config", Amplification(enable=False), problems_of
)


def ratios(of: Amplification, normalization: Decimal | None) -> dict[str, Decimal]:
    """The ratio of each resource of a node whose CPUs are `normalization` normal ones, with two
    decimals. That of the CPU is the product of both, and is there only if it is more than 1.

    Raises InvalidPolicyError where one is less than 1, or more than it may be: then the annotation
    stays as it is. Upstream removes it, which takes from nodes what they are known to have.
    """
    said = (of.resource_amplification_ratio or {}) if of.enable else {}
    exact = {name: Decimal(repr(ratio)) for name, ratio in said.items()}
    exact[_CPU] = exact.get(_CPU, Decimal(1)) * (normalization or Decimal(1))
    for name, ratio in exact.items():
        if not 1 <= ratio <= LARGEST_RATIO:
            raise InvalidPolicyError(
                f"amplification of {name!r:.100} would be {ratio:.6g}, allowed is 1 to "
                f"{LARGEST_RATIO}"
            )
    found = {name: ratio.quantize(_HUNDREDTH, ROUND_HALF_UP) for name, ratio in exact.items()}
    return {name: ratio for name, ratio in found.items() if name != _CPU or ratio > 1}


def node_ratios(node: NodeRecord) -> dict[str, Decimal] | None:
    """`ratios` of this node, whose CPUs are what its annotation says; None while no usable policy
    was ever read, and its annotation is not to be touched."""
    of = msgspec.json.decode(node.amplification, type=Amplification | None)
    return None if of is None else ratios(of, read_ratio(node.annotations))


def ratios_text(of: Mapping[str, Decimal]) -> str | None:
    """The annotation `RATIOS` that says these; None where there is none to say, and it goes."""
    said = (f"{json.dumps(name)}:{ratio:.2f}" for name, ratio in sorted(of.items()))
    return "{" + ",".join(said) + "}" if of else None


def read_ratios(annotations: Mapping[str, str]) -> dict[str, Decimal] | None:
    """What the annotation of a Node says, None if there is none.

    Raises InvalidPolicyError for what is no object of numbers, and for a ratio out of range.
    """
    text = annotations.get(RATIOS)
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, float])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {RATIOS}: {error!s:.200}") from error
    for name, ratio in found.items():
        if not 0 <= ratio <= LARGEST_RATIO:
            raise InvalidPolicyError(
                f"annotation {RATIOS}: {name!r:.100} is {ratio:g}, allowed is 0 to {LARGEST_RATIO}"
            )
    return {name: Decimal(repr(ratio)) for name, ratio in found.items()}


class Admitted(NamedTuple):
    """What a Node is to have as allocatable, and what is to be recorded as its raw one, None if
    nothing is."""

    allocatable: Resources
    raw: Resources | None


def admitted(
    submitted: Resources,
    before: Resources | None,
    raw: Resources | None,
    of: Mapping[str, Decimal] | None,
) -> Admitted:
    """What becomes of the allocatable that is submitted for a Node whose annotation has these
    ratios. `before` is what the Node had, `raw` what is recorded; None where there is none.

    What is submitted is raw where none is recorded, and where it is not what the Node had: then the
    kubelet has written, which knows of no ratio. Ratios of 1 or less change nothing.
    """
    if of is None:
        return Admitted(submitted, None)
    if raw is None or (before is not None and submitted != before):
        raw = submitted
    return Admitted(
        Resources(
            cpu_millicores=_amplified(raw.cpu_millicores, of.get(_CPU)),
            memory_bytes=_amplified(raw.memory_bytes, of.get("memory")),
        ),
        raw,
    )


def _amplified(amount: int | None, ratio: Decimal | None) -> int | None:
    if amount is None or ratio is None or ratio <= 1:
        return amount
    return int((amount * ratio).to_integral_value(ROUND_FLOOR))


def requested(amount: int, ratio: Decimal) -> int:
    """What a request of real CPUs or bytes comes to on a node with this ratio, rounded up; a ratio
    of 1 or less changes nothing."""
    return amount if ratio <= 1 else int((amount * ratio).to_integral_value(ROUND_CEILING))
