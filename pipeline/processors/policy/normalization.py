"""CPU normalization: the performance of a node's CPU relative to a normal CPU, by its model.

The section `cpu-normalization-config`, the ratio of a node, and its annotation. Ratios are
decimals, exactly as written.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.config_sections import Section, json_keys
from pipeline.topics.nodes import NodeRecord

RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
"""Annotation of a Node."""
ENABLED: Final = "node.koordinator.sh/cpu-normalization-enabled"
"""Label of a Node; overrides the section."""
CPU_INFO: Final = "node.koordinator.sh/cpu-basic-info"
"""Annotation of a node's NodeResourceTopology."""

SMALLEST_RATIO: Final = 1
LARGEST_RATIO: Final = 5

_HUNDREDTH: Final = Decimal("0.01")
_DECIMAL: Final = re.compile(r"\d{1,18}(\.\d{0,18})?", re.ASCII)
# The texts that Go parses as bool.
_BOOLS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class ModelRatios(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The ratios of a CPU model, by hyper-threading and turbo."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class Normalization(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The settings of the cluster, or of an entry of `nodeConfigs`. A model of `ratio_model`
    replaces the same model."""

    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, ModelRatios] | None = None


class CpuInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Model and features of a node's CPUs."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False


def problems_of(config: Normalization) -> Iterator[tuple[str, str]]:
    """Every ratio that is out of range: the name of its field, and the problem."""
    if config.default_ratio is not None and not _is_ratio(config.default_ratio):
        yield "default_ratio", f"defaultRatio is {_refused(config.default_ratio)}"
    for name, model in (config.ratio_model or {}).items():
        for field, key in json_keys(ModelRatios).items():
            ratio = getattr(model, field)
            if ratio is not None and not _is_ratio(ratio):
                yield "ratio_model", f"ratioModel {name!r:.100}: {key} is {_refused(ratio)}"


NORMALIZATION: Final = Section("cpu-normalization-config", Normalization(enable=False), problems_of)


def ratio_text(config: Normalization, labels: Mapping[str, str], cpu_info: CpuInfo | None) -> str:
    """The annotation `RATIO` of a node, with two decimals; 1 if normalization is off.

    Raises InvalidPolicyError if the CPU is unknown, has no ratio, or label or ratio are invalid;
    the annotation then stays.
    """
    if not is_on(config, labels):
        return "1.00"
    if cpu_info is None:
        raise InvalidPolicyError(
            "the node's CPU is unknown", hint=f"its topology has no annotation {CPU_INFO}"
        )
    model = (config.ratio_model or {}).get(cpu_info.cpu_model, ModelRatios())
    ratio = _model_ratio(model, cpu_info)
    if ratio is None:
        ratio = config.default_ratio
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


def is_on(config: Normalization, labels: Mapping[str, str]) -> bool:
    """Whether normalization is on for a node with these labels. Raises InvalidPolicyError for an
    invalid label."""
    label = labels.get(ENABLED)
    if label is None:
        return bool(config.enable)
    if label not in _BOOLS:
        raise InvalidPolicyError(f"label {ENABLED} is {label!r:.60}, neither true nor false")
    return _BOOLS[label]


def node_ratio(node: NodeRecord, cpu_info: CpuInfo | None) -> str | None:
    """`ratio_text` of this node; None before the first valid policy: leave its annotation
    unchanged."""
    config = msgspec.json.decode(node.cpu_normalization, type=Normalization | None)
    return None if config is None else ratio_text(config, node.labels, cpu_info)


def _model_ratio(model: ModelRatios, cpu: CpuInfo) -> float | None:
    if cpu.hyper_thread_enabled:
        ratio = model.hyper_thread_enabled_ratio
        return model.hyper_thread_turbo_enabled_ratio if cpu.turbo_enabled else ratio
    return model.turbo_enabled_ratio if cpu.turbo_enabled else model.base_ratio


def _is_ratio(ratio: float) -> bool:
    return SMALLEST_RATIO <= ratio <= LARGEST_RATIO


def _refused(ratio: float) -> str:
    return f"{ratio:g}, allowed is {SMALLEST_RATIO} to {LARGEST_RATIO}"


def _state(is_on: bool) -> str:
    return "on" if is_on else "off"


def read_cpu_info(annotations: Mapping[str, str]) -> CpuInfo | None:
    """The CPUs by the annotations of a node's NodeResourceTopology, None without the annotation.
    Raises InvalidPolicyError for an invalid annotation."""
    text = annotations.get(CPU_INFO)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=CpuInfo)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {CPU_INFO}: {error!s:.200}") from error


def read_ratio(annotations: Mapping[str, str]) -> Decimal | None:
    """The ratio in a Node's annotation, None without the annotation. Raises InvalidPolicyError if
    it is not a decimal number, or out of range."""
    text = annotations.get(RATIO)
    if text is None:
        return None
    ratio = Decimal(text) if _DECIMAL.fullmatch(text) else None
    if ratio is None or not SMALLEST_RATIO <= ratio <= LARGEST_RATIO:
        raise InvalidPolicyError(
            f"annotation {RATIO} is {text!r:.60}, not a number from {SMALLEST_RATIO} to "
            f"{LARGEST_RATIO}"
        )
    return ratio
