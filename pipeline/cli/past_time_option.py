"""The type of options that take a time in the past."""

from typing import Any

import click

from pipeline.cli.duration_option import Duration
from pipeline.clock import SystemClock
from pipeline.times import parse_time


class PastTime(click.ParamType):
    """A time such as `2023-11-14T22:13:30Z`, or how long it is ago, such as `7d`; converted to Unix
    seconds."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the Unix time."""
        now = SystemClock().now()
        try:
            time = parse_time(str(value))
        except ValueError:
            if "T" in str(value):
                self.fail(f"{value!r} is not a time such as 2023-11-14T22:13:30Z", param, ctx)
            return now - Duration().convert(value, param, ctx)
        if time > now:
            self.fail(f"{value!r} is in the future", param, ctx)
        return time
