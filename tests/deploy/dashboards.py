"""The Grafana dashboards of deploy/chart/monitoring: what their panels show.

`python -m tests.deploy.monitoring_files` writes them as Grafana's JSON (`make docs`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

_SCHEMA_VERSION: Final = 39
_COLUMNS: Final = 3
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_RATE: Final = "$__rate_interval"


class Panel(NamedTuple):
    """Lines over time. `queries` are PromQL and the legend of their series; `unit` is Grafana's."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    description: str = ""


class Dashboard(NamedTuple):
    """Panels, and variables: the label whose values are offered, by the metric that has it."""

    title: str
    panels: Sequence[Panel]
    variables: Mapping[str, str] = {}


def _rate(metric: str, labels: str, matchers: str = "") -> tuple[str, str]:
    """The rate of a counter by labels, and the legend that shows them."""
    by = f" by ({labels})" if labels else ""
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in labels.split(",") if label)
    return f"sum{by} (rate({metric}{matchers}[{_RATE}]))", legend or metric


def _quantile(share: float, metric: str, labels: str, matchers: str = "") -> tuple[str, str]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in labels.split(",") if label)
    return (
        f"histogram_quantile({share:g}, sum by (le, {labels}) "
        f"(rate({metric}_bucket{matchers}[{_RATE}])))",
        f"p{100 * share:g} {legend}",
    )


def _share(part: str, whole: str, labels: str, span: str) -> str:
    """The growth of a counter by that of another one."""
    return (
        f"sum by ({labels}) (increase({part}[{span}])) "
        f"/ sum by ({labels}) (increase({whole}[{span}]))"
    )


_PEAKS: Final = "predictor, resource, pool"
_PEAK_LEGEND: Final = "{{predictor}} {{resource}} {{pool}}"

_FLEET: Final = Dashboard(
    "Fleet",
    [
        Panel("Nodes", "short", [
            ("max(springtide_table_nodes)", "known"),
            ("sum(springtide_worker_nodes)", "with models"),
            ("max(springtide_table_stale_nodes)", "stale"),
            ("max(springtide_table_usage_outage_nodes)", "in an outage"),
        ]),
        Panel("Pods", "short", [
            ("max(springtide_table_pods)", "on nodes"),
            ("max(springtide_table_pods_in_flight)", "not measured yet"),
            ("max(springtide_extender_waiting_pods)", "refused by every node"),
        ]),
        Panel("CPU usage", "short", [
            ("sum(springtide_exporter_node_used_cpu_cores)", "nodes"),
            ("sum(springtide_exporter_system_used_cpu_cores)", "system"),
        ], "Cores, of nodes with an exporter."),
        Panel("Memory usage", "bytes", [
            ("sum(springtide_exporter_node_used_memory_bytes)", "nodes"),
            ("sum(springtide_exporter_system_used_memory_bytes)", "system"),
        ]),
        Panel("Open alerts of hot nodes", "short", [
            ("sum by (rule, severity) (springtide_worker_open_alerts)", "{{rule}} {{severity}}"),
        ]),
        Panel("Nodes that offer", "short", [
            ("max by (what) (springtide_actuator_nodes_offering)", "{{what}}"),
        ], "Nodes with Mid and Batch resources."),
        Panel("Limits over allocatable", "percentunit", [
            ("max by (resource, statistic) (springtide_table_limits_ratio)",
             "{{resource}} {{statistic}}"),
        ]),
        Panel("Anomalies of usage", "short", [
            ("max by (oddity) (springtide_table_odd_nodes)", "{{oddity}}"),
        ], "Nodes by anomaly; FLAGS of springtide top names them."),
        Panel("Objects of the watcher", "short", [
            ("max by (kind) (springtide_watcher_objects)", "{{kind}}"),
            ("max(springtide_table_heartbeat_age_seconds)", "age of the heartbeat"),
        ]),
    ],
)  # fmt: skip

