"""The type of options that take a duration."""

from typing import Any

import click

from pipeline.processors.kubernetes.durations import timestamp_seconds


class Duration(click.ParamType):
    """A duration such as `90s`, `5m` or `1h30m`, or `7d`, or a number of seconds; converted to
    seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds, from one to those of a year."""
        text = str(value)
        days = text.removesuffix("d")
        if days != text and days.isascii() and days.isdecimal():
            text = f"{24 * int(days[:9])}h"
        seconds = timestamp_seconds(f"{text}s" if text[-1:].isdigit() else text)
        if seconds is None:
            self.fail(
                f"{value!r} is not a duration such as 90s, 5m, 1h or 7d, from 1s to 365d",
                param,
                ctx,
            )
        return float(seconds)
