"""The type of options that take a number in a range."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number in a range, as `click.FloatRange`, which lets NaN pass."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
