"""The type of options that take a time in the past."""

from typing import Any

import click

from pipeline.cli.duration_option import Duration
from pipeline.clock import SystemClock
from pipeline.times import parse_time


class PastTime(click.ParamType):
    """A time such as `2023-11-14T22:13:30Z`, or how long it is ago, such as `7d`; converted to Unix
    seconds. Of a topic that keeps records for `kept_days` no earlier time is asked."""

    name = "time"

    def __init__(self, kept_days: int | None = None) -> None:
        self._kept_days = kept_days

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the Unix time."""
        text, now = str(value), SystemClock().now()
        try:
            time = parse_time(text)
        except ValueError:
            try:
                time = now - Duration().convert(text, param, ctx)
            except click.BadParameter:
                self.fail(
                    f"{text!r} is not a time such as 2023-11-14T22:13:30Z, nor a duration such as "
                    "90s, 15m, 6h or 7d, from 1s to 365d",
                    param,
                    ctx,
                )
        if time > now:
            self.fail(f"{text!r} is in the future", param, ctx)
        if self._kept_days is not None and now - time > self._kept_days * 86_400.0:
            self.fail(f"{text!r} is more than {self._kept_days} days ago, and records are kept for "
                      f"so long: give at most {self._kept_days}d", param, ctx)  # fmt: skip
        return time
