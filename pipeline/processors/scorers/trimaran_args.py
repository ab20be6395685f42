"""What the arguments of Trimaran's plugins may say, with upstream's names and defaults (scheduling
3.1 to 3.4).

Owes the rest: arguments as they are pasted from a KubeSchedulerConfiguration, every key known or
refused by name. A value that upstream replaces by its default without a word is replaced here, too,
and `oddities` says so.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.topics.resource_amounts import MEASURED, millicores

_MULTIPLIER: Final = re.compile(r"\d{1,6}(\.\d{1,6})?")


class _Args(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True,
    omit_defaults=True,
):  # fmt: skip
    """Every key known, none that is not."""


class MetricProvider(_Args, frozen=True, kw_only=True):
    """Where metrics come from where there is no `watcherAddress`."""

    type: Literal["KubernetesMetricsServer", "Prometheus", "SignalFx"] | None = None
    address: str | None = None
    token: str | None = None
    insecure_skip_verify: bool | None = None


class _Common(_Args, frozen=True, kw_only=True):
    api_version: str | None = None
    kind: str | None = None
    watcher_address: str | None = None
    metric_provider: MetricProvider | None = None


class TargetLoadPackingArgs(_Common, frozen=True, kw_only=True):
    """Without `use_limits`, which is ours, a container is taken to use what it requests, by the
    multiplier, whatever its limit is; with it, as upstream has it, its limit if it has one."""

    target_utilization: int | None = None
    default_requests: dict[str, str | int] | None = None
    default_requests_multiplier: str | None = None
    use_limits: bool = True

    @property
    def default_millicores(self) -> int:
        """What a container is taken to use that asks for nothing."""
        return millicores((self.default_requests or {}).get("cpu", 0))

    @property
    def multiplier(self) -> float:
        return float(self.default_requests_multiplier or 1)


class LoadVariationRiskBalancingArgs(_Common, frozen=True, kw_only=True):
    """`resources`, which is ours, are those that are looked at: any of which there is usage."""

    safe_variance_margin: float | None = None
    safe_variance_sensitivity: float | None = None
    resources: Annotated[tuple[str, ...], Meta(min_length=1)] = ("cpu", "memory")


class LowRiskOverCommitmentArgs(_Common, frozen=True, kw_only=True):
    smoothing_window_size: int | None = None
    risk_limit_weights: dict[str, float] | None = None


Args = TypeVar(
    "Args", TargetLoadPackingArgs, LoadVariationRiskBalancingArgs, LowRiskOverCommitmentArgs
)

_TARGET: Final = 40
_MOST_TARGET: Final = 100
_REQUESTS: Final[Mapping[str, str | int]] = {"cpu": "1000m"}
_MULTIPLIED: Final = "1.5"
_SMOOTHING: Final = 5
_WEIGHT: Final = 0.5


def read_args(tree: Mapping[str, Any], kind: type[Args]) -> Args:
    """The arguments in an object, with defaults. Raises InvalidPolicyError that names what is
    unknown, or of another type."""
    return with_defaults(stated(tree, kind))


def stated(tree: Mapping[str, Any], kind: type[Args]) -> Args:
    """The arguments as they are given. Raises InvalidPolicyError."""
    try:
        args = msgspec.convert(tree, kind)
        if isinstance(args, TargetLoadPackingArgs):
            _check_requests(args)
        if isinstance(args, LoadVariationRiskBalancingArgs):
            _check_resources(args)
    except (msgspec.ValidationError, OverflowError, InvalidRecordError) as error:
        raise InvalidPolicyError(f"{kind.__name__}: {error}") from error
    return args


def _check_requests(args: TargetLoadPackingArgs) -> None:
    if args.default_millicores < 0:
        raise InvalidRecordError("defaultRequests: cpu is less than 0")
    if (args.target_utilization or 0) > _MOST_TARGET:
        raise InvalidRecordError(f"targetUtilization: {args.target_utilization} is over 100")
    multiplier = args.default_requests_multiplier
    if multiplier is not None and not _MULTIPLIER.fullmatch(multiplier):
        wrong = f"{multiplier!r:.80} is no number from 0 on"
        raise InvalidRecordError(f"defaultRequestsMultiplier: {wrong}")


def _check_resources(args: LoadVariationRiskBalancingArgs) -> None:
    for name in args.resources:
        if name not in MEASURED:
            raise InvalidRecordError(f"resources: of {name!r:.80} no usage is measured")


def with_defaults(args: Args) -> Args:
    """The arguments with what holds where they say nothing, or nothing of use."""
    found: dict[str, Any] = {}
    if args.watcher_address is None:
        found["metric_provider"] = _provider(args.metric_provider or MetricProvider())
    if isinstance(args, TargetLoadPackingArgs):
        found |= {
            "target_utilization": _above_zero(args.target_utilization, _TARGET),
            "default_requests": args.default_requests or dict(_REQUESTS),
            "default_requests_multiplier": args.default_requests_multiplier or _MULTIPLIED,
        }
    elif isinstance(args, LoadVariationRiskBalancingArgs):
        found |= {
            "safe_variance_margin": _not_below_zero(args.safe_variance_margin),
            "safe_variance_sensitivity": _not_below_zero(args.safe_variance_sensitivity),
        }
    else:
        weights = args.risk_limit_weights or {}
        found |= {
            "smoothing_window_size": _above_zero(args.smoothing_window_size, _SMOOTHING),
            "risk_limit_weights": {
                name: _share(weights.get(name)) for name in {"cpu": 0, "memory": 0} | weights
            },
        }
    return msgspec.structs.replace(args, **found)


def oddities(args: Args) -> Iterator[str]:
    """What is given, and does not hold."""
    held = msgspec.to_builtins(with_defaults(args))
    for key, value in msgspec.to_builtins(args).items():
        if key in held and held[key] != value and key != "metricProvider":
            yield f"{key}: {value!r:.80} is of no use, {held[key]!r:.80} holds"


def _provider(said: MetricProvider) -> MetricProvider:
    if said.type is None:
        return msgspec.structs.replace(said, type="KubernetesMetricsServer")
    if said.type == "Prometheus" and said.insecure_skip_verify is None:
        return msgspec.structs.replace(said, insecure_skip_verify=True)
    return said


def _above_zero(value: int | None, usual: int) -> int:
    return usual if value is None or value <= 0 else value


def _not_below_zero(value: float | None) -> float:
    return 1.0 if value is None or not value >= 0 else value


def _share(value: float | None) -> float:
    return _WEIGHT if value is None or not 0 <= value <= 1 else value
