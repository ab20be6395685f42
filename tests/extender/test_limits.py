"""How the time-outs of the extender relate to each other and to those of its clients."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from actuators.eviction import plan_limits
from pipeline.extender import limits
from pipeline.http_server import limits as connection_limits
from pipeline.processors.eviction.departure_schedule import LATER_SECONDS
from pipeline.processors.placement.extender_config import GeneratorOptions, generate_config
from pipeline.processors.placement.victim_selection import AT_MOST, SETTLE_SECONDS
from pipeline.table import limits as table_limits
from pipeline.topics.eviction_plans import LONGEST_VALID_SECONDS
from pipeline.topics.node_state import AGGREGATED

DEPLOYED = sorted(Path("deploy/scheduler").glob("*.yaml"))
GRACE_PERIOD_SECONDS = 30.0
"""The default of `terminationGracePeriodSeconds`."""


def http_timeout(configuration: dict[str, Any]) -> float:
    (extender,) = configuration["extenders"]
    return float(extender["httpTimeout"].removesuffix("s"))


@pytest.mark.parametrize("file", DEPLOYED, ids=lambda file: file.name)
def test_shipped_configurations_have_the_timeout_that_the_extender_expects(file: Path) -> None:
    assert http_timeout(yaml.safe_load(file.read_text())) == limits.SCHEDULER_TIMEOUT_SECONDS


def test_generated_configurations_have_it_too() -> None:
    configuration = generate_config(GeneratorOptions(url="http://extender:8888"))
    assert http_timeout(configuration) == limits.SCHEDULER_TIMEOUT_SECONDS


def test_every_time_that_an_answer_may_wait_is_below_the_scheduler_timeout() -> None:
    """Slow clients aside, a request waits for a slot and for the planner, and for nothing else."""
    assert limits.LARGE_WAIT_SECONDS < limits.SCHEDULER_TIMEOUT_SECONDS
    # The planner runs at most once in a pause, so it cannot delay one request after the other.
    assert limits.PLAN_PAUSE_SECONDS >= limits.SCHEDULER_TIMEOUT_SECONDS


def test_slow_clients_have_longer_than_a_scheduler_waits_and_less_than_a_minute() -> None:
    slow = (limits.BODY_TIMEOUT_SECONDS, limits.ANSWER_TIMEOUT_SECONDS)
    assert limits.SCHEDULER_TIMEOUT_SECONDS < min(slow) <= max(slow) < 60.0


def test_work_of_filter_outlives_a_cycle_and_not_the_placement_of_the_pod() -> None:
    assert limits.SCHEDULER_TIMEOUT_SECONDS < limits.CYCLE_SECONDS < table_limits.TENTATIVE_SECONDS


def test_shutdown_ends_within_the_grace_period() -> None:
    assert limits.LINGER_SECONDS + limits.FINISH_SECONDS < GRACE_PERIOD_SECONDS / 2


def test_plans_expire_in_order() -> None:
    """A plan is valid, is then begun or given up, and its pod counts until it has settled."""
    assert limits.PLAN_VALID_SECONDS < limits.PLAN_BEGUN_SECONDS < limits.PLAN_SETTLED_SECONDS
    longest = limits.PLAN_VALID_SECONDS + limits.PLAN_PAIR_SECONDS * (AT_MOST / 2 - 1)
    assert longest <= LONGEST_VALID_SECONDS
    # Two pods at a time end within their grace period, before the next two leave.
    assert limits.PLAN_PAIR_SECONDS > GRACE_PERIOD_SECONDS + LATER_SECONDS
    # The evictor refuses a plan that comes too soon after the last eviction for the pod.
    latest_eviction = limits.PLAN_VALID_SECONDS + SETTLE_SECONDS
    assert latest_eviction <= limits.PLAN_SETTLED_SECONDS
    assert limits.PLANS_PER_POD == plan_limits.PLANS_OF_A_POD
    assert (
        limits.PLAN_SETTLED_SECONDS + longest + max(AGGREGATED.values())
        < table_limits.LONGEST_TENTATIVE_SECONDS
    )


def test_bodies_of_all_slots_and_small_ones_fit_into_memory() -> None:
    largest = limits.LARGE_BODIES * limits.MAX_BODY_BYTES + limits.SMALL_BODIES_BYTES
    assert limits.LARGE_BODY_BYTES < limits.SMALL_BODIES_BYTES
    assert largest <= 320 * 2**20


@pytest.mark.parametrize(
    "module", [limits, table_limits, connection_limits], ids=lambda module: module.__name__
)
def test_no_other_module_of_the_package_has_a_time_out(module: ModuleType) -> None:
    number = r"^\w*(?:SECONDS|BYTES|MAX|LARGEST|LONGEST)\b.* = [\d.]|time_?out\w*[=(][\d.]"
    path = Path(module.__file__ or "")
    others = {*path.parent.glob("*.py")} - {path}
    assert [path for path in others if re.search(number, path.read_text(), re.MULTILINE)] == []