_ON_NODE: Final = '{node=~"$node"}'
_OF_EXPORTER: Final = '{instance=~"$instance"}'
_NODE: Final = Dashboard(
    "Node",
    [
        Panel("Peak of Prod: CPU", "short", [
            ('max by (node, predictor) (koordlet_node_predicted_resource_peak'
             '{node=~"$node",resource="cpu"})', "{{node}} {{predictor}}"),
        ], "Cores that each predictor expects, with the margin."),
        Panel("Peak of Prod: memory", "bytes", [
            ('max by (node, predictor) (koordlet_node_predicted_resource_peak'
             '{node=~"$node",resource="memory"})', "{{node}} {{predictor}}"),
        ]),
        Panel("Reclaimable CPU", "short", [
            ('max by (node, predictor) (koordlet_node_predicted_resource_reclaimable'
             '{node=~"$node",resource="cpu"})', "{{node}} {{predictor}}"),
        ], "Requested by Prod and predicted to stay unused."),
        Panel("CPU usage", "short", [
            (f"springtide_exporter_node_used_cpu_cores{_OF_EXPORTER}", "{{instance}} node"),
            (f"springtide_exporter_system_used_cpu_cores{_OF_EXPORTER}", "{{instance}} system"),
        ]),
        Panel("Memory usage", "bytes", [
            (f"springtide_exporter_node_used_memory_bytes{_OF_EXPORTER}", "{{instance}} node"),
            (f"springtide_exporter_system_used_memory_bytes{_OF_EXPORTER}", "{{instance}} system"),
        ]),
        Panel("Pods", "short", [
            (f"springtide_exporter_pods{_OF_EXPORTER}", "{{instance}}"),
        ]),
        Panel("Best-effort pods: CPU", "short", [
            (f"koordlet_be_suppress_cpu_cores{_ON_NODE}", "{{node}} limit ({{type}})"),
            (f"koordlet_be_suppress_be_used_cpu_cores{_ON_NODE}", "{{node}} best-effort"),
            (f"koordlet_be_suppress_ls_used_cpu_cores{_ON_NODE}", "{{node}} others"),
        ]),
        Panel("CPU burst", "µs", [
            (f"koordlet_container_scaled_cfs_quota_us{_ON_NODE}",
             "{{pod_name}} {{container_name}} quota"),
            (f"koordlet_container_scaled_cfs_burst_us{_ON_NODE}",
             "{{pod_name}} {{container_name}} burst"),
        ], "Microseconds of CPU in each period of 100 ms."),
        Panel("Reading the node", "s", [
            _quantile(0.99, "springtide_exporter_collection_duration_seconds", "instance",
                      _OF_EXPORTER),
            (f"increase(springtide_exporter_collections_missed_total{_OF_EXPORTER}[1h])",
             "{{instance}} missed in an hour"),
        ]),
    ],
    {"node": "koordlet_node_predicted_resource_peak",
     "instance": "springtide_exporter_node_used_cpu_cores"},
)  # fmt: skip

_PIPELINE: Final = Dashboard(
    "Pipeline",
    [
        Panel("Windows applied", "ops", [_rate("springtide_worker_windows_total", "status")]),
        Panel("Windows published by exporters", "ops", [
            _rate("springtide_exporter_windows_total", ""),
            _rate("springtide_exporter_windows_dropped_total", "reason"),
        ]),
        Panel("Age of the last window", "s", [
            ("time() - max by (partition) "
             "(springtide_worker_last_window_end_timestamp_seconds > 0)", "{{partition}}"),
            ("max(springtide_table_newest_window_age_seconds)", "extender"),
        ]),
        Panel("Lag of the models", "short", [
            ("sum by (partition) (springtide_worker_log_lag_records)", "{{partition}}"),
            ("max(springtide_table_lag_records)", "extender"),
        ], "Records that are not applied."),
        Panel("Partitions", "short", [
            ("sum by (instance) (springtide_worker_partitions)", "{{instance}}"),
        ]),
        Panel("Refused records", "short", [
            ("sum by (topic, reason) (increase(springtide_worker_dead_letters_total[1h]))",
             "dead letters {{topic}} {{reason}}"),
            ("sum by (source, reason) (increase(springtide_refused_records_total[1h]))",
             "{{source}} {{reason}}"),
        ], "In an hour."),
        Panel("Lost records", "short", [
            ("sum(increase(springtide_worker_lost_windows_total[1h]))", "windows"),
            ("sum by (topic) (increase(springtide_worker_lost_records_total[1h]))", "{{topic}}"),
            ("sum(increase(springtide_worker_skipped_windows_total[1h]))", "failed windows"),
        ], "In an hour."),
        Panel("Checkpoints", "s", [
            _quantile(0.99, "springtide_worker_checkpoint_round_seconds", "instance"),
            _quantile(0.99, "springtide_worker_partition_load_seconds", "instance"),
        ], "Duration of rounds, and of loading partitions."),
        Panel("Checkpoint bytes", "Bps", [_rate("springtide_worker_checkpoint_bytes_total", "")]),
        Panel("Buffers of exporters", "bytes", [
            ("topk(10, springtide_exporter_buffer_bytes)", "{{instance}}"),
        ]),
        Panel("Archive", "s", [
            ("max(springtide_archive_unsaved_seconds)", "age of the oldest unsaved record"),
        ]),
        Panel("Import of usage", "s", [
            _quantile(0.99, "springtide_provider_fetch_seconds", "instance"),
            ("time() - max(springtide_provider_last_window_end_timestamp_seconds > 0)",
             "age of the last window"),
        ]),
    ],
)  # fmt: skip

