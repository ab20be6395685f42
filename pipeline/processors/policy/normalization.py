"""CPU normalization: how many normal CPUs each CPU of a node is, by its model (colocation 13).

Owes the rest: the section `cpu-normalization-config`, the ratio that it comes to for a node, and
the annotation that says it. Ratios are decimals: what is compared are the digits that are written.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import Section, keys_of
from pipeline.topics.nodes import NodeRecord

RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
"""Annotation of a Node."""
ENABLED: Final = "node.koordinator.sh/cpu-normalization-enabled"
"""Label of a Node; comes over what the section says."""
CPU_INFO: Final = "node.koordinator.sh/cpu-basic-info"
"""Annotation of a node's NodeResourceTopology."""

SMALLEST_RATIO: Final = 1
LARGEST_RATIO: Final = 5

_HUNDREDTH: Final = Decimal("0.01")
_DECIMAL: Final = re.compile(r"\d{1,18}(\.\d{0,18})?", re.ASCII)
# What Go takes for a bool.
_BOOLS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The ratios of one model of CPU, by whether it runs two threads a core, and its turbo."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class Normalization(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one place says: the cluster, or an entry of `nodeConfigs`. An entry of `ratio_model`
    replaces that of the same model."""

    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, Model] | None = None


class CpuInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a node's CPUs."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False


def problems_of(of: Normalization) -> Iterator[tuple[str, str]]:
    """Every ratio that is out of range, as our name of the field and what is wrong with it."""
    if of.default_ratio is not None and not _is_ratio(of.default_ratio):
        yield "default_ratio", f"defaultRatio is {_refused(of.default_ratio)}"
    for name, model in (of.ratio_model or {}).items():
        for field, key in keys_of(Model).items():
            ratio = getattr(model, field)
            if ratio is not None and not _is_ratio(ratio):
                yield "ratio_model", f"ratioModel {name!r:.100}: {key} is {_refused(ratio)}"


NORMALIZATION: Final = Section("cpu-normalization-config", Normalization(enable=False), problems_of)


def ratio_text(of: Normalization, labels: Mapping[str, str], cpu_info: CpuInfo | None) -> str:
    """What the annotation `RATIO` of a node is to say, with two decimals: 1 where it is off.

    Raises InvalidPolicyError where the CPU is unknown, nobody says a ratio for it, or the label or
    the ratio cannot be used: then the annotation stays as it is.
    """
    if not is_on(of, labels):
        return "1.00"
    if cpu_info is None:
        raise InvalidPolicyError(
            "nothing is known of the node's CPU", hint=f"annotation {CPU_INFO} of its topology"
        )
    model = (of.ratio_model or {}).get(cpu_info.cpu_model, Model())
    ratio = _ratio_of(model, cpu_info)
    if ratio is None:
        ratio = of.default_ratio
    if ratio is None:
        raise InvalidPolicyError(
            f"{NORMALIZATION.key} has no ratio for {cpu_info.cpu_model!r:.100}, "
            f"hyper-threading {_state(cpu_info.hyper_thread_enabled)}, "
            f"turbo {_state(cpu_info.turbo_enabled)}",
            hint="set it in ratioModel, or set defaultRatio",
        )
    if not _is_ratio(ratio):
        raise InvalidPolicyError(f"the ratio of {cpu_info.cpu_model!r:.100} is {_refused(ratio)}")
    return f"{Decimal(repr(ratio)).quantize(_HUNDREDTH, ROUND_HALF_UP)}"


def is_on(of: Normalization, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels says what its CPUs are. Raises InvalidPolicyError where its
    own label cannot be read."""
    label = labels.get(ENABLED)
    if label is None:
        return bool(of.enable)
    if label not in _BOOLS:
        raise InvalidPolicyError(f"label {ENABLED} is {label!r:.60}, neither true nor false")
    return _BOOLS[label]


def node_ratio(node: NodeRecord, cpu_info: CpuInfo | None) -> str | None:
    """`ratio_text` of this node; None while no usable policy was ever read, and its annotation is
    not to be touched."""
    of = msgspec.json.decode(node.cpu_normalization, type=Normalization | None)
    return None if of is None else ratio_text(of, node.labels, cpu_info)


def _ratio_of(model: Model, of: CpuInfo) -> float | None:
    if of.hyper_thread_enabled:
        ratio = model.hyper_thread_enabled_ratio
        return model.hyper_thread_turbo_enabled_ratio if of.turbo_enabled else ratio
    return model.turbo_enabled_ratio if of.turbo_enabled else model.base_ratio


def _is_ratio(ratio: float) -> bool:
    return SMALLEST_RATIO <= ratio <= LARGEST_RATIO


def _refused(ratio: float) -> str:
    return f"{ratio:g}, allowed is {SMALLEST_RATIO} to {LARGEST_RATIO}"


def _state(is_on: bool) -> str:
    return "on" if is_on else "off"


def read_cpu_info(annotations: Mapping[str, str]) -> CpuInfo | None:
    """What the annotations of a node's NodeResourceTopology say of its CPUs, None if nothing.

    Raises InvalidPolicyError for what cannot be read.
    """
    text = annotations.get(CPU_INFO)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=CpuInfo)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {CPU_INFO}: {error!s:.200}") from error


def read_ratio(annotations: Mapping[str, str]) -> Decimal | None:
    """The ratio that a Node's annotation says, None if none does.

    Raises InvalidPolicyError for what is no decimal number, and for one that is out of range.
    """
    text = annotations.get(RATIO)
    if text is None:
        return None
    ratio = _decimal(text)
    if ratio is None or not SMALLEST_RATIO <= ratio <= LARGEST_RATIO:
        raise InvalidPolicyError(
            f"annotation {RATIO} is {text!r:.60}, no number from {SMALLEST_RATIO} to "
            f"{LARGEST_RATIO}"
        )
    return ratio


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None
