"""Faults of a chaos run, drawn by a seed: the same seed gives the same faults in the same order.

Every kind of fault occurs once before one occurs again. A fault has a target, one of the processes
that it can meet, and a length. The run starts the next fault when every role works again.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

Kind = Literal[
    "kill", "pause", "broker killed", "broker stopped", "broker paused", "api killed", "api slow",
    "api lying", "etcd killed", "hostile records", "full disk", "clock step", "storm",
]  # fmt: skip
Role = Literal[
    "exporter", "provider", "worker", "watcher", "actuator", "planner", "evictor", "extender",
    "node-actuator", "archive",
]  # fmt: skip

ROLES: Final[Sequence[Role]] = get_args(Role)
PROCESSES: Final = tuple(f"{role}-{number}" for role in ROLES for number in range(2))
_BROKERS: Final = ("broker-0", "broker-1", "broker-2")

TARGETS: Final[Mapping[Kind, Sequence[str]]] = {
    "kill": PROCESSES,
    "pause": PROCESSES,
    "broker killed": _BROKERS,
    "broker stopped": _BROKERS,
    "broker paused": _BROKERS,
    "api killed": ("api",),
    "api slow": ("api",),
    "api lying": ("api",),
    "etcd killed": ("etcd",),
    "hostile records": ("topics", "objects"),
    "full disk": (*3 * _BROKERS, *PROCESSES),
    "clock step": ROLES,
    "storm": ("evictions",),
}
"""What a fault of each kind can meet. A storm is of plans to evict all pods, of failures of the API
server, and ends when evictors were killed between an eviction and its record."""

_SECONDS: Final = (3.0, 15.0)
CLOCK_STEPS: Final = (-3600.0, -90.0, 90.0, 3600.0)


class Fault(NamedTuple):
    """A fault, its target, how long it lasts, and by how many seconds it steps a clock."""

    kind: Kind
    target: str
    seconds: float
    step_seconds: float = 0.0

    def __str__(self) -> str:
        step = f" by {self.step_seconds:+.0f} s" if self.step_seconds else ""
        return f"{self.kind}{step}: {self.target} for {self.seconds:.1f} s"


def faults(seed: int) -> Iterator[Fault]:
    """Yield faults without end."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(list(TARGETS), len(TARGETS)):
            step = rng.choice(CLOCK_STEPS) if kind == "clock step" else 0.0
            yield Fault(kind, rng.choice(TARGETS[kind]), round(rng.uniform(*_SECONDS), 1), step)
