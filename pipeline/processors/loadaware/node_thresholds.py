"""The thresholds that apply to a node, and the kind of usage that they limit.

The extender and the cluster actuator both select them here: a node that refuses pods by one rule
must not count as cool by another.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.object_records import USAGE_THRESHOLDS
from pipeline.processors.loadaware.loadaware_args import (
    Aggregated,
    LoadAwareArgs,
    PercentByResource,
    span_seconds,
)
from pipeline.processors.policy.config_sections import (
    canonical_keys,
    convert,
    json_keys,
    read_object,
    unknown_keys,
)
from pipeline.topics.node_state import AGGREGATIONS

ANNOTATION: Final = USAGE_THRESHOLDS

USAGE: Final = "usage"
PROD: Final = "prod"
AGGREGATED: Final = "aggregated_usage"


class Limits(NamedTuple):
    """Thresholds in percent by resource, and the `kind` of usage that they are for: `USAGE`, `PROD`
    or `AGGREGATED`, the last with a statistic and its span (0: the longest that there is)."""

    thresholds: Mapping[str, int]
    kind: str = USAGE
    statistic: str = ""
    span_seconds: int = 0

    @property
    def usage(self) -> tuple[str, str, int]:
        """The usage that is compared."""
        return self.kind, self.statistic, self.span_seconds

    @property
    def are_any(self) -> bool:
        return any(self.thresholds.values())


class _NodeThresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    usage_thresholds: PercentByResource | None = None
    prod_usage_thresholds: PercentByResource | None = None
    aggregated_usage: Aggregated | None = None


def select_limits(args: LoadAwareArgs, annotation: str | None, *, is_prod: bool) -> Limits:
    """The thresholds for a pod on a node with this annotation: for Prod if the pod is Prod and
    thresholds for Prod exist, else for aggregated usage if these exist, else for usage.

    The annotation replaces each of the three as a whole. An invalid annotation is ignored:
    `problem` says why.
    """
    own = _valid_thresholds(annotation)
    prod = own.prod_usage_thresholds or args.prod_usage_thresholds
    if is_prod and any(prod.values()):
        return Limits(prod, PROD)
    for each in (own.aggregated_usage, args.aggregated):
        if each is not None and each.usage_thresholds and each.usage_aggregation_type:
            span = span_seconds(each.usage_aggregated_duration) or 0
            return Limits(each.usage_thresholds, AGGREGATED, each.usage_aggregation_type, span)
    return Limits(own.usage_thresholds or args.usage_thresholds)


@lru_cache(maxsize=1024)
def _valid_thresholds(annotation: str | None) -> _NodeThresholds:
    try:
        own: _NodeThresholds = read_node_thresholds(annotation)
    except InvalidPolicyError:
        return _NodeThresholds()
    return own


def read_node_thresholds(annotation: str | None) -> Any:
    """The thresholds in a node's annotation. Raises InvalidPolicyError if they are invalid."""
    if not annotation:
        return _NodeThresholds()
    own = convert(read_object(annotation), _NodeThresholds)
    aggregated = own.aggregated_usage or Aggregated()
    for percents in (
        own.usage_thresholds, own.prod_usage_thresholds, aggregated.usage_thresholds
    ):  # fmt: skip
        for name, percent in (percents or {}).items():
            if not 0 <= percent <= 100:
                raise InvalidPolicyError(f"{percent} for {name:.80} is not from 0 to 100")
    if aggregated.usage_aggregation_type not in ("", *AGGREGATIONS):
        raise InvalidPolicyError(
            f"{aggregated.usage_aggregation_type!r:.80} is not an aggregation type"
        )
    if span_seconds(aggregated.usage_aggregated_duration) is None:
        raise InvalidPolicyError(f"{aggregated.usage_aggregated_duration!r:.80} is not a duration")
    return own


@lru_cache(maxsize=256)
def problem(annotation: str | None) -> str | None:
    """The first problem of a node's annotation or its keys; None without any."""
    try:
        read_node_thresholds(annotation)
        wrong = next(_unread(annotation), None)
    except InvalidPolicyError as error:
        wrong = error.message
    return None if wrong is None else f"annotation {ANNOTATION}: {wrong}"


def _unread(annotation: str | None) -> Iterator[str]:
    """Unknown keys, which may be misspelt."""
    tree = read_object(annotation) if annotation else {}
    yield from unknown_keys(tree, json_keys(_NodeThresholds).values())
    aggregated = (
        canonical_keys(tree, json_keys(_NodeThresholds).values()).get("aggregatedUsage") or {}
    )
    yield from unknown_keys(aggregated, json_keys(Aggregated).values())
