"""Which thresholds hold for a node, and for which usage (scheduling 1.6, 1.7)."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware.loadaware_args import (
    AGGREGATIONS,
    Aggregated,
    LoadAwareArgs,
    Percents,
    span_seconds,
)
from pipeline.processors.policy.config_sections import (
    convert,
    keys_of,
    named,
    read_object,
    unknown_keys,
)

ANNOTATION: Final = "scheduling.koordinator.sh/usage-thresholds"

USAGE: Final = "usage"
PROD: Final = "prod"
AGGREGATED: Final = "aggregated_usage"


class Limits(NamedTuple):
    """Thresholds in percent by resource, and what they are for: `USAGE`, `PROD` or `AGGREGATED`, of
    that with the statistic and its span (0: the longest there is)."""

    thresholds: Mapping[str, int]
    of: str = USAGE
    statistic: str = ""
    span_seconds: int = 0

    @property
    def are_any(self) -> bool:
        return any(self.thresholds.values())


class _Own(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    usage_thresholds: Percents | None = None
    prod_usage_thresholds: Percents | None = None
    aggregated_usage: Aggregated | None = None


def limits_of(args: LoadAwareArgs, annotation: str | None, *, is_prod: bool) -> Limits:
    """What holds for a pod on a node with this annotation: those for Prod if there are any and the
    pod is, else those of aggregated usage if there are any, else those of usage.

    Each of the three comes from the annotation as a whole where it has it. An annotation that
    cannot be used, or has a threshold that is none, is left alone: `problem` tells of it.
    """
    try:
        own = read_own(annotation)
    except InvalidPolicyError:
        own = _Own()
    prod = own.prod_usage_thresholds or args.prod_usage_thresholds
    if is_prod and any(prod.values()):
        return Limits(prod, PROD)
    for one in (own.aggregated_usage, args.aggregated):
        if one is not None and one.usage_thresholds and one.usage_aggregation_type:
            span = span_seconds(one.usage_aggregated_duration) or 0
            return Limits(one.usage_thresholds, AGGREGATED, one.usage_aggregation_type, span)
    return Limits(own.usage_thresholds or args.usage_thresholds)


def read_own(annotation: str | None) -> Any:
    """What a node's annotation says. Raises InvalidPolicyError for what cannot be used."""
    if not annotation:
        return _Own()
    own = convert(read_object(annotation), _Own)
    aggregated = own.aggregated_usage or Aggregated()
    for percents in (
        own.usage_thresholds, own.prod_usage_thresholds, aggregated.usage_thresholds
    ):  # fmt: skip
        for name, percent in (percents or {}).items():
            if not 0 <= percent <= 100:
                raise InvalidPolicyError(f"{percent} for {name:.80} is not from 0 to 100")
    if aggregated.usage_aggregation_type not in ("", *AGGREGATIONS):
        raise InvalidPolicyError(f"no aggregation type {aggregated.usage_aggregation_type!r:.80}")
    if span_seconds(aggregated.usage_aggregated_duration) is None:
        raise InvalidPolicyError(f"no duration {aggregated.usage_aggregated_duration!r:.80}")
    return own


@lru_cache(maxsize=256)
def problem(annotation: str | None) -> str | None:
    """What is wrong with a node's annotation, or with its keys; None for nothing."""
    try:
        read_own(annotation)
        wrong = next(_unread(annotation), None)
    except InvalidPolicyError as error:
        wrong = error.message
    return None if wrong is None else f"annotation {ANNOTATION}: {wrong}"


def _unread(annotation: str | None) -> Iterator[str]:
    """Keys that may be written wrongly: what they say does not hold."""
    found = read_object(annotation) if annotation else {}
    yield from unknown_keys(found, keys_of(_Own).values(), only_near=False)
    within = named(found, keys_of(_Own).values()).get("aggregatedUsage") or {}
    yield from unknown_keys(within, keys_of(Aggregated).values(), only_near=False)
