"""The type of options that take a duration."""

import re
from typing import Any, Final

import click

from pipeline.processors.kubernetes.durations import timestamp_seconds

_DAYS: Final = re.compile(r"\A(\d{1,9})d", re.ASCII)


class Duration(click.ParamType):
    """A duration such as `90s`, `15m`, `6h`, `7d` or `1d12h`; converted to seconds. A number
    without a unit is refused: it could be anything."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds, from one to those of a year."""
        # Go's durations have no days.
        text = _DAYS.sub(lambda days: f"{24 * int(days[1])}h", str(value))
        seconds = timestamp_seconds(text)
        if seconds is None:
            self.fail(
                f"{value!r} is not a duration such as 90s, 15m, 6h or 7d, from 1s to 365d",
                param,
                ctx,
            )
        return float(seconds)
