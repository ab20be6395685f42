"""Mutations of the product: for every group, functions whose breaking must turn a case red.

`broken` replaces a function wherever the product refers to it. The replacement changes what the
function answers, or for an entry of `SKIPPED` does nothing.
"""

import dataclasses
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import _lru_cache_wrapper, wraps
from types import FunctionType
from typing import Any, Final
from unittest.mock import patch

import msgspec
import numpy as np

from pipeline.processors.scorers.registry import SCORERS

_PRODUCT: Final = ("pipeline", "actuators", "node_exporter")
_P: Final = "pipeline.processors"
_S: Final = f"{_P}.scorers"
_L: Final = f"{_P}.loadaware"
_K: Final = "node_exporter.kernel"
_Q: Final = f"{_P}.node_qos"
_D: Final = f"{_P}.descheduling"
_POD: Final = f"{_P}.kubernetes.pod_classes:pod_class"
_OFFERS: Final = f"{_P}.overcommit.offer_decision:amounts_to_write"
_RECORDS: Final = f"{_P}.overcommit.node_offers:offers"
_TRAIN: Final = f"{_P}.model.entity_models:EntityModels.train"
_ADD: Final = f"{_P}.model.sparse_histograms:Histograms.add_repeated"
_WATCHED: Final = "pipeline.table.load_watcher_metrics:load_snapshot"

