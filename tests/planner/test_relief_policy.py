"""What the planner takes from a DeschedulerConfiguration."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from actuators.planner.planner import Planner
from actuators.planner.relief_policy import ReliefPolicy, relief_policy
from pipeline.clock import ManualClock
from pipeline.extender.decision_rules import rules_of
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.processors.descheduling.cluster_columns import MoveCaps
from pipeline.processors.descheduling.configured_strategies import strategies_off
from pipeline.processors.descheduling.descheduler_config import NO_DESCHEDULING, read_tree
from pipeline.settings import ExtenderSettings, Settings
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from tests.extender.relief_world import configuration, profile

LOW = "LowNodeLoad"


def policy_of(
    args: dict[str, Any] | None = None, enabled: tuple[str, ...] = (LOW,), **keys: Any
) -> ReliefPolicy:
    descheduling, problems = read_tree(
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [
                {
                    "name": "p", "pluginConfig": [{"name": LOW, "args": args or {}}],
                    "plugins": {"balance": {"enabled": [{"name": name} for name in enabled]}},
                }
            ],
        } | keys
    )  # fmt: skip
    assert descheduling is not None, problems
    return relief_policy(descheduling)


def test_the_usual_configuration_plans_every_two_minutes_without_caps() -> None:
    policy = policy_of()
    assert (policy.strategies, policy.dry, policy.caps) == ((LOW,), frozenset(), MoveCaps())
    assert policy.interval_seconds == 120


def test_interval_caps_and_arguments_are_those_of_the_configuration() -> None:
    policy = policy_of(
        {"numberOfNodes": 3}, deschedulingInterval="45s", maxNoOfPodsToEvictTotal=7,
        maxNoOfPodsToEvictPerNode=2, maxNoOfPodsToEvictPerNamespace=0,
    )  # fmt: skip
    assert policy.interval_seconds == 45
    assert policy.caps == MoveCaps(7, 2, 0)
    assert policy.args.number_of_nodes == 3
    assert [pool.name for pool in policy.pools] == [DEFAULT_POOL]
    assert policy.migration.limits.cycle_total == 7


@pytest.mark.parametrize(
    ("policy", "why_not"),
    [
        (relief_policy(NO_DESCHEDULING), "is not configured"),
        (policy_of({"paused": True}), "is paused"),
        (policy_of(enabled=()), "is not enabled"),
        (policy_of(enabled=("CustomPriority",)), "is not enabled"),
    ],
    ids=["none", "paused", "off", "other"],
)
def test_nothing_is_planned_unless_low_node_load_is_enabled(
    policy: ReliefPolicy, why_not: str
) -> None:
    assert why_not in policy.why_not


@pytest.mark.parametrize(
    "policy",
    [
        policy_of(dryRun=True), policy_of({"dryRun": True}), policy_of({"unknown": 1}),
        policy_of(unknown=1),
    ],
    ids=["configuration", "strategy", "problem of the strategy", "problem"],
)  # fmt: skip
def test_a_dry_or_doubtful_configuration_publishes_nothing(policy: ReliefPolicy) -> None:
    assert policy.dry == {LOW}


def test_the_planner_logs_once_which_strategies_are_off_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rules = rules_of(ExtenderSettings())
    planner = Planner(
        cast(Api, None), Settings(), rules, ManualClock(), cast(Lease, SimpleNamespace())
    )
    fragmentation = {"resources": ["x/gpu"]}
    paused = {"strategy": "EvictDirectly", "maxPodsToEvict": 1, "paused": True}
    own = profile(
        {"FragmentationAware": fragmentation, "ScaleDownBinPack": paused, "NodeRequests": {}}
    )
    own["plugins"]["balance"]["enabled"].append({"name": "NodeReservation"})
    for _ in range(2):
        planner._take_policy(configuration(own))
    (record,) = [each for each in caplog.records if each.message == "policy is in force"]
    assert vars(record)["fields"]["off"] == {
        "LowNodeLoad": "LowNodeLoad is not configured",
        "FragmentationAware": "requests of x/gpu are not counted: no rule of the extender names it",
        "ScaleDownBinPack": "ScaleDownBinPack is paused",
        "NodeReservation": "NodeReservation has no arguments in pluginConfig",
    }
    planner._take_policy(configuration(profile({"NodeRequests": {}})))
    assert vars(caplog.records[-1])["fields"]["off"] == {
        "LowNodeLoad": "LowNodeLoad is not configured"
    }


def test_a_strategy_that_another_profile_runs_is_not_off() -> None:
    args = {"strategy": "EvictDirectly", "maxPodsToEvict": 1, "resources": ["pods"]}
    off = profile({"ScaleDownBinPack": args | {"paused": True}})
    running = profile({"ScaleDownBinPack": args}, name="b")
    reasons = strategies_off(configuration(off), ("pods",))
    assert reasons == {"ScaleDownBinPack": "ScaleDownBinPack is paused"}
    assert strategies_off(configuration(off, running), ("pods",)) == {}
