"""Thresholds by the time of day: higher in the valley of the day's load, lower at its peak.

Owes the rest: which thresholds hold at a moment, by a clock on the wall of the time zone that is
named; a window that begins before midnight and ends after it belongs to the day on which it begins.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.resource_names import objection
from pipeline.processors.loadaware.loadaware_args import Aggregated, LoadAwareArgs

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

Time = Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
Percents = dict[str, Annotated[int, Meta(ge=0, le=100)]]


class _Args(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):  # fmt: skip
    """Every key known, none that is not."""


class Hours(_Args, frozen=True, kw_only=True):
    """From a time of day to another, on some days; the whole day where both are the same. What it
    says takes the place of LoadAware's thresholds, each of the three as a whole."""

    start: Time = msgspec.field(name="from")
    end: Time = msgspec.field(name="to")
    days: tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...] = DAYS
    usage_thresholds: Percents | None = None
    prod_usage_thresholds: Percents | None = None
    aggregated_usage_thresholds: Percents | None = None

    @property
    def named(self) -> Iterator[str]:
        """The resources that have thresholds."""
        yield from self.usage_thresholds or ()
        yield from self.prod_usage_thresholds or ()
        yield from self.aggregated_usage_thresholds or ()


class TimeSharedThresholdsArgs(_Args, frozen=True, kw_only=True):
    """Hours in the order in which they count: the first that is now."""

    api_version: str | None = None
    kind: str | None = None
    time_zone: str = "UTC"
    windows: tuple[Hours, ...] = ()


def read_args(tree: Mapping[str, Any]) -> TimeSharedThresholdsArgs:
    """The arguments in an object. Raises InvalidPolicyError that names what is of no use."""
    try:
        args = msgspec.convert(tree, TimeSharedThresholdsArgs)
        ZoneInfo(args.time_zone)
        _must_be_resources(args)
    except msgspec.ValidationError as error:
        raise InvalidPolicyError(f"TimeSharedThresholdsArgs: {error}") from error
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidPolicyError(
            f"TimeSharedThresholdsArgs: timeZone: {tree.get('timeZone')!r:.80} is not known here"
        ) from error
    return args


def _must_be_resources(args: TimeSharedThresholdsArgs) -> None:
    for place, hours in enumerate(args.windows):
        for name in hours.named:
            if wrong := objection(name):
                raise msgspec.ValidationError(f"windows[{place}]: {wrong}")


def in_force(args: TimeSharedThresholdsArgs, usual: LoadAwareArgs, now: float) -> LoadAwareArgs:
    """LoadAware's arguments as they hold at `now`, Unix time."""
    local = datetime.fromtimestamp(now, ZoneInfo(args.time_zone))
    found = next((hours for hours in args.windows if _is_now(hours, local)), None)
    if found is None:
        return usual
    of_usage, of_prod = found.usage_thresholds, found.prod_usage_thresholds
    aggregated = usual.aggregated
    if found.aggregated_usage_thresholds is not None:
        aggregated = msgspec.structs.replace(
            aggregated or Aggregated(), usage_thresholds=found.aggregated_usage_thresholds
        )
    return msgspec.structs.replace(
        usual,
        usage_thresholds=usual.usage_thresholds if of_usage is None else of_usage,
        prod_usage_thresholds=usual.prod_usage_thresholds if of_prod is None else of_prod,
        aggregated=aggregated,
    )


def looking_at_all(args: TimeSharedThresholdsArgs, usual: LoadAwareArgs) -> LoadAwareArgs:
    """LoadAware's arguments, with which the resources of all hours are looked at at every hour:
    what is counted of pods must not change with the thresholds."""
    of_hours = {name for hours in args.windows for name in hours.named}
    every = sorted({*usual.resources, *of_hours})
    return msgspec.structs.replace(usual, supported_resources=tuple(every))


def _is_now(hours: Hours, local: datetime) -> bool:
    today = DAYS[local.weekday()]
    yesterday = DAYS[(local - timedelta(days=1)).weekday()]
    time = f"{local:%H:%M}"
    if hours.start < hours.end:
        return today in hours.days and hours.start <= time < hours.end
    return (today in hours.days and time >= hours.start) or (
        yesterday in hours.days and time < hours.end
    )
