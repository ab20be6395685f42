"""Resource amplification: ratios by which nodes offer schedulers more than they have.

The section `resource-amplification-config`, the ratios of a node, and their annotation. Ratios are
decimals, exactly as written.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import Section
from pipeline.processors.policy.normalization import read_ratio
from pipeline.topics.nodes import NodeRecord

LARGEST_RATIO: Final = 1000
"""The amounts of the largest node times this ratio fit into 64 bits."""

_CPU: Final = "cpu"
_HUNDREDTH: Final = Decimal("0.01")


class Amplification(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The settings of the cluster, or of an entry of `nodeConfigs`."""

    enable: bool | None = None
    resource_amplification_ratio: dict[str, float] | None = None


def problems_of(config: Amplification) -> Iterator[tuple[str, str]]:
    """Every ratio that is out of range: the name of its field, and the problem."""
    for name, ratio in (config.resource_amplification_ratio or {}).items():
        # The ratio of cpu is multiplied by the CPU's normalization, which may be more than 1.
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


def amplification_ratios(
    config: Amplification, normalization: Decimal | None
) -> dict[str, Decimal]:
    """The ratio of each resource of a node, with two decimals. The ratio of cpu is multiplied by
    the node's `normalization`, and is left out if the product is 1.

    Raises InvalidPolicyError for a ratio below 1 or above its limit; the annotation then stays.
    Koordinator removes it, which takes capacity from nodes.
    """
    stated = (config.resource_amplification_ratio or {}) if config.enable else {}
    exact = {name: Decimal(repr(ratio)) for name, ratio in stated.items()}
    exact[_CPU] = exact.get(_CPU, Decimal(1)) * (normalization or Decimal(1))
    for name, ratio in exact.items():
        if not 1 <= ratio <= LARGEST_RATIO:
            raise InvalidPolicyError(
                f"amplification of {name!r:.100} would be {ratio:.6g}, allowed is 1 to "
                f"{LARGEST_RATIO}"
            )
    rounded = {name: ratio.quantize(_HUNDREDTH, ROUND_HALF_UP) for name, ratio in exact.items()}
    return {name: ratio for name, ratio in rounded.items() if name != _CPU or ratio > 1}


def node_ratios(node: NodeRecord) -> dict[str, Decimal] | None:
    """`amplification_ratios` of this node with the normalization of its annotation; None before the
    first valid policy: leave its annotation unchanged."""
    config = msgspec.json.decode(node.amplification, type=Amplification | None)
    if config is None:
        return None
    return amplification_ratios(config, read_ratio(node.annotations))


def ratios_text(ratios: Mapping[str, Decimal]) -> str | None:
    """The annotation `node.koordinator.sh/resource-amplification-ratio`; None removes it."""
    members = (f"{json.dumps(name)}:{ratio:.2f}" for name, ratio in sorted(ratios.items()))
    return "{" + ",".join(members) + "}" if ratios else None
