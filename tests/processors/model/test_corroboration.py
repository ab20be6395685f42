"""Two sources report one node: who is believed, what is a dispute, and when it ends."""

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.corroboration import COMPARISONS
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.training_batch import NodeWindow, training_batch
from pipeline.topics.node_state import Dispute

GIB = 2.0**30
START_MS = 1_700_000_040_000
NODE = "n1"
ROOM = np.array([8000.0, 32 * GIB])
UNKNOWN = float("nan")


class Source(NamedTuple):
    """An exporter if it has a `machine`, else a provider; windows are `seconds` long, and appended
    `delay` seconds after their end."""

    name: str = ""
    machine: str = ""
    seconds: int = 60
    delay: float = 5.0


EXPORTER = Source(machine="machine", seconds=30, delay=1.0)
FIRST, OTHER = Source("prometheus"), Source("metrics-server", delay=7.0)


class Fleet:
    """One node, whose sources send windows in order of their append times."""

    def __init__(self) -> None:
        self.bank = Bank(ModelConfig())
        self.statuses: list[tuple[str, str]] = []
        self.used: list[float] = []
        self._second = 0

    def run(self, windows: int = 1, **cores: tuple[Source, float]) -> "Fleet":
        """Send `windows` of a minute; each source reports so many cores, and as many GiB."""
        for _ in range(windows):
            sent = []
            for source, used in cores.values():
                for end in range(self._second + source.seconds, self._second + 61, source.seconds):
                    sent.append((end + source.delay, end, source, used))
            self._second += 60
            for _, end, source, used in sorted(sent, key=lambda each: each[0]):
                self.send(source, end, used)
        return self

    def send(self, source: Source, end: int, cores: float) -> None:
        end_ms, length = START_MS + end * 1000, source.seconds
        usage = np.array([cores, cores * GIB])
        step = 1 if source.machine else 15
        points = [(float(at), cores, cores * GIB) for at in range(step, length + 1, step)]
        window = NodeWindow(
            node=NODE, machine_id=source.machine, epoch=1 if source.machine else 0,
            start_ms=end_ms - length * 1000, end_ms=end_ms, coverage=1.0, node_usage=usage,
            appended_ms=end_ms + round(source.delay * 1000), source=source.name,
            points=np.array(points), allocatable=ROOM,
        )  # fmt: skip
        (outcome,) = self.bank.apply([window])
        self.statuses.append((source.name or "exporter", outcome.status))
        if outcome.status == "applied":
            self.used.append(cores)
        else:
            self.bank.corroborate(training_batch([window]).heads[0], usage)

    def silence(self, minutes: int) -> None:
        self._second += 60 * minutes

    @property
    def dispute(self) -> Dispute | None:
        return self.bank.dispute(NODE)

    @property
    def believed(self) -> str:
        return self.bank.node_models[NODE].source or "exporter"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_an_exporter_is_believed_and_a_provider_that_differs_is_a_dispute(fleet: Fleet) -> None:
    fleet.run(COMPARISONS, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    assert fleet.dispute is None
    fleet.run(2, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    dispute = fleet.dispute
    assert dispute is not None
    assert (dispute.source, dispute.is_more) == ("prometheus", True)
    assert (dispute.usage.cpu_cores, dispute.believed.cpu_cores) == (6.0, 2.0)
    assert (fleet.believed, {*fleet.used}) == ("exporter", {2.0})
    assert fleet.bank.node_models[NODE].machine_id == "machine"


def test_a_dispute_ends_when_both_agree_again(fleet: Fleet) -> None:
    fleet.run(6, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    since = fleet.dispute and fleet.dispute.since
    fleet.run(2, a=(EXPORTER, 2.0), b=(FIRST, 6.5))
    assert fleet.dispute is not None
    assert (fleet.dispute.since, fleet.dispute.usage.cpu_cores) == (since, 6.5)
    fleet.run(COMPARISONS, a=(EXPORTER, 2.0), b=(FIRST, 2.1))
    assert fleet.dispute is not None, "one comparison behind"
    fleet.run(2, a=(EXPORTER, 2.0), b=(FIRST, 2.1))
    assert fleet.dispute is None


@pytest.mark.parametrize("reported", [2.0, 2.4, 1.7, UNKNOWN])
def test_what_agrees_or_is_unknown_is_no_dispute(fleet: Fleet, reported: float) -> None:
    fleet.run(10, a=(EXPORTER, 2.0), b=(FIRST, reported))
    assert fleet.dispute is None


def test_differences_that_come_and_go_are_no_dispute(fleet: Fleet) -> None:
    for _ in range(10):
        fleet.run(COMPARISONS - 1, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
        fleet.run(1, a=(EXPORTER, 2.0), b=(FIRST, 2.0))
        assert fleet.dispute is None


def test_a_provider_is_compared_in_the_same_time(fleet: Fleet) -> None:
    """The exporter's load swings from window to window; the provider reports the mean of both."""
    rng = random.Random(1)
    for _ in range(30):
        low = rng.uniform(0.5, 2.0)
        for at, cores in ((30, low), (60, 8.0 - low)):
            fleet.send(EXPORTER, fleet._second + at, cores)
        fleet.send(FIRST, fleet._second + 60, 4.0)
        fleet.silence(1)
        assert fleet.dispute is None


def test_of_two_providers_the_higher_is_believed_once_they_differed_often_enough(
    fleet: Fleet,
) -> None:
    fleet.run(COMPARISONS, a=(FIRST, 2.0), b=(OTHER, 6.0))
    assert (fleet.believed, fleet.dispute, {*fleet.used}) == ("prometheus", None, {2.0})
    fleet.run(1, a=(FIRST, 2.0), b=(OTHER, 6.0))
    assert fleet.believed == "metrics-server"
    fleet.run(10, a=(FIRST, 2.0), b=(OTHER, 6.0))
    assert fleet.used == [2.0] * (COMPARISONS + 1) + [6.0] * 10, "never both, never a mean"
    dispute = fleet.dispute
    assert dispute is not None
    assert (dispute.source, dispute.is_more) == ("prometheus", False)
    assert (dispute.usage.cpu_cores, dispute.believed.cpu_cores) == (2.0, 6.0)
    fleet.run(COMPARISONS + 2, a=(FIRST, 6.2), b=(OTHER, 6.0))
    assert (fleet.believed, fleet.dispute) == ("metrics-server", None)


def test_of_two_providers_the_lower_is_not_believed(fleet: Fleet) -> None:
    fleet.run(10, a=(FIRST, 6.0), b=(OTHER, 2.0))
    assert (fleet.believed, {*fleet.used}) == ("prometheus", {6.0})
    assert fleet.dispute is not None
    assert not fleet.dispute.is_more


def test_providers_of_which_now_one_and_now_the_other_is_higher_do_not_flap(fleet: Fleet) -> None:
    for minute in range(40):
        pair = (2.0, 6.0) if minute % 2 else (6.0, 2.0)
        fleet.run(1, a=(FIRST, pair[0]), b=(OTHER, pair[1]))
    assert fleet.believed == "prometheus"
    assert fleet.dispute is not None


@pytest.mark.parametrize("dies", ["prometheus", "metrics-server"])
def test_the_other_provider_is_used_when_one_dies(fleet: Fleet, dies: str) -> None:
    fleet.run(10, a=(FIRST, 2.0), b=(OTHER, 6.0))
    left = (FIRST, 2.0) if dies == "metrics-server" else (OTHER, 6.0)
    fleet.used.clear()
    fleet.run(6, a=left)
    assert (fleet.believed, fleet.dispute) == (left[0].name, None)
    # A source that is not believed yet is used once the other sent nothing in the window before.
    assert fleet.used == [left[1]] * (4 if dies == "metrics-server" else 6)


def test_a_provider_is_used_when_the_exporter_dies_and_the_exporter_when_it_returns(
    fleet: Fleet,
) -> None:
    fleet.run(6, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    fleet.used.clear()
    fleet.run(4, b=(FIRST, 6.0))
    assert (fleet.believed, fleet.dispute) == ("prometheus", None)
    assert fleet.used == [6.0] * 3
    fleet.run(1, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    assert (fleet.believed, fleet.used[-2:]) == ("exporter", [2.0, 2.0])


def test_a_dispute_is_over_when_the_second_source_is_silent(fleet: Fleet) -> None:
    fleet.run(6, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    fleet.run(2, a=(EXPORTER, 2.0))
    assert fleet.dispute is not None
    fleet.run(3, a=(EXPORTER, 2.0))
    assert fleet.dispute is None
    # It starts over when it returns.
    fleet.run(COMPARISONS, a=(EXPORTER, 2.0), b=(FIRST, 6.0))
    assert fleet.dispute is None


def test_windows_of_the_believed_source_may_be_longer(fleet: Fleet) -> None:
    slow = Source(machine="machine", seconds=300, delay=1.0)
    for _ in range(5):
        for minute in range(1, 5):
            fleet.send(FIRST, fleet._second + 60 * minute, 6.0)
        fleet.send(slow, fleet._second + 300, 2.0)
        fleet.send(FIRST, fleet._second + 300, 6.0)
        fleet.silence(5)
    assert fleet.dispute is not None
    assert fleet.dispute.believed.cpu_cores == 2.0


def test_a_third_source_is_counted_and_never_believed_beside_two(fleet: Fleet) -> None:
    third = Source("influx", delay=8.0)
    fleet.run(10, a=(FIRST, 2.0), b=(OTHER, 2.0), c=(third, 7.0))
    assert (fleet.believed, {*fleet.used}) == ("prometheus", {2.0})
    assert {status for name, status in fleet.statuses if name == "influx"} == {"second_exporter"}
    # When the second is silent, the third is compared.
    fleet.run(10, a=(FIRST, 2.0), c=(third, 7.0))
    assert (fleet.believed, {*fleet.used}) == ("influx", {2.0, 7.0})


def test_one_provider_that_repeats_its_windows_is_no_second_source(fleet: Fleet) -> None:
    fleet.run(5, a=(FIRST, 2.0), b=(FIRST._replace(delay=6.0), 6.0))
    assert {status for _, status in fleet.statuses} == {"applied", "duplicate"}
    assert fleet.bank.node_models[NODE].second is None


@pytest.mark.parametrize("after", [3, 5, 9])
def test_a_restored_state_continues_as_if_nothing_happened(after: int) -> None:
    sources: dict[str, Any] = {"a": (FIRST, 2.0), "b": (OTHER, 6.0)}
    whole, restored = Fleet().run(after, **sources), Fleet().run(after, **sources)
    data = restored.bank.encode_state(NODE)
    restored.bank = Bank(ModelConfig())
    restored.bank.restore(NODE, data)
    for fleet in (whole, restored):
        fleet.run(6, **sources)
    assert restored.bank.encode_state(NODE) == whole.bank.encode_state(NODE)
    assert restored.dispute == whole.dispute is not None
