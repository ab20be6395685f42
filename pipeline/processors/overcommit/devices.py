"""What the devices of a node come to as resources of the node (colocation 13).

Owes the rest: of a Device object, as its vendor's daemon keeps it, whole amounts of the node's
extended resources, None where one goes from the node, and the labels that follow the devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.topics.resource_amounts import parse_quantity

GPU: Final = "koordinator.sh/gpu"
GPU_SHARED: Final = "koordinator.sh/gpu.shared"
GPU_CORE: Final = "koordinator.sh/gpu-core"
SUMMED: Final = (
    GPU_CORE,
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
)
"""What a device may say of itself. Another name, such as `cpu`, is not for it to give to a node."""
RDMA: Final = "koordinator.sh/rdma"

VENDOR: Final = "node.koordinator.sh/gpu-vendor"
LABELS: Final = (
    VENDOR,
    "node.koordinator.sh/gpu-model",
    "node.koordinator.sh/gpu-driver-version",
)

_WHOLE: Final = 100
"""What one device is."""
_MOST: Final = 2**53


class _Entry(msgspec.Struct, frozen=True):
    type: str = ""
    health: bool = False
    resources: dict[str, str | int | float] | None = None


class _Spec(msgspec.Struct, frozen=True):
    devices: tuple[_Entry, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None


class _Device(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def gpu_resources(device: Mapping[str, Any] | None, *, shared: bool) -> dict[str, int | None]:
    """What the healthy GPUs of a Device object come to; nothing where there is none, or no object.

    `koordinator.sh/gpu` is what their cores come to, for NVIDIA's alone and where no vendor is
    named. `koordinator.sh/gpu.shared` is there only if `shared`. Raises InvalidRecordError for an
    object that cannot be read.
    """
    read = _read(device)
    gpus = [one.resources or {} for one in _healthy(read, "gpu")]
    found: dict[str, int | None] = dict.fromkeys((GPU, GPU_SHARED, *SUMMED))
    if not gpus:
        return found
    for name in SUMMED:
        if said := [one[name] for one in gpus if name in one]:
            found[name] = _sum(said, name)
    if (read.metadata.labels or {}).get(VENDOR, "") in ("", "nvidia"):
        found[GPU] = found[GPU_CORE]
    if shared:
        found[GPU_SHARED] = _WHOLE * len(gpus)
    return found


def rdma_resources(device: Mapping[str, Any] | None) -> dict[str, int | None]:
    """What the healthy RDMA devices of a Device object come to: what each says, or a whole one.
    Raises InvalidRecordError for an object that cannot be read."""
    said = [(one.resources or {}).get(RDMA, _WHOLE) for one in _healthy(_read(device), "rdma")]
    return {RDMA: _sum(said, RDMA) if said else None}


def gpu_labels(device: Mapping[str, Any] | None) -> dict[str, str | None]:
    """The labels that a node has from its Device object: what that says, and None, so that they go,
    where there is no healthy GPU: upstream leaves them there (colocation 17)."""
    read = _read(device)
    if not any(_healthy(read, "gpu")):
        return dict.fromkeys(LABELS)
    labels = read.metadata.labels or {}
    return {name: labels[name] for name in LABELS if name in labels}


def _read(device: Mapping[str, Any] | None) -> _Device:
    try:
        return msgspec.convert(device or {}, _Device)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidRecordError(f"Device object: {error!s:.200}") from error


def _healthy(of: _Device, kind: str) -> Iterator[_Entry]:
    return (one for one in of.spec.devices or () if one.health and one.type == kind)


def _sum(quantities: Sequence[str | int | float], name: str) -> int:
    try:
        total = sum((parse_quantity(one) for one in quantities), Decimal(0))
    except InvalidRecordError as error:
        raise InvalidRecordError(f"Device object: {name:.100}: {error.message}") from error
    if not 0 <= total <= _MOST:
        raise InvalidRecordError(f"Device object: {name:.100} comes to {total:.6g}")
    return int(total.to_integral_value(ROUND_CEILING))
