"""TimeSharedThresholds: thresholds of LoadAwareScheduling by the time of day.

Higher in the valley of the day's load, lower at its peak, on the clock of a time zone. A window
that begins before midnight and ends after it belongs to the day on which it begins.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.resource_names import resource_name_problem
from pipeline.processors.loadaware.loadaware_args import Aggregated, LoadAwareArgs
from pipeline.processors.policy.selectors import Selector, check_selector
from pipeline.processors.scorers.scorer import ScorerArgs

TIME_SHARED: Final = "TimeSharedThresholds"
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

Time = Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
Thresholds = dict[str, Annotated[int, Meta(ge=0, le=100)]]


class Hours(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):  # fmt: skip
    """From a time of day to another, on some days; the whole day if both are equal. Each of the
    three thresholds that is set replaces that of LoadAware as a whole."""

    start: Time = msgspec.field(name="from")
    end: Time = msgspec.field(name="to")
    days: tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...] = DAYS
    usage_thresholds: Thresholds | None = None
    prod_usage_thresholds: Thresholds | None = None
    aggregated_usage_thresholds: Thresholds | None = None

    @property
    def thresholds(self) -> tuple[Thresholds, ...]:
        """Those of the three that are set."""
        three = (
            self.usage_thresholds, self.prod_usage_thresholds, self.aggregated_usage_thresholds
        )  # fmt: skip
        return tuple(thresholds for thresholds in three if thresholds is not None)


class NodeSelector(
    Selector, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):  # fmt: skip
    """A LabelSelector without unknown keys: misspelt, one would select every Node."""


class TimeSharedThresholdsArgs(ScorerArgs, frozen=True, kw_only=True):
    """The first window that contains the present time counts. The cluster actuator annotates the
    Nodes that `annotate_nodes` selects (None: no Node) with the thresholds of that window."""

    time_zone: str = "UTC"
    windows: tuple[Hours, ...] = ()
    annotate_nodes: NodeSelector | None = None


def read_args(tree: Mapping[str, Any]) -> TimeSharedThresholdsArgs:
    """The arguments in an object. Raises InvalidPolicyError that names the invalid key."""
    try:
        args = msgspec.convert(tree, TimeSharedThresholdsArgs)
        ZoneInfo(args.time_zone)
        _check_windows(args)
        _check_nodes(args)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"TimeSharedThresholdsArgs: {error}") from error
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidPolicyError(
            f"TimeSharedThresholdsArgs: timeZone: {tree.get('timeZone')!r:.80} is not known here"
        ) from error
    return args


def _check_windows(args: TimeSharedThresholdsArgs) -> None:
    for index, hours in enumerate(args.windows):
        for name in chain.from_iterable(hours.thresholds):
            if problem := resource_name_problem(name):
                raise msgspec.ValidationError(f"windows[{index}]: {problem}")
        if args.annotate_nodes is not None and not all(hours.thresholds):
            raise msgspec.ValidationError(
                f"windows[{index}]: an annotation cannot replace thresholds by none: "
                "set 0 for each resource"
            )


def _check_nodes(args: TimeSharedThresholdsArgs) -> None:
    try:
        check_selector(args.annotate_nodes or Selector())
    except InvalidPolicyError as error:
        raise msgspec.ValidationError(f"annotateNodes: {error.message}") from error


def args_in_force(
    args: TimeSharedThresholdsArgs, general: LoadAwareArgs, now: float
) -> LoadAwareArgs:
    """LoadAware's arguments with the thresholds in force at `now`, Unix time."""
    hours = _hours_at(args, now)
    if hours is None:
        return general
    usage, prod = hours.usage_thresholds, hours.prod_usage_thresholds
    aggregated = general.aggregated
    if hours.aggregated_usage_thresholds is not None:
        aggregated = msgspec.structs.replace(
            aggregated or Aggregated(), usage_thresholds=hours.aggregated_usage_thresholds
        )
    return msgspec.structs.replace(
        general,
        usage_thresholds=general.usage_thresholds if usage is None else usage,
        prod_usage_thresholds=general.prod_usage_thresholds if prod is None else prod,
        aggregated=aggregated,
    )


def thresholds_annotation(
    args: TimeSharedThresholdsArgs, general: LoadAwareArgs, now: float
) -> str | None:
    """The annotation by which a Node selects the thresholds in force at `now`, Unix time; None
    outside of every window. Schedulers with the arguments `general` read it."""
    hours = _hours_at(args, now)
    if hours is None:
        return None
    tree: dict[str, Any] = {}
    if hours.usage_thresholds is not None:
        tree["usageThresholds"] = hours.usage_thresholds
    if hours.prod_usage_thresholds is not None:
        tree["prodUsageThresholds"] = hours.prod_usage_thresholds
    if hours.aggregated_usage_thresholds is not None:
        aggregated = general.aggregated or Aggregated()
        statistic = {
            "usageAggregationType": aggregated.usage_aggregation_type,
            "usageAggregatedDuration": aggregated.usage_aggregated_duration,
        }
        # Go cannot read an empty duration, and ignores the whole annotation.
        tree["aggregatedUsage"] = {
            "usageThresholds": hours.aggregated_usage_thresholds,
            **{key: text for key, text in statistic.items() if text},
        }
    return msgspec.json.encode(tree, order="deterministic").decode() if tree else None


def with_all_resources(args: TimeSharedThresholdsArgs, general: LoadAwareArgs) -> LoadAwareArgs:
    """LoadAware's arguments that name the resources of all hours: the amounts that are counted of
    pods must not change with the thresholds."""
    names = {name for hours in args.windows for name in chain.from_iterable(hours.thresholds)}
    resources = tuple(sorted({*general.resources, *names}))
    return msgspec.structs.replace(general, supported_resources=resources)


def _hours_at(args: TimeSharedThresholdsArgs, now: float) -> Hours | None:
    local = datetime.fromtimestamp(now, ZoneInfo(args.time_zone))
    return next((hours for hours in args.windows if _is_now(hours, local)), None)


def _is_now(hours: Hours, local: datetime) -> bool:
    today = DAYS[local.weekday()]
    yesterday = DAYS[(local - timedelta(days=1)).weekday()]
    time = f"{local:%H:%M}"
    if hours.start < hours.end:
        return today in hours.days and hours.start <= time < hours.end
    return (today in hours.days and time >= hours.start) or (
        yesterday in hours.days and time < hours.end
    )
