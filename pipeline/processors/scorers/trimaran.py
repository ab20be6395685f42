"""What the arguments of scheduler-plugins' Trimaran plugins have in common.

Keys and defaults are upstream's. Upstream silently replaces an invalid value by its default; here
`notes` also says so.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeVar

import msgspec

from pipeline.processors.scorers.scorer import Scorer, ScorerArgs, Tree

_SOURCES: Final = ("watcherAddress", "metricProvider")


class MetricProvider(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True,
    omit_defaults=True,
):  # fmt: skip
    """Where upstream's plugins fetch metrics if there is no `watcherAddress`."""

    type: Literal["KubernetesMetricsServer", "Prometheus", "SignalFx"] | None = None
    address: str | None = None
    token: str | None = None
    insecure_skip_verify: bool | None = None


class TrimaranArgs(ScorerArgs, frozen=True, kw_only=True, omit_defaults=True):
    """Read for compatibility: usage comes from the state table."""

    watcher_address: str | None = None
    metric_provider: MetricProvider | None = None


Args = TypeVar("Args", bound=TrimaranArgs)


def with_defaults(args: Args, **values: Any) -> Args:
    """The arguments with these values, and with the default metric provider."""
    if args.watcher_address is None:
        values["metric_provider"] = _provider(args.metric_provider or MetricProvider())
    return msgspec.structs.replace(args, **values)


def notes(scorer: Callable[[], Scorer[Any]]) -> Callable[[Tree, Any], Iterator[str]]:
    """`notes` of a Trimaran plugin: values that are replaced by defaults, and sources of metrics
    that are not used."""

    def found(tree: Tree, args: Any) -> Iterator[str]:
        effective = msgspec.to_builtins(args)
        for key, value in msgspec.to_builtins(scorer().stated(tree)).items():
            if key not in _SOURCES and key in effective and effective[key] != value:
                yield f"{key}: {value!r:.80} is invalid, {effective[key]!r:.80} is used"
        if any(key in tree for key in _SOURCES):
            yield "usage comes from the state table, not from a watcher or provider"

    return found


def _provider(given: MetricProvider) -> MetricProvider:
    if given.type is None:
        return msgspec.structs.replace(given, type="KubernetesMetricsServer")
    if given.type == "Prometheus" and given.insecure_skip_verify is None:
        return msgspec.structs.replace(given, insecure_skip_verify=True)
    return given