_ACCURACY: Final = Dashboard(
    "Accuracy and headroom",
    [
        Panel("Violations in a day", "percentunit", [
            (_share("springtide_worker_peak_violations_total",
                    "springtide_worker_judged_peaks_total", _PEAKS, "1d"), _PEAK_LEGEND),
            ("max by (predictor) (springtide_worker_declared_risk_ratio)",
             "{{predictor}} declares"),
        ], "Share of judged peaks of Prod that usage exceeded."),
        Panel("Severity", "percentunit", [
            (_share("springtide_worker_peak_severity_ratio_total",
                    "springtide_worker_peak_violations_total", _PEAKS, "1d"), _PEAK_LEGEND),
        ], "By how much usage exceeded a peak, on average over violations."),
        Panel("Savings", "percentunit", [
            (_share("springtide_worker_peak_savings_ratio_total",
                    "springtide_worker_judged_peaks_total", _PEAKS, "1d"), _PEAK_LEGEND),
        ], "Share of requests that a peak leaves to others."),
        Panel("Judged peaks in an hour", "short", [
            ("sum by (predictor) (increase(springtide_worker_judged_peaks_total[1h]))",
             "{{predictor}}"),
            ("sum by (predictor) (increase(springtide_worker_unjudged_peaks_total[1h]))",
             "{{predictor}} not judged"),
        ]),
        Panel("Headroom: CPU", "short", [
            ('sum by (predictor) (koordlet_node_predicted_resource_reclaimable'
             '{resource="cpu"})', "{{predictor}}"),
        ], "Reclaimable cores of the nodes on the page (worker.node_metrics)."),
        Panel("Headroom: memory", "bytes", [
            ('sum by (predictor) (koordlet_node_predicted_resource_reclaimable'
             '{resource="memory"})', "{{predictor}}"),
        ]),
    ],
)  # fmt: skip

_SCHEDULER: Final = Dashboard(
    "Scheduler",
    [
        Panel("Requests", "reqps", [_rate("springtide_extender_requests_total", "verb, status")]),
        Panel("Latency", "s", [
            _quantile(0.5, "springtide_extender_request_seconds", "verb"),
            _quantile(0.99, "springtide_extender_request_seconds", "verb"),
        ]),
        Panel("Latency by stage", "s", [
            _quantile(0.99, "springtide_extender_stage_seconds", "verb, stage"),
        ]),
        Panel("Verdicts", "ops", [
            _rate("springtide_extender_verdicts_total", "mode, verdict"),
        ], "Nodes judged by filter."),
        Panel("Reasons of refusals", "ops", [
            _rate("springtide_extender_refusals_total", "reason"),
        ]),
        Panel("Fallbacks", "ops", [
            _rate("springtide_extender_fallbacks_total", ""),
            _rate("springtide_decisions_plugin_failures_total", "plugin"),
        ], "Answers in which requests replaced a plugin."),
        Panel("Waiting pods", "short", [
            ("max(springtide_extender_waiting_pods)", "refused by every node"),
            ("sum(increase(springtide_extender_wake_ups_total[1h]))", "wake-ups in an hour"),
            ("sum(increase(springtide_extender_eviction_plans_total[1h]))", "plans in an hour"),
        ]),
        Panel("Work that prioritize reuses", "ops", [
            _rate("springtide_extender_cycles_total", "outcome"),
        ]),
        Panel("Connections", "short", [
            ("sum by (instance) (springtide_extender_connections)", "{{instance}}"),
            ("sum by (reason) (increase(springtide_extender_connections_closed_total[1h]))",
             "closed in an hour: {{reason}}"),
        ]),
    ],
)  # fmt: skip

