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
        text, now = str(value), SystemClock().now()
        try:
            time = parse_time(text)
        except ValueError:
            try:
                return now - Duration().convert(text, param, ctx)
            except click.BadParameter:
                self.fail(
                    f"{text!r} is not a time such as 2023-11-14T22:13:30Z, nor a duration such as "
                    "90s, 15m, 6h or 7d, from 1s to 365d",
                    param,
                    ctx,
                )
        if time > now:
            self.fail(f"{text!r} is in the future", param, ctx)
        return time
