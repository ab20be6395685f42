"""Types of the fields of both custom resources: names, bounds and amounts.

`Document` is the base of every object in them. A field that is None is not written, an unknown
field is ignored. Bounds are in the definition; decoding does not check them.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

GROUP: Final = "slo.koordinator.sh"
API_VERSION: Final = "slo.koordinator.sh/v1alpha1"

_CAPITALS: Final = {"be": "BE", "bps": "BPS", "id": "ID", "iops": "IOPS", "qos": "QOS"}


def go_name(name: str) -> str:
    """The name of a field as Koordinator writes it.

    >>> go_name("net_qos_policy"), go_name("read_iops"), go_name("qos")
    ('netQOSPolicy', 'readIOPS', 'qos')
    """
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.capitalize()) for word in rest)


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=go_name):
    """Any object within a custom resource."""


def _between(least: int | None, most: int | None) -> msgspec.Meta:
    bounds = {"minimum": least, "maximum": most}
    return msgspec.Meta(extra_json_schema={k: v for k, v in bounds.items() if v is not None})


Percent: TypeAlias = Annotated[int, _between(0, 100)]
NotNegative: TypeAlias = Annotated[int, _between(0, None)]
AboveZero: TypeAlias = Annotated[int, _between(1, None)]
Flag: TypeAlias = Annotated[int, _between(0, 1)]
"""A switch of the kernel: 0 or 1."""
Weight: TypeAlias = Annotated[int, _between(1, 100)]
GroupIdentity: TypeAlias = Annotated[int, _between(-1, 2)]
Permill: TypeAlias = Annotated[int, _between(1, 1000)]
MinAdjustment: TypeAlias = Annotated[int, _between(-25, 50)]
OomPriority: TypeAlias = Annotated[int, _between(0, 12)]
BurstPercent: TypeAlias = Annotated[int, _between(1, 10_000)]
QuotaPercent: TypeAlias = Annotated[int, _between(100, None)]
OrUnlimited: TypeAlias = Annotated[int, _between(-1, None)]
ScaleFactor: TypeAlias = Annotated[int, _between(1, 400)]
BelowProd: TypeAlias = Annotated[
    int, msgspec.Meta(extra_json_schema={"format": "int32", "minimum": 0, "maximum": 7999})
]
"""A priority of pods, at most the highest of Mid."""
Int32: TypeAlias = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int32"})]

Quantity: TypeAlias = Annotated[
    int | str,
    msgspec.Meta(
        extra_json_schema={
            "pattern": r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)"
            r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]+\.?[0-9]*|\.[0-9]+))?$"
        }
    ),
]
"""An amount as Kubernetes writes it: `515m`, `5712464Ki`, or a whole number."""
PercentOrQuantity: TypeAlias = int | str
"""A whole number is a percentage, a text a quantity."""
Timestamp: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Duration: TypeAlias = str
"""As Go writes it: `5m0s`."""

Resources: TypeAlias = dict[str, Quantity]
Free: TypeAlias = dict[str, Any]
"""Fields that Springtide does not know."""
