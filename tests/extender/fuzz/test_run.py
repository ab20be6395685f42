"""A served extender under random records and requests, valid and invalid: it does not fail, its
memory does not grow, and every valid answer equals that of the oracle.

`FUZZ_SECONDS` sets the duration, `FUZZ_SEED` the first seed. A round that fails prints its seed,
which repeats its scenarios, and writes the reduced scenario to a file.
"""

import asyncio
import os
import random
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.extender.fuzz.documented import Request, complaints
from tests.extender.fuzz.fleet import Answer, Fleet, complaints_of
from tests.extender.fuzz.scenarios import Step, play, scenarios
from tests.extender.fuzz.steps import DOCUMENT

SECONDS = float(os.environ.get("FUZZ_SECONDS", "30"))
SEED = int(os.environ.get("FUZZ_SEED") or random.randrange(2**32))
SCENARIOS_A_ROUND = 25
# Caches of a fixed size (4,096 pods, 32 cycles of up to 5,000 nodes) and fragments may grow after
# the first third: 2 kB for each of the 6,000 requests of a minute, 200 bytes in ten minutes. A leak
# of any part of a request would be larger.
MOST_GROWTH_BYTES = 8 << 20
LEAST_MEASUREMENTS = 4
"""After the first third. On a busy machine a round alone may take that long."""
REPORTED_CHARACTERS = 1500


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def a_round(loop: asyncio.AbstractEventLoop, fleet: Fleet, first_seed: int) -> None:
    """Run the scenarios of a seed; a failure is reduced to a small scenario, and reported."""

    @seed(first_seed)
    @settings(
        max_examples=SCENARIOS_A_ROUND, deadline=None, database=None, print_blob=False,
        suppress_health_check=[*HealthCheck], report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(scenarios)
    def run(scenario: list[Step]) -> None:
        loop.run_until_complete(play(fleet, scenario))

    try:
        run()
    except Exception as error:
        whole = fleet.log.with_name("case.txt")
        whole.write_text("".join(traceback.format_exception(error)))
        files = f"extender: {fleet.log}; whole case: {whole}"
        report = f"{short_report(error)}\nagain: FUZZ_SEED={first_seed}\n{files}"
        raise pytest.fail.Exception(report, pytrace=False) from None


def short_report(error: Exception) -> str:
    """Where a scenario failed, why, and the begin of the case, in a few lines: a case has up to
    30 kB, behind which nobody finds the other failed tests of a run."""
    steps = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == Path(__file__).parent
    ]
    case = " ".join(" ".join(getattr(error, "__notes__", ())).split())
    parts = (f"{type(error).__name__}: {error}", " < ".join(reversed(steps[-4:])), case)
    return "\n".join(
        part if len(part) <= REPORTED_CHARACTERS else part[:REPORTED_CHARACTERS] + " [...]"
        for part in parts
    )


def grown(held: list[tuple[float, int]], seconds: float) -> float:
    """Growth of memory after the first third: the difference between the medians of the last
    third and of as many measurements before it."""
    later = after_first_third(held, seconds)
    half = len(later) // 2
    return median(later[-half:]) - median(later[:half])


def after_first_third(held: list[tuple[float, int]], seconds: float) -> list[int]:
    return [size for passed, size in held if passed >= seconds / 3]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_that_is_sent_breaks_it_or_makes_it_grow(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    fleet = loop.run_until_complete(Fleet.start(tmp_path))
    began, rounds = time.monotonic(), 0
    held: list[tuple[float, int]] = []
    try:
        while (passed := time.monotonic() - began) < SECONDS or len(
            after_first_third(held, SECONDS)
        ) < LEAST_MEASUREMENTS:
            a_round(loop, fleet, SEED + rounds)
            rounds += 1
            held.append((passed, loop.run_until_complete(fleet.measure())))
    finally:
        code = loop.run_until_complete(fleet.end())
    assert complaints_of(fleet.log) == []
    assert code == 0
    assert grown(held, SECONDS) < MOST_GROWTH_BYTES, held


def test_growth_is_what_comes_after_the_first_third_and_goes_on() -> None:
    times = [float(second) for second in range(60)]
    assert grown([(second, 50 << 20) for second in times], 60.0) == 0
    # Caches that fill at the beginning, and one measurement that is odd.
    filling = [(second, min(int(second), 15) << 20) for second in times]
    filling[40] = (40.0, 90 << 20)
    assert grown(filling, 60.0) == 0
    assert grown([(second, int(second) << 20) for second in times], 60.0) > MOST_GROWTH_BYTES


def test_report_of_a_failure_is_short_and_has_its_cause() -> None:
    def fail() -> None:
        raise AssertionError("no offer" + "x" * 50_000)

    with pytest.raises(AssertionError) as caught:
        fail()
    caught.value.add_note("Failing test case: run(\n" + "    Change(\n" * 10_000)
    report = short_report(caught.value)
    cause, step, case = report.split("\n")
    assert cause.startswith("AssertionError: no offer")
    assert step.startswith("test_run.py:")
    assert step.count(" < ") == 1
    assert case.startswith("Failing test case: run( Change( Change(")
    assert len(report) < 4 * REPORTED_CHARACTERS


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(500, b"{}", {}), "500 is not documented"),
        (Answer(418, b"{}", {}), "418 is not documented"),
        (Answer(200, b"{}", {}), "$ has no apiVersion"),
        (Answer(404, b"[]", {}), "$ is [], not object"),
        (Answer(503, b"{}", {}), "$ has no Error"),
    ],
)
def test_an_answer_that_the_document_does_not_have_is_found(answer: Answer, says: str) -> None:
    asked = Request("/v1/nodes/{node}", "GET", "/v1/nodes/a", {}, None)
    assert says in [*complaints(asked, answer, DOCUMENT)]
    assert [*complaints(asked, Answer(404, b'{"Error": "none"}', {}), DOCUMENT)] == []


def test_what_went_wrong_in_the_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fine = '{"level": "info", "event": "a\u2028b"}'
    bad = [
        '{"level": "error"}',
        '{"level": "info", "traceback": ""}',
        "Traceback (most recent call",
    ]
    log.write_text("\n".join([fine, *bad]))
    assert complaints_of(log) == bad
