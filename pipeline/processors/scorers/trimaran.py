"""Arguments that the plugins of scheduler-plugins' Trimaran share.

Keys and defaults are upstream's. Upstream silently replaces an invalid value by its default; here
`notes` reports it.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeVar

import msgspec

from pipeline.processors.scorers.scorer import ScorerArgs, Tree

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


def notes(tree: Tree, args: TrimaranArgs) -> Iterator[str]:
    """`notes` of a Trimaran plugin: values that defaults replace, and unused sources of metrics."""
    effective = msgspec.to_builtins(args)
    for key, value in msgspec.to_builtins(msgspec.convert(tree, type(args))).items():
        if key not in _SOURCES and key in effective and effective[key] != value:
            yield f"{key}: {value!r:.80} is invalid, {effective[key]!r:.80} is used"
    if any(key in tree for key in _SOURCES):
        yield "usage comes from the state table, not from a watcher or provider"


def _provider(stated: MetricProvider) -> MetricProvider:
    if stated.type is None:
        return msgspec.structs.replace(stated, type="KubernetesMetricsServer")
    if stated.type == "Prometheus" and stated.insecure_skip_verify is None:
        return msgspec.structs.replace(stated, insecure_skip_verify=True)
    return stated