_DESCHEDULER: Final = Dashboard(
    "Descheduler",
    [
        Panel("Evictions, all", "short", [
            ("sum by (result) (descheduler_pods_evicted)", "{{result}}"),
        ], "Since the leader of the evictors began."),
        Panel("Evictions in an hour", "short", [
            ("sum by (strategy, result) (increase(descheduler_pods_evicted[1h]))",
             "{{strategy}} {{result}}"),
        ]),
        Panel("Share of successes", "percentunit", [
            ('sum(descheduler_pods_evicted{result="success"}) / '
             'sum(descheduler_pods_evicted{result=~"success|error"})', "success"),
        ]),
        Panel("Rate of evictions", "ops", [
            ('sum by (strategy) (rate(descheduler_pods_evicted{result="success"}[5m]))',
             "{{strategy}}"),
        ]),
        Panel("Nodes with most evictions", "short", [
            ('topk(10, sum by (node) (descheduler_pods_evicted{result="success"}))', "{{node}}"),
        ]),
        Panel("Namespaces with most evictions", "short", [
            ('topk(10, sum by (namespace) (descheduler_pods_evicted{result="success"}))',
             "{{namespace}}"),
        ]),
        Panel("Plans by outcome", "short", [
            ("sum by (outcome) (increase(springtide_evictor_plans_total[1h]))", "{{outcome}}"),
            ("sum by (phase) (increase(springtide_evictor_migration_jobs_total[1h]))",
             "jobs {{phase}}"),
        ], "In an hour. Limits of rates make plans wait (taken) until they are late."),
        Panel("Hot nodes", "short", [
            ("max(springtide_planner_hot_nodes)", "hot"),
            ("max(springtide_planner_resting_nodes)", "resting"),
            ("max(springtide_planner_hopeless)", "cannot be relieved"),
        ]),
        Panel("Plans of the planner", "short", [
            ("sum by (result) (increase(springtide_planner_plans_total[1h]))", "{{result}}"),
            ("sum by (helped) (increase(springtide_planner_outcomes_total[1h]))",
             "helped: {{helped}}"),
        ], "In an hour."),
        Panel("Why nothing is planned", "short", [
            ("max by (reason) (springtide_planner_blocked)", "{{reason}}"),
            ("max by (strategy) (springtide_planner_paused)", "{{strategy}} paused"),
        ]),
        Panel("Duration of a round", "s", [
            ("max(springtide_planner_round_seconds)", "last round"),
        ]),
        Panel("Proposed thresholds", "percentunit", [
            ("max by (pool, rule) (springtide_planner_proposed_threshold_ratio)",
             "{{pool}} {{rule}}"),
        ]),
    ],
)  # fmt: skip

