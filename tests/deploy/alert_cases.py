"""For each alert of deploy/chart/monitoring: series that make it fire, and series that do not.

Values are in promtool's notation, a sample a minute: `0x30` is 0 for 30 minutes, `0+1x30` grows by
1 a minute, `_x10` has no samples. Whether the alert fires is looked at in the last minute.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

MINUTES: Final = 90
_JOB: Final = 'job="springtide-worker",instance="a"'
_PEAKS: Final = 'predictor="calibrated",resource="cpu",pool="gold"'

Series = Mapping[str, str]
"""Values by series."""


class Case(NamedTuple):
    """Series that make an alert fire, and such that do not; `firing` is how many fire."""

    fires: Series
    quiet: Series
    firing: int = 1


def _constant(value: float) -> str:
    return f"{value:g}x{MINUTES}"


def _gauge(series: str, firing: float, quiet: float = 0.0) -> Case:
    return Case({series: _constant(firing)}, {series: _constant(quiet)})


def _counter(series: str) -> Case:
    """Fires while it grows, and when it begins, also beside one of another process that counted
    before, and not while it has a value from long ago, even if Prometheus was away."""
    growing = f"7x{MINUTES - 10} 7+1x9"
    beginning = f"_x{MINUTES - 10} 1x9"
    other = series.replace("undecodable", "oversized").replace("}", ',instance="%s"}')
    first, second = other % "a", other % "b"
    quiet = {series: f"7x{MINUTES - 40} _x30 7x9"}
    return Case({series: growing, first: _constant(7), second: beginning}, quiet, 2)


def _behind(series: str, seconds: float) -> str:
    """A timestamp that is so far behind the time of the test, which begins at 0."""
    return f"{-seconds:g}+60x{MINUTES}"


def _lag(bucket: str) -> Series:
    """An observation each second, all in the bucket with this upper bound."""
    name = "springtide_event_loop_lag_seconds_bucket"
    bounds = ("0.001", "1.0", "3.0", "+Inf")
    return {
        f'{name}{{{_JOB},le="{bound}"}}': (
            f"0+60x{MINUTES}" if index >= bounds.index(bucket) else _constant(0)
        )
        for index, bound in enumerate(bounds)
    }


def _requests(bucket: str) -> Series:
    name = "springtide_extender_request_seconds_bucket"
    bounds = ("0.01", "0.1", "1.0", "+Inf")
    return {
        f'{name}{{verb="filter",le="{bound}"}}': (
            f"0+60x{MINUTES}" if index >= bounds.index(bucket) else _constant(0)
        )
        for index, bound in enumerate(bounds)
    }


def _violations(each_minute: float) -> Series:
    return {
        f"springtide_worker_peak_violations_total{{{_PEAKS}}}": f"0+{each_minute:g}x{MINUTES}",
        f"springtide_worker_judged_peaks_total{{{_PEAKS}}}": f"0+100x{MINUTES}",
        'springtide_worker_declared_risk_ratio{predictor="calibrated"}': _constant(0.01),
        # A predictor without a declared risk promises nothing.
        'springtide_worker_peak_violations_total{predictor="nsigma"}': f"0+50x{MINUTES}",
        'springtide_worker_judged_peaks_total{predictor="nsigma"}': f"0+100x{MINUTES}",
    }


def _certificate(lifetime_days: float, left_days: float, job: str = "a") -> Series:
    end = 86_400 * left_days + 60 * MINUTES
    labels = f'{{job="{job}",use="server"}}'
    return {
        f"springtide_certificate_not_after_timestamp_seconds{labels}": _constant(end),
        f"springtide_certificate_not_before_timestamp_seconds{labels}": _constant(
            end - 86_400 * lifetime_days
        ),
    }


CASES: Final[Mapping[str, Case]] = {
    "SpringtideRoleDown": Case(
        {'up{job="springtide-worker"}': _constant(0)},
        {'up{job="springtide-worker"}': _constant(1), 'up{job="other"}': _constant(0)},
    ),
    "SpringtideNoWorker": Case({}, {"springtide_worker_partitions": _constant(8)}),
    "SpringtideNoLeader": Case(
        {
            'springtide_kubernetes_leader{lease="springtide-planner",instance="a"}': _constant(0),
            'springtide_kubernetes_leader{lease="springtide-planner",instance="b"}': _constant(0),
        },
        {
            'springtide_kubernetes_leader{lease="springtide-planner",instance="a"}': _constant(0),
            'springtide_kubernetes_leader{lease="springtide-planner",instance="b"}': _constant(1),
        },
    ),
    "SpringtideEventLoopLag": Case(_lag("3.0"), _lag("0.001")),
    "SpringtideCertificateExpires": Case(
        _certificate(lifetime_days=90, left_days=6),
        {
            **_certificate(lifetime_days=90, left_days=8, job="a"),
            # Renewed every 8 hours.
            **_certificate(lifetime_days=1, left_days=0.5, job="b"),
        },
    ),
    "SpringtideCertificateNotYetValid": Case(
        _certificate(lifetime_days=90, left_days=91), _certificate(lifetime_days=90, left_days=89)
    ),
    "SpringtideExporterStale": Case(
        {
            "springtide_exporter_last_window_end_timestamp_seconds": f"60x{MINUTES}",
            "springtide_exporter_window_seconds": _constant(30),
        },
        {
            # The second one has not closed a window yet.
            'springtide_exporter_last_window_end_timestamp_seconds{instance="a"}': _behind("", 50),
            'springtide_exporter_last_window_end_timestamp_seconds{instance="b"}': _constant(0),
            'springtide_exporter_window_seconds{instance="a"}': _constant(30),
            'springtide_exporter_window_seconds{instance="b"}': _constant(30),
        },
    ),
    "SpringtideExportersWaiting": Case(
        {
            'springtide_exporter_buffer_windows{instance="a"}': f"0+2x{MINUTES}",
            'springtide_exporter_buffer_windows{instance="b"}': f"0+2x{MINUTES}",
        },
        {
            'springtide_exporter_buffer_windows{instance="a"}': _constant(1),
            'springtide_exporter_buffer_windows{instance="b"}': f"0x{MINUTES - 5} 9x2 0x2",
        },
    ),
    "SpringtideNodesStale": Case(
        {
            "springtide_table_stale_nodes": _constant(3),
            "springtide_table_nodes": _constant(100),
        },
        {
            'springtide_table_stale_nodes{instance="a"}': _constant(1),
            'springtide_table_nodes{instance="a"}': _constant(100),
            'springtide_table_stale_nodes{instance="b"}': _constant(0),
            'springtide_table_nodes{instance="b"}': _constant(0),
        },
    ),
    "SpringtideUsageOutage": _gauge("springtide_table_usage_outage_nodes", 20),
    "SpringtideWindowsDropped": Case(
        {'springtide_exporter_windows_dropped_total{reason="too_large"}': f"_x{MINUTES - 10} 1x9"},
        {
            # The window in which an exporter starts is not complete.
            'springtide_exporter_windows_dropped_total{reason="leading"}': f"0x{MINUTES - 10} 1x9",
            'springtide_exporter_windows_dropped_total{reason="too_large"}': _constant(1),
        },
    ),
    "SpringtidePipelineLag": Case(
        {
            # Owned by another worker before.
            'springtide_worker_last_window_end_timestamp_seconds{partition="0",instance="a"}': (
                _behind("", 600)
            ),
            'springtide_worker_last_window_end_timestamp_seconds{partition="0",instance="b"}': (
                _behind("", 300)
            ),
        },
        {
            'springtide_worker_last_window_end_timestamp_seconds{partition="0",instance="a"}': (
                _behind("", 600)
            ),
            'springtide_worker_last_window_end_timestamp_seconds{partition="0",instance="b"}': (
                _behind("", 60)
            ),
        },
    ),
    "SpringtideLogLag": Case(
        {'springtide_worker_log_lag_records{partition="0"}': _constant(200)},
        {
            'springtide_worker_log_lag_records{partition="0"}': f"200x{MINUTES - 10} 0 200x8",
            # A worker that has just begun.
            'springtide_worker_log_lag_records{partition="1"}': f"_x{MINUTES - 3} 200x2",
        },
    ),
    "SpringtideDeadLetters": _counter(
        'springtide_worker_dead_letters_total{topic="samples",reason="undecodable"}'
    ),
    "SpringtideRecordsRefused": _counter(
        'springtide_refused_records_total{job="springtide-extender",source="pods",reason="undecodable"}'
    ),
    "SpringtideWindowsLost": Case(
        {
            'springtide_worker_lost_windows_total{instance="a"}': f"0x{MINUTES - 10} 7x9",
            # Lost at its start, before the first scrape.
            'springtide_worker_lost_windows_total{instance="b"}': f"_x{MINUTES - 10} 7x9",
        },
        {
            'springtide_worker_lost_windows_total{instance="a"}': f"0x{MINUTES - 10} 0x9",
            'springtide_worker_lost_windows_total{instance="b"}': f"_x{MINUTES - 10} 0x9",
            'springtide_worker_lost_windows_total{instance="c"}': _constant(7),
        },
        2,
    ),
    "SpringtideSecondExporter": Case(
        {'springtide_worker_windows_total{status="second_exporter"}': f"_x{MINUTES - 10} 1x9"},
        {
            'springtide_worker_windows_total{status="second_exporter"}': _constant(3),
            'springtide_worker_windows_total{status="applied"}': f"0+60x{MINUTES}",
        },
    ),
    "SpringtideCheckpointsStopped": Case(
        {
            "springtide_worker_checkpoint_rounds_total": _constant(5),
            "springtide_worker_partitions": _constant(8),
        },
        {
            # The second one owns nothing.
            'springtide_worker_checkpoint_rounds_total{instance="a"}': f"0+0.2x{MINUTES}",
            'springtide_worker_partitions{instance="a"}': _constant(8),
            'springtide_worker_checkpoint_rounds_total{instance="b"}': _constant(5),
            'springtide_worker_partitions{instance="b"}': _constant(0),
        },
    ),
    "SpringtideWatcherSilent": Case(
        {"springtide_table_heartbeat_age_seconds": _constant(90)},
        {
            'springtide_table_heartbeat_age_seconds{instance="a"}': _constant(5),
            # Without a watcher.
            'springtide_table_heartbeat_age_seconds{instance="b"}': " ".join(["NaN"] * MINUTES),
        },
    ),
    "SpringtidePolicyInvalid": Case(
        {'springtide_policy_problems{in_force="false"}': _constant(2)},
        {
            'springtide_policy_problems{in_force="false"}': _constant(0),
            'springtide_policy_problems{in_force="true"}': _constant(1),
        },
    ),
    "SpringtideArchiveBehind": _gauge("springtide_archive_unsaved_seconds", 20_000, 3_000),
    "SpringtideExtenderBlind": Case(
        {
            'springtide_table_connected{instance="a"}': _constant(0),
            'springtide_table_nodes{instance="b"}': _constant(9),
            'springtide_table_newest_window_age_seconds{instance="b"}': _constant(300),
            # No window is known.
            'springtide_table_nodes{instance="c"}': _constant(9),
            'springtide_table_newest_window_age_seconds{instance="c"}': " ".join(["NaN"] * MINUTES),
        },
        {
            'springtide_table_connected{instance="a"}': _constant(1),
            'springtide_table_nodes{instance="a"}': _constant(9),
            'springtide_table_newest_window_age_seconds{instance="a"}': _constant(40),
            # There are no nodes.
            'springtide_table_nodes{instance="b"}': _constant(0),
            'springtide_table_newest_window_age_seconds{instance="b"}': " ".join(["NaN"] * MINUTES),
        },
        3,
    ),
    "SpringtideExtenderErrors": Case(
        {'springtide_extender_requests_total{verb="filter",status="503"}': f"0+1x{MINUTES}"},
        {
            'springtide_extender_requests_total{verb="filter",status="200"}': f"0+60x{MINUTES}",
            'springtide_extender_requests_total{verb="filter",status="503"}': _constant(9),
        },
    ),
    "SpringtideExtenderSlow": Case(_requests("1.0"), _requests("0.01")),
    "SpringtidePeaksAboveRisk": Case(_violations(3), _violations(1)),
    "SpringtideHotNodes": Case(
        {
            'springtide_worker_open_alerts{severity="warning"}': _constant(15),
            'springtide_worker_open_alerts{severity="critical"}': _constant(5),
            "springtide_worker_nodes": _constant(100),
        },
        {
            'springtide_worker_open_alerts{severity="warning"}': _constant(5),
            "springtide_worker_nodes": _constant(100),
        },
    ),
    "SpringtideNodesHopeless": _gauge("springtide_planner_hopeless", 1),
    "SpringtideWritesRefused": Case(
        {'springtide_actuator_writes_total{what="mid",outcome="refused"}': f"0+1x{MINUTES}"},
        {
            'springtide_actuator_writes_total{what="mid",outcome="refused"}': _constant(9),
            'springtide_actuator_writes_total{what="mid",outcome="done"}': f"0+60x{MINUTES}",
            'springtide_actuator_writes_total{what="mid",outcome="overtaken"}': f"0+1x{MINUTES}",
        },
    ),
    "SpringtideActionsLost": Case(
        {
            "springtide_actuator_lost_actions_total": f"0+1x{MINUTES}",
            'springtide_node_actuator_actions_lost_total{instance="b"}': f"0+1x{MINUTES}",
        },
        {"springtide_evictor_lost_actions_total": _constant(4)},
        2,
    ),
    "SpringtideEvictionsFail": Case(
        {
            'descheduler_pods_evicted{result="error",strategy="LowNodeLoad",node="a"}': (
                f"_x{MINUTES - 10} 1x9"
            )
        },
        {
            'descheduler_pods_evicted{result="error",strategy="LowNodeLoad"}': _constant(1),
            'descheduler_pods_evicted{result="success",strategy="LowNodeLoad"}': f"0+1x{MINUTES}",
        },
    ),
    "SpringtidePlannerBlocked": Case(
        {'springtide_planner_blocked{reason="usage"}': _constant(1)},
        {
            'springtide_planner_blocked{reason="usage"}': _constant(0),
            # No strategy is configured.
            'springtide_planner_blocked{reason="policy"}': _constant(1),
        },
    ),
    "SpringtideNodeLimitsFail": Case(
        {
            'springtide_node_actuator_write_errors_total{knob="cpu_quota",reason="refused"}': (
                f"0+1x{MINUTES}"
            )
        },
        {
            'springtide_node_actuator_write_errors_total{knob="cpu_quota",reason="refused"}': (
                _constant(2)
            )
        },
    ),
    "SpringtideNodeLimitsHeld": _gauge("springtide_node_actuator_held", 1),
    "SpringtideAlertsNotDelivered": Case(
        {'springtide_notifier_waiting_alerts{url="http://am"}': _constant(3)},
        {
            'springtide_notifier_waiting_alerts{url="http://am"}': f"3x{MINUTES - 5} 0 3x3",
            'springtide_notifier_waiting_alerts{url="http://new"}': f"_x{MINUTES - 3} 3x2",
        },
    ),
}
