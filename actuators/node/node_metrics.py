"""Metrics of the node actuator."""

from pipeline.metrics import counter, gauge, histogram

ROUND_SECONDS = histogram(
    "node_actuator_round_seconds",
    "Time of a round: read, decide, write.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
EARLY_ROUNDS = counter(
    "node_actuator_early_rounds",
    "Rounds before their second, because a cgroup of a pod or a view of the node is new.",
)
WATCHED = gauge(
    "node_actuator_watched_cgroups",
    "Directories of pods whose new cgroups are noticed at once, by inotify.",
)
ROUNDS_FAILED = counter(
    "node_actuator_rounds_failed",
    "Rounds with an error, by reason: kernel, internal (limits stay as they are), step (evictions "
    "or resctrl failed).",
    ["reason"],
)
FEATURES_FAILED = counter(
    "node_actuator_features_failed",
    "Calls of a feature that raised an error; its former values stay.",
    ["feature"],
)
CHANGES = counter(
    "node_actuator_changes",
    "Changes of cgroup values, by feature and outcome: done, observed, failed.",
    ["feature", "outcome"],
)
CLAIMED = gauge(
    "node_actuator_claimed_values", "Cgroup values that a feature holds now.", ["feature"]
)
HELD = gauge(
    "node_actuator_held", "1 while the view is stale and no limit is widened or restored, else 0."
)
VIEW_AGE = gauge(
    "node_actuator_view_age_seconds", "Time since the view of the node was last confirmed."
)
VIEW_GENERATION = gauge(
    "node_actuator_view_generation", "Generation of the view that decisions follow."
)
CUT_PODS = gauge(
    "node_actuator_cut_pods",
    "Pods whose labels, annotations and containers the view leaves out, because it would be too "
    "large: what was known of them before counts, else their limits stay.",
)
USAGE_AGE = gauge(
    "node_actuator_usage_age_seconds", "Age of the newest usage from the exporter's socket."
)
UNSUPPORTED = gauge(
    "node_actuator_unsupported", "1 for each wanted limit that this kernel does not have.", ["knob"]
)
ACTIONS_LOST = counter(
    "node_actuator_actions_lost", "Actions that could not be written to springtide.actions."
)
WRITE_ERRORS = counter(
    "node_actuator_write_errors",
    "Limits that could not be read or written in a round, by reason: refused, read_only, "
    "forbidden, unsupported, unreadable, unsaved, other_value.",
    ["knob", "reason"],
)
NOT_WRITABLE = gauge(
    "node_actuator_not_writable",
    "1 for each controller whose cgroups this process could not write at its start, else 0.",
    ["controller"],
)
FOREIGN_CHANGES = counter(
    "node_actuator_foreign_changes", "Limits that another process changed after us.", ["knob"]
)
ORIGINAL_VALUES = gauge(
    "node_actuator_original_values", "Saved values that are restored when a limit ends."
)
ORIGINAL_VALUES_LOST = gauge(
    "node_actuator_original_values_lost",
    "1 if the saved values of the process before could not be read, else 0.",
)
NRI_CONNECTED = gauge(
    "node_actuator_nri_connected", "1 while the container runtime asks before containers start."
)
NRI_ANSWERS = counter(
    "node_actuator_nri_answers",
    "Answers to the container runtime, by result: adjusted (a container starts with limits), empty "
    "(it needs none, or no feature acts), unknown (no view has the pod), late, failed.",
    ["result"],
)