_ACTUATORS: Final = Dashboard(
    "Actuators",
    [
        Panel("Writes to the API server", "ops", [
            _rate("springtide_actuator_writes_total", "what, outcome"),
        ]),
        Panel("Waiting writes", "short", [
            ("sum by (what) (springtide_actuator_waiting_writes)", "{{what}}"),
        ]),
        Panel("Actions", "ops", [_rate("springtide_actuator_actions_total", "action, outcome")]),
        Panel("Changes of limits", "ops", [
            _rate("springtide_node_actuator_changes_total", "feature, outcome"),
        ]),
        Panel("Limits that are held", "short", [
            ("sum by (feature) (springtide_node_actuator_claimed_values)", "{{feature}}"),
        ]),
        Panel("Errors of limits", "short", [
            ("sum by (knob, reason) (increase(springtide_node_actuator_write_errors_total[1h]))",
             "{{knob}} {{reason}}"),
            ("sum by (reason) (increase(springtide_node_actuator_rounds_failed_total[1h]))",
             "rounds {{reason}}"),
        ], "In an hour."),
        Panel("Rounds", "s", [
            _quantile(0.99, "springtide_node_actuator_round_seconds", "instance"),
        ]),
        Panel("Age of inputs", "s", [
            ("max(springtide_node_actuator_view_age_seconds)", "oldest view"),
            ("max(springtide_node_actuator_usage_age_seconds)", "oldest usage"),
            ("sum(springtide_node_actuator_held)", "nodes that hold limits"),
        ]),
        Panel("Evictions that nodes ask for", "short", [
            ("sum by (feature, mode) (springtide_node_actuator_wished_evictions)",
             "{{feature}} {{mode}}"),
            ("sum by (result) (increase(springtide_node_actuator_emergency_kills_total[1h]))",
             "kills in an hour: {{result}}"),
        ]),
        Panel("Lost actions", "short", [
            ("sum(increase(springtide_actuator_lost_actions_total[1h]))", "actuator"),
            ("sum(increase(springtide_evictor_lost_actions_total[1h]))", "evictor"),
            ("sum(increase(springtide_node_actuator_actions_lost_total[1h]))", "node actuator"),
        ], "In an hour."),
        Panel("Alerts to Alertmanager", "short", [
            ("max(springtide_notifier_open_alerts)", "open"),
            ("sum by (url) (springtide_notifier_waiting_alerts)", "waiting for {{url}}"),
        ]),
    ],
)  # fmt: skip

_PROCESSES: Final = Dashboard(
    "Process health",
    [
        Panel("CPU", "short", [
            (f'sum by (job) (rate(process_cpu_seconds_total{{job=~"springtide-.+"}}[{_RATE}]))',
             "{{job}}"),
        ], "Cores."),
        Panel("Memory", "bytes", [
            ('max by (job) (process_resident_memory_bytes{job=~"springtide-.+"})', "{{job}}"),
        ], "Of the largest process of a role."),
        Panel("Event-loop lag", "s", [
            _quantile(0.5, "springtide_event_loop_lag_seconds", "job"),
            _quantile(0.99, "springtide_event_loop_lag_seconds", "job"),
        ], "By how much a timer was late: answers and renewals of Leases wait as long."),
        Panel("Open files", "percentunit", [
            ('max by (job) (process_open_fds{job=~"springtide-.+"} / process_max_fds)', "{{job}}"),
        ], "Of the limit."),
        Panel("Restarts in an hour", "short", [
            ('sum by (job) (changes(process_start_time_seconds{job=~"springtide-.+"}[1h]))',
             "{{job}}"),
        ]),
        Panel("Processes", "short", [
            ('sum by (job) (up{job=~"springtide-.+"})', "{{job}}"),
        ]),
        Panel("Leaders", "short", [
            ("sum by (lease) (springtide_kubernetes_leader)", "{{lease}}"),
        ]),
        Panel("Requests to the API server", "reqps", [
            _rate("springtide_kubernetes_requests_total", "job, method, status"),
        ]),
        Panel("Changes from watches", "ops", [
            _rate("springtide_kubernetes_watch_events_total", "job, type"),
            _rate("springtide_kubernetes_lists_total", "job"),
        ]),
    ],
)  # fmt: skip

DASHBOARDS: Final[Mapping[str, Dashboard]] = {
    "fleet": _FLEET, "node": _NODE, "pipeline": _PIPELINE, "accuracy": _ACCURACY,
    "scheduler": _SCHEDULER, "descheduler": _DESCHEDULER, "actuators": _ACTUATORS,
    "processes": _PROCESSES,
}  # fmt: skip


def grafana_dashboard(name: str) -> dict[str, Any]:
    """A dashboard in Grafana's JSON model."""
    dashboard = DASHBOARDS[name]
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"}
    ]
    for label, metric in dashboard.variables.items():
        query = f"label_values({metric}, {label})"
        variables.append(
            {
                "name": label, "type": "query", "datasource": _DATASOURCE, "query": query,
                "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2,
            }
        )  # fmt: skip
    return {
        "uid": f"springtide-{name}",
        "title": f"Springtide / {dashboard.title}",
        "tags": ["springtide"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(index, panel) for index, panel in enumerate(dashboard.panels)],
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }
