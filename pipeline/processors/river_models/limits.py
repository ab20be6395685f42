"""Sizes of declared estimators and of their state."""

from typing import Final

MOST_PARTS: Final = 32
"""Estimators, losses and statistics in one declaration."""
MOST_DEPTH: Final = 6
"""How deeply they are nested."""
MOST_NUMBER: Final = 10_000
"""Largest whole number as an argument: a window of so many values, so many members."""
MOST_TEXT: Final = 100
"""Longest text as an argument."""
MOST_STATE_BYTES: Final = 65_536
"""Largest state of one estimator."""