BROKEN: Final[Mapping[str, tuple[str, ...]]] = {
    "shares_weight_conversion": ("actuators.node.knob_files:weight_of_shares",),
    "leveled_merge_update": (f"{_Q}.write_order:order_writes",),
    "kernel_v1_write_rules": ("actuators.node.cgroup_files:write_file",),
    "histogram_buckets": (f"{_P}.model.histogram:Layout.digitize",),
    "histogram_percentile": (
        f"{_P}.model.entity_models:EntityModels.quantile", _ADD,
    ),
    "decaying_histogram": (
        f"{_P}.model.entity_models:EntityModels.quantile",
        f"{_P}.model.entity_models:EntityModels.shift",
    ),
    "histogram_checkpoint": (
        f"{_P}.model.histogram:load_checkpoint", f"{_P}.model.histogram:save_checkpoint",
    ),
    "prediction_training": (_TRAIN,),
    "model_prediction": (_TRAIN, f"{_P}.predictors.percentile:Percentile.peak"),
    "model_lifecycle": (f"{_P}.model.bank:Bank.restore", f"{_P}.model.bank:Bank.forget"),
    "pod_peak_predictor": (f"{_P}.model.reclaimable:pod_view",),
    "priority_peak_predictor": (f"{_P}.model.reclaimable:class_view",),
    "prod_reclaimable": (f"{_P}.model.reclaimable:pod_view", f"{_P}.model.reclaimable:class_view"),
    "metric_aggregate": (f"{_P}.model.rank_percentiles:row_percentiles",),
    "usage_report": (f"{_P}.model.result_records:encode_node_states",),
    "collect_interval": (f"{_P}.policy.collect_interval:collect_interval",),
    "system_usage": ("node_exporter.system_remainder:system_usage",),
    "pod_class": (_POD,),
    "anomaly_detector": (f"{_P}.hot_nodes.debounce:_level",),
    "node_strategy": (f"{_P}.policy.effective_strategy:effective_strategy",),
    "strategy_valid": (f"{_P}.policy.colocation_config:problems_of",),
    "configmap_sync": (f"{_P}.policy.load_configmap:load_section",),
    "evictability": (f"{_P}.eviction.evictability:protections_of",),
    "migration_limits": (
        f"{_P}.eviction.migration_limits:limits_reached",
        f"{_P}.eviction.migration_limits:replica_guard",
        f"{_P}.eviction.migration_limits:workload_limit",
        f"{_P}.eviction.migration_limits:tokens",
    ),
    "arbitrator": (
        f"{_P}.eviction.arbitration:by_pod_rank", f"{_P}.eviction.arbitration:judge",
        f"{_P}.eviction.arbitration:by_moving_siblings",
    ),
    "migration_job": (
        f"{_P}.eviction.migration_job:next_step", f"{_P}.eviction.migration_job:has_timed_out",
        f"{_P}.eviction.migration_job:is_garbage",
    ),
    "eviction_api": (
        f"{_P}.eviction.disruption_budgets:expected_answer",
        f"{_P}.eviction.eviction_answers:action_for",
        f"{_P}.eviction.eviction_answers:wait_seconds",
    ),
    "node_reserved": (f"{_P}.overcommit.resource_columns:NodeAmounts.reserved",),
    "safety_margin": (_RECORDS,),
    "batch_resource": (f"{_P}.overcommit.batch:batch", _OFFERS),
    "degrade": (f"{_P}.overcommit.offer_bounds:is_withdrawn",),
    "mid_resource": (f"{_P}.overcommit.mid:mid", _OFFERS),
    "trim_allocatable": (f"{_P}.placement.reservation_bounds:exceeds_reservation",),
    "node_extended_resources": (
        _OFFERS, f"{_P}.overcommit.third_party:third_party_allocation",
        f"{_P}.overcommit.status_patch:normalize_cpu",
    ),
    "sync_needed": (f"{_P}.overcommit.status_patch:is_due",),
    "nodemetric_spec": (f"{_P}.policy.nodemetric_spec:metric_spec",),
    "cpu_normalization": (f"{_P}.policy.normalization:ratio_text",),
    "resource_amplification": (f"{_P}.policy.amplification:ratios_text",),
    "extender_preempt_meta": ("pipeline.extender.preempt_messages:preemption_reply",),
    "extender_request": ("pipeline.extender.scheduler_messages:read_question",),
    "extender_filter_reply": ("tests.extender.scheduler:read_filter",),
    "extender_prioritize_total": ("tests.extender.scheduler:add_scores",),
    "extender_interest": ("tests.extender.scheduler:is_interested",),
    "config": (
        f"{_D}.descheduler_config:read_configuration", f"{_D}.low_node_load:pool_problems",
        f"{_D}.low_node_load:read_low_node_load",
    ),
    "low_node_load_evictions": (
        f"{_D}.load_balancing:LowNodeLoadStrategy.plan", f"{_D}.bookings:Bookings.land",
        f"{_D}.node_limits:node_limits",
    ),
    "classify_nodes": (
        f"{_D}.node_limits:classify", f"{_D}.node_limits:node_limits",
        f"{_D}.node_limits:over_use", f"{_P}.join.node_facts:raw_allocatable",
    ),
    "pod_sort_order": (
        f"{_D}.pod_order:eviction_order", f"{_P}.eviction.evictability:read_cost", _POD,
    ),
    "usage_scores": (f"{_D}.pod_order:node_scores", f"{_D}.pod_order:fit_scores"),
    "fragmentation_aware": (
        f"{_D}.fragmentation:imbalance", f"{_D}.fragmentation:FragmentationStrategy.gains",
    ),
    "scale_down_binpack": (f"{_D}.scale_down:rank",),
    "target_fit": (f"{_D}.bookings:Bookings.land", f"{_D}.node_fit:_tolerates"),
    "custom_priority": (f"{_D}.strategy_args:CustomPriorityArgs.problems",),
    "sigs_low_node_utilization": (
        f"{_D}.low_node_utilization:LowNodeUtilizationArgs.problems",
        f"{_P}.imported_usage.prometheus_answers:gather",
        f"{_P}.hot_nodes.compared_usage:_RecentWindows.averages",
        f"{_D}.node_limits:classify",
    ),
    "batch_resource_cgroup": (
        f"{_Q}.tier_cgroups:tier_claims", f"{_Q}.normalized_quota:normalized_quota_us",
    ),
    "cpu_burst_static": (f"{_Q}.cpu_burst:limit_quota_us",),
    "cpu_burst": (f"{_Q}.cpu_burst:_stepped", f"{_Q}.cpu_burst:pod_quota_us"),
    "cpu_burst_node_state": (f"{_Q}.share_pool_load:SharePoolLoad.load",),
    "cpu_burst_limiter": (f"{_Q}.burst_limiter:BurstLimiter.allows",),
    "be_cpu_evict": (
        f"{_Q}.be_cpu_satisfaction:release_millicores", f"{_Q}.mean_window:MeanWindow.mean",
    ),
    "cpu_evict_by_usage": (f"{_Q}.release_amounts:usage_release",),
    "evict_by_allocatable": (f"{_Q}.release_amounts:request_release",),
    "memory_evict_release": (f"{_Q}.release_amounts:usage_release",),
    "evict_selection": (f"{_Q}.eviction_victims:victim_order",),
    "blkio_lines": (f"{_Q}.block_io:pod_limits", f"{_Q}.block_io:root_costs"),
    "resctrl_schemata_intel_amd": (
        f"{_Q}.resctrl_schemata:way_mask", f"{_Q}.resctrl_schemata:bandwidth",
        f"{_Q}.resctrl_schemata:parse_schemata",
    ),
    "node_sysctl": (f"{_Q}.node_sysctl:_values",),
    "memory_qos": (f"{_Q}.memory_qos:_protection", f"{_Q}.memory_qos:_high_bytes"),
    "memory_page_cache_limit": (f"{_Q}.page_cache_limit:page_cache_limit",),
    "cgroup_file_parsing": (f"{_K}.parse_files:throttling_v1", f"{_K}.parse_files:node_ticks"),
    "cgroup_paths": (f"{_K}.cgroup_paths:pod_dir", f"{_K}.cgroup_paths:host_app_dir"),
    "cpu_suppress_cores": (f"{_Q}.best_effort_room:best_effort_room",),
    "cpu_suppress_cpuset_choice": (f"{_Q}.cpuset_choice:choose_cpus",),
    "cpu_suppress_cpuset_adjust": (
        f"{_Q}.cpuset_choice:next_cpuset", f"{_Q}.cpu_pools:best_effort_cpus",
    ),
    "cpu_suppress_cfs_quota": (
        f"{_Q}.cpu_suppression:_next_quota_us", f"{_Q}.best_effort_room:best_effort_room",
    ),
    "group_identity": (f"{_Q}.cpu_identity:_value",),
    "cpu_suppress_recover_cpuset": (f"{_Q}.cpu_pools:best_effort_cpus",),
    "usage_formulas": (f"{_K}.formulas:system_usage", "node_exporter.counter_deltas:growth"),
    "loadaware_priority_class": (_POD,),
    "loadaware_args_defaults": (f"{_L}.loadaware_args:with_defaults",),
    "loadaware_args_validation": (f"{_L}.loadaware_args:problems",),
    "loadaware_estimator": (f"{_L}.pod_estimate:estimate", f"{_L}.pod_estimate:pod_factors"),
    "loadaware_estimator_node": (f"{_P}.join.node_facts:raw_allocatable",),
    "loadaware_estimate_deadline": (f"{_L}.pod_estimate:deadline",),
    "loadaware_aggregate_selection": (f"{_L}.filter_score:aggregated_usage",),
    "loadaware_inflight": (f"{_L}.in_flight:sum_in_flight", f"{_L}.in_flight:is_in_flight"),
    "loadaware_filter": (
        f"{_L}.filter_score:judge", f"{_L}.node_thresholds:select_limits",
        "pipeline.extender.scheduler_messages:filter_reply",
        "pipeline.extender.scheduler_messages:Pod.of_daemon_set",
    ),
    "loadaware_score": (f"{_S}.load_aware:SCORER.score", f"{_L}.filter_score:score"),
    "noderesourcesfitplus": (f"{_S}.node_resources_fit_plus:SCORER.score",),
    "noderesourcesfitplus_pod_request": (f"{_S}.node_resources_fit_plus:fit_request",),
    "scarce_resource_avoidance": (f"{_S}.scarce_resource_avoidance:SCORER.score",),
    "scheduling_hint_preferred": (f"{_S}.scheduling_hint:preferred_nodes",),
    "target_load_packing": (f"{_S}.target_load_packing:SCORER.score",),
    "target_load_packing_container": (f"{_S}.target_load_packing:container_millicores",),
    "trimaran_recent_pod_window": (f"{_S}.target_load_packing:is_unmeasured",),
    "trimaran_recent_pod_cleanup": (f"{_S}.target_load_packing:is_unmeasured",),
    "trimaran_metric_selection": (f"{_S}.load_statistics:average_percent",),
    "trimaran_resource_stats": (f"{_S}.load_statistics:load_from_percent",),
    "trimaran_mu_sigma": (f"{_S}.load_statistics:shares",),
    "trimaran_effective_resources": (f"{_P}.kubernetes.object_records:pod_record",),
    "trimaran_node_requests_limits": (f"{_S}.low_risk_over_commitment:sums_with_pod",),
    "load_variation_risk_balancing": (f"{_S}.load_variation_risk_balancing:risk_score",),
    "load_variation_risk_balancing_node": (f"{_S}.load_variation_risk_balancing:SCORER.score",),
    "low_risk_overcommitment": (f"{_S}.low_risk_over_commitment:total_risk",),
    "low_risk_overcommitment_score": (f"{_S}.low_risk_over_commitment:SCORER.score",),
    "beta_distribution": (f"{_S}.beta:fit", f"{_S}.beta:probability_below"),
    "peaks": (f"{_S}.peaks:power_rise",),
    "peaks_normalize": (f"{_S}.peaks:SCORER.score",),
    "limit_aware_score": (f"{_S}.resource_limits:limit_room",),
    "limit_aware_normalize": (f"{_S}.resource_limits:SCORER.score",),
    "node_resources_allocatable": (f"{_S}.node_resources_allocatable:SCORER.score",),
    "node_metadata": (f"{_S}.node_metadata:SCORER.score",),
    "trimaran_args_defaults": (f"{_S}.trimaran:with_defaults",),
    "load_watcher_json": (f"{_P}.exchange.load_watcher_document:metric",),
    "load_watcher_http": (_WATCHED,),
    "load_watcher_window_fallback": (f"{_P}.exchange.load_watcher_document:served_window",),
    "load_watcher_prometheus": (f"{_P}.imported_usage.promql:queries", _WATCHED),
}  # fmt: skip
SKIPPED: Final = frozenset(
    {
        f"{_P}.model.bank:Bank.restore", f"{_P}.model.bank:Bank.forget", _TRAIN,
        f"{_P}.model.entity_models:EntityModels.shift", _ADD,
        "actuators.node.cgroup_files:write_file",
    }
)  # fmt: skip
"""Functions that change what they are given: the mutation leaves it alone."""


