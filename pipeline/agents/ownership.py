"""Ownership of a partition, shared by everything that works on it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Ownership:
    """Whether this worker still owns `partition`; `epoch` is the offset of its claim.

    `owned` turns false when the partition is revoked. Check it after every await and write nothing
    then: another worker may own the partition already.
    """

    partition: int
    epoch: int
    owned: bool = True
