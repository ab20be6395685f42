"""Compare what a chaos run left behind with an undisturbed run, guarantee by guarantee.

Pure: a run is an `Observation`, and each check returns a sentence for each violation. What the
undisturbed run would have published follows from the log of windows (`tests.system.oracle`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from benchmarks import soak
from pipeline.settings import Settings
from tests.chaos.archived_log import ArchivedLog, archive_problems
from tests.chaos.eviction_monitor import Observed, accepted, violations
from tests.chaos.node_limits import NodeLimits, limits_left
from tests.chaos.schedule import Fault
from tests.system import oracle
from tests.system.harness import Logs

BACK_SECONDS: Final = 30.0
"""Within this time after a fault has ended every role works again."""

OFFER_SECONDS: Final = 30.0
"""How old the record may be by which an actuator writes an offer."""

WARM_UP_SECONDS = 600.0
STEADY_SECONDS = 900.0
"""The growth over less time is noise."""
LEAST_SAMPLES: Final = 12
MOST_SAMPLES: Final = 2000
"""More samples are thinned: their slopes are compared pair by pair."""
GROWTH_MIB_PER_HOUR: Final = 8.0
"""In less than an hour as much in total: an allocator that takes a few MiB more with every
rebalance looks like a leak over a quarter of an hour, and not over several hours."""

Amounts = tuple[int, ...]


class Injected(NamedTuple):
    """A fault with the Unix times of its beginning and end."""

    fault: Fault
    start: float
    end: float


class Offer(NamedTuple):
    """Amounts of Mid and Batch of a node, offered or allowed from a Unix time on."""

    at: float
    node: str
    amounts: Amounts


@dataclass
class Observation:
    """A run. `signs` has the Unix times at which each role or instance was seen to work, `memory`
    the times and MiB of each process, `exit_codes` those of each instance that ended and was not
    killed, `evictions` what the API server logged of them, `node_limits` what node actuators held
    and left on each node, `archived` the archives of the log."""

    settings: Settings
    logs: Logs
    samples: Sequence[tuple[int, int, str]]
    faults: Sequence[Injected] = ()
    signs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    offers: Sequence[Offer] = ()
    allowed: Sequence[Offer] = ()
    evictions: Observed | None = None
    memory: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    exit_codes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    node_limits: Sequence[NodeLimits] = ()
    archived: ArchivedLog = field(default_factory=lambda: ArchivedLog({}, ()))

    @property
    def evidence(self) -> dict[str, int]:
        """The number of what the guarantees are about, by its name."""
        return {
            "samples": len(self.samples),
            "offers": len(self.offers),
            "evictions": len(accepted(self.evictions.events)) if self.evictions else 0,
            "archived windows": sum(len(each.windows) for each in self.archived.archives),
        }


def problems(run: Observation) -> list[str]:
    """Describe every violation of every guarantee."""
    expected = oracle.undisturbed(run.logs["windows"], run.settings)
    return [
        *oracle.sample_problems(run.logs, run.samples, frozenset()),
        *oracle.applied_twice(run.logs, expected),
        *oracle.differences(run.logs, expected),
        *offers_above(run.offers, run.allowed),
        *(map(str, violations(run.evictions)) if run.evictions else ()),
        *late_roles(run.faults, run.signs),
        *ended_roles(run.exit_codes),
        *limits_left(run.node_limits),
        *archive_problems(run.archived),
        *growing_memory(run.memory),
        *(f"no {name}: a guarantee was not put to the test"
          for name, count in run.evidence.items() if count == 0),
    ]  # fmt: skip


def offers_above(offers: Sequence[Offer], allowed: Sequence[Offer]) -> Iterator[str]:
    """Yield offers above each amount that the undisturbed run allowed shortly before."""
    of_node: dict[str, list[Offer]] = {}
    for offer in sorted(allowed):
        of_node.setdefault(offer.node, []).append(offer)
    for offer in offers:
        records = of_node.get(offer.node, [])
        times = [record.at for record in records]
        # The record that was the newest at the earliest time counts, too.
        first = max(0, bisect_left(times, offer.at - OFFER_SECONDS) - 1)
        newest = [record.amounts for record in records[first : bisect_left(times, offer.at)]]
        if any(amount > 0 for amount in offer.amounts) and not newest:
            yield f"{offer.node}: offers {offer.amounts}, and no record allows any"
        elif newest and (np.array(offer.amounts) > np.max(newest, axis=0)).any():
            yield f"{offer.node}: offers {offer.amounts}, above {newest[-1]}"


def late_roles(faults: Sequence[Injected], signs: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield roles that did not work within `BACK_SECONDS` after the end of a fault."""
    for fault, _, end in faults:
        for role, times in signs.items():
            if not any(end < at <= end + BACK_SECONDS for at in times):
                yield f"{role}: not back within {BACK_SECONDS:g} s after {fault}"


def ended_roles(exit_codes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield roles that ended, and were not killed."""
    for role, codes in exit_codes.items():
        if codes:
            yield f"{role}: ended by itself with {', '.join(map(str, codes))}"


def growing_memory(memory: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[str]:
    """Yield processes whose memory grows."""
    for process, slope in growth(memory).items():
        hours = (memory[process][-1][0] - memory[process][0][0] - WARM_UP_SECONDS) / 3600
        if slope * min(1.0, hours) > GROWTH_MIB_PER_HOUR:
            yield f"{process}: grows by {slope:.1f} MiB an hour"


def growth(memory: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, float]:
    """The growth of each process that ran long enough, in MiB an hour after its warm-up, as the
    soak computes it: a role that begins to lead takes a step, which is no growth."""
    found = {}
    for process, samples in memory.items():
        start = samples[0][0] + WARM_UP_SECONDS if samples else 0.0
        steady = np.array([sample for sample in samples if sample[0] >= start])
        if len(steady) >= LEAST_SAMPLES and np.ptp(steady[:, 0]) >= STEADY_SECONDS:
            times, mib = steady[:: 1 + len(steady) // MOST_SAMPLES].T
            found[process] = soak.growth((times - start) / 3600, mib)
    return found
