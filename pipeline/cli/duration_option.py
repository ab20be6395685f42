"""The type of options that take a duration."""

import re
from typing import Any, Final

import click

from pipeline.processors.kubernetes.durations import go_seconds, timestamp_seconds

_DAYS: Final = re.compile(r"\A(\d{1,9})d", re.ASCII)


class Duration(click.ParamType):
    """A duration such as `90s`, `15m`, `6h`, `7d` or `1d12h`; converted to seconds. A number
    without a unit is refused: it could be anything."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds, from one to those of a year."""
        seconds = timestamp_seconds(_without_days(str(value)))
        if seconds is None:
            self.fail(
                f"{value!r} is not a duration such as 90s, 15m, 6h or 7d, from 1s to 365d",
                param,
                ctx,
            )
        return float(seconds)


class SettingSeconds(click.ParamType):
    """Seconds of a setting: a number, or a `Duration`. The settings check the number."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return a duration as a number of seconds, and any other text as it is."""
        seconds = go_seconds(_without_days(str(value)))
        return str(value) if seconds is None else f"{seconds.normalize():f}"


def _without_days(text: str) -> str:
    # Go's durations have no days.
    return _DAYS.sub(lambda days: f"{24 * int(days[1])}h", text)
