"""The evictor's policy from a DeschedulerConfiguration."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.descheduling.descheduler_config import (
    NO_DESCHEDULING,
    Descheduling,
    read_tree,
)
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.eviction.migration_policy import (
    MigrationLimits,
    MigrationPolicy,
    ObjectLimiter,
    Protections,
)
from pipeline.processors.policy.selectors import Selector


def configuration(keys: Any = None, **args: Any) -> Any:
    plugin = {"name": "MigrationController", "args": args}
    return {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{"name": "p", "pluginConfig": [plugin]}],
    } | (keys or {})  # fmt: skip


def policy_of(keys: Any = None, **args: Any) -> MigrationPolicy:
    descheduling, problems = read_tree(configuration(keys, **args))
    assert isinstance(descheduling, Descheduling)
    assert not [problem for problem in problems if not problem.in_force]
    return migration_policy(descheduling)


def test_without_a_configuration_koordinators_defaults_hold() -> None:
    assert migration_policy(NO_DESCHEDULING) == policy_of() == MigrationPolicy()


@pytest.mark.parametrize(
    ("args", "limits"),
    [
        ({"maxMigratingGlobally": 5}, {"max_migrating_globally": 5}),
        ({"maxMigratingPerNode": 1}, {"max_migrating_per_node": 1}),
        ({"maxMigratingPerNamespace": 3}, {"max_migrating_per_namespace": 3}),
        ({"evictionPolicy": "", "defaultJobMode": ""}, {}),
        ({"maxMigratingPerWorkload": "10%"}, {"max_migrating_per_workload": "10%"}),
        ({"maxUnavailablePerWorkload": 2}, {"max_unavailable_per_workload": 2}),
        ({"skipCheckExpectedReplicas": True}, {"skip_check_expected_replicas": True}),
        ({"evictQPS": "0.5"}, {"evict_qps": 0.5}),
        ({"evictBurst": 3}, {"evict_burst": 3}),
        ({"objectLimiters": {}}, {}),
        (
            {"objectLimiters": {"workload": {}}},
            {"workload_limiter": ObjectLimiter(duration_seconds=0.0)},
        ),
        ({"defaultJobTTL": "10m"}, {"ttl_seconds": 600.0}),
        ({"defaultJobTTL": "0s"}, {"ttl_seconds": 3600.0}),  # no end would let nothing count
        (
            {"objectLimiters": {"namespace": {"duration": "1m", "maxMigrating": 2, "burst": 3}}},
            {
                "workload_limiter": ObjectLimiter(duration_seconds=0.0),
                "namespace_limiter": ObjectLimiter(duration_seconds=60.0, max_migrating=2, burst=3),
            },
        ),
    ],
)
def test_each_limit_is_taken_over(args: Any, limits: Any) -> None:
    assert policy_of(**args).limits == MigrationLimits(**limits)


def test_caps_hold_for_each_interval() -> None:
    caps = {
        "deschedulingInterval": "30s", "maxNoOfPodsToEvictPerNode": 0,
        "maxNoOfPodsToEvictPerNamespace": 1, "maxNoOfPodsToEvictTotal": 2,
    }  # fmt: skip
    assert policy_of(caps).limits == MigrationLimits(
        cycle_seconds=30.0, cycle_per_node=0, cycle_per_namespace=1, cycle_total=2
    )


@pytest.mark.parametrize(
    ("args", "protections"),
    [
        ({"evictFailedBarePods": True}, {"evict_failed_bare_pods": True}),
        ({"evictAllBarePods": True}, {"evict_all_bare_pods": True}),
        ({"evictLocalStoragePods": True}, {"evict_local_storage_pods": True}),
        ({"evictSystemCriticalPods": True}, {"evict_system_critical_pods": True}),
        ({"ignorePvcPods": True}, {"ignore_pvc_pods": True}),
        ({"priorityThreshold": {"value": 7}}, {"priority_threshold": 7}),
        ({"priorityThreshold": {"name": "koord-prod"}}, {"priority_threshold": 9000}),
        ({"labelSelector": {"matchLabels": {"a": "b"}}},
         {"label_selector": Selector(match_labels={"a": "b"})}),
        ({"namespaces": {"include": ["a"]}}, {"namespaces_included": frozenset({"a"})}),
        ({"namespaces": {"exclude": ["a"]}}, {"namespaces_excluded": frozenset({"a"})}),
        ({"schedulerNames": ["own"]}, {"scheduler_names": frozenset({"own"})}),
        (
            {"schedulerNames": ["koord-scheduler"]},
            {"scheduler_names": frozenset({"koord-scheduler"})},
        ),
        ({"schedulerNames": []}, {}),
        ({"schedulerNames": ["own"], "defaultJobMode": "EvictDirectly"}, {}),
    ],
)  # fmt: skip
def test_each_protection_is_taken_over(args: Any, protections: Any) -> None:
    assert policy_of(**args).protections == Protections(**protections)


def test_gates_fit_soft_evictions_and_dry_runs_are_taken_over() -> None:
    assert policy_of(skipEvictionGates=["PVC"]).skipped_gates == {"PVC"}
    assert policy_of(evictionPolicy="SoftEviction").mode == "SoftEviction"
    fitting = policy_of(nodeFit=True, nodeSelector="pool=gold")
    assert (fitting.node_fit, fitting.node_selector) == (
        True,
        Selector(match_labels={"pool": "gold"}),
    )
    # Nothing is deleted without asking disruption budgets.
    assert policy_of(evictionPolicy="Delete").mode == "Eviction"
    assert policy_of(dryRun=True).is_dry
    assert policy_of(defaultDeleteOptions={"dryRun": ["All"]}).is_dry
    assert policy_of({"dryRun": True}).is_dry
    invalid, problems = read_tree(configuration(maxMigratingPerNode="many"))
    assert problems
    assert invalid is not None
    assert migration_policy(invalid).is_dry


def test_options_of_evictions_are_taken_over() -> None:
    given = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    policy = policy_of(defaultDeleteOptions={"apiVersion": "v1", "kind": "DeleteOptions", **given})
    assert msgspec.to_builtins(policy.delete_options) == given
    assert not policy.is_dry
    assert policy_of(defaultDeleteOptions={}) == MigrationPolicy()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"preconditions": {"uid": "a"}}, "preconditions: are those of one pod"),
        ({"orphanDependents": True, "propagationPolicy": "Orphan"}, "propagationPolicy: and"),
    ],
)
def test_options_that_no_eviction_can_have_are_reported(options: Any, problem: str) -> None:
    descheduling, problems = read_tree(configuration(defaultDeleteOptions=options))
    assert descheduling is not None
    assert migration_policy(descheduling).is_dry
    assert any(f"defaultDeleteOptions.{problem}" in str(each) for each in problems)
