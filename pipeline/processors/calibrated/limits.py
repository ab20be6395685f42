"""Sizes of the calibrated state of a node in a worker, and the risks that may be declared."""

from typing import Final

HISTORY_BYTES: Final = 2 * 1024 * 1024
"""Histories of the pods of a node. With the other models of 4096 pods they fit into a record of
`checkpoints`, which may have 8 MiB: a node whose state does not fit would start empty."""

DEPARTED_BYTES: Final = 256 * 1024
"""Histories of pods that ended, for pods to come: as many as of most nodes' running pods."""

LOWEST_RISK: Final = 0.001
HIGHEST_RISK: Final = 0.5
"""Bounds of a declared risk: one miss in 1,000 predictions, and every other prediction."""