@contextmanager
def broken(target: str) -> Iterator[None]:
    """Break `module:name`, `module:Class.method` or `module:SCORER.score` within the context."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    owner_name, _, name = path.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    original: Any = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    if isinstance(original, property):
        getter: Any = original.fget
        replacement: Any = property(lambda self: changed(getter(self)))
    else:
        replacement = _replacement(original, is_skipped=target in SKIPPED)
    with ExitStack() as stack:
        if isinstance(owner, type):
            stack.enter_context(patch.object(owner, name, replacement))
        for module in [*sys.modules.values()]:
            names = [key for key, value in vars(module).items() if value is original]
            for key in names:
                stack.enter_context(patch.object(module, key, replacement))
        for scorer in map(SCORERS.get, SCORERS.points):
            for key in [key for key, value in vars(scorer).items() if value is original]:
                # A frozen dataclass: only its own way past the freeze.
                object.__setattr__(scorer, key, replacement)
                stack.callback(object.__setattr__, scorer, key, original)
        _clear_caches()
        try:
            yield
        finally:
            _clear_caches()


def _clear_caches() -> None:
    """Forget what the product remembers of earlier calls, broken or not."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in _PRODUCT:
            for value in [*vars(module).values()]:
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


def _replacement(original: FunctionType, *, is_skipped: bool) -> Any:
    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return None if is_skipped else changed(original(*args, **kwargs))

    return replaced


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | float):
        return 2 * value + 1000
    if isinstance(value, str | bytes):
        return value[:-1]
    if isinstance(value, np.ndarray):
        return ~value if value.dtype == np.bool_ else 2 * value + 1000
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(changed, value))
    if isinstance(value, list | tuple):
        return type(value)(map(changed, value)) if value else value
    if isinstance(value, dict):
        return {key: changed(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(value, **{n: changed(getattr(value, n)) for n in names})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: changed(getattr(value, n)) for n in fields})
    if isinstance(value, Iterator):
        return iter(())
    return None
