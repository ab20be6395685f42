"""Ownership of a partition, shared by everything that works on it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Ownership:
    """Whether this worker still owns `partition`; `epoch` is the offset of its claim.

    `owned` turns false when the partition is revoked: check it after every await.
    """

    partition: int
    epoch: int
    owned: bool = True
