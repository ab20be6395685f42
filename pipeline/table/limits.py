"""Time-outs and limits of the state table, each with its reason."""

from typing import Final

from pipeline.topics.registry import NODE_STATE, TOMBSTONE_MS

# -- values

LARGEST_USAGE: Final = 2.0**43
"""More cores or bytes than any node has: larger usage is unknown."""
LARGEST_WHOLE: Final = 2**53
"""The largest number that floats and JSON have exactly."""

# -- memory

FIRST_ROWS: Final = 64
"""Size of an empty table; it doubles as needed."""
MAX_DEPARTED: Final = 100_000
"""Departed nodes whose last result is remembered, so that a late one does not bring them back."""
POINTS: Final = 120
"""Windows of a node's history: an hour at 30 s, ten minutes at 5 s."""
FUTURE_SECONDS: Final = 3600.0
"""How far a window of a history may end after now by the clock of the process. Workers refuse a
window that ends a minute after now by the broker's clock; the clock of the process may be slow."""
REFILLED_SECONDS: Final = NODE_STATE.compaction_lag_ms / 1000
"""How much history a restart reads again: older windows are compacted to the newest."""
NODE_PODS_SECONDS: Final = 900.0
"""How long whole records of a node's pods are kept after they were last asked for."""

MAX_NODE_RESOURCES: Final = 256
"""Resources of one node beside cpu and memory; further ones count as 0. Nodes have a few dozen."""
MAX_RESOURCES: Final = 256
"""Resources with a column over all nodes."""

# -- placed pods

TENTATIVE_SECONDS: Final = 5.0
"""How long a placed pod counts: until its bind is seen on the topic, which takes some hundred
milliseconds."""
LONGEST_UNCONFIRMED_SECONDS: Final = 1800.0
"""How much longer a placed pod counts while the watcher is dead. A pod of this age is measured."""
LONGEST_TENTATIVE_SECONDS: Final = 3600.0
"""Longer than any plan; a pod that expires later was placed before the clock was set back."""

# -- reading the topics

LATE_WINDOW_SECONDS: Final = 60.0
"""How late the last window of a node may be whose pods are read: the span ends with it."""
OLDEST_PREDICTION_SECONDS: Final = 3600.0
"""From this age on the history in a prediction says nothing: workers repeat it every ten minutes.
"""
AHEAD_SECONDS: Final = 300.0
"""How far the clock of a prediction may be ahead: others of its pool would be old beside it."""
FORGOTTEN_AFTER_SECONDS: Final = TOMBSTONE_MS / 2000
"""After half of the time for which the broker keeps tombstones everything is read again."""
START_TIMEOUT_SECONDS: Final = 30.0
PROBE_EVERY_SECONDS: Final = 2.0
PROBE_TIMEOUT_SECONDS: Final = 5.0
"""A broker that does not answer for so long is away."""
FIRST_PAUSE_SECONDS: Final = 0.25
MISSING_TOPIC_SECONDS: Final = 30.0
"""Between two looks whether an optional topic exists by now: each lists all topics."""
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Between attempts to connect."""
FETCH_BYTES: Final = 1 << 18
FETCH_WAIT_MS: Final = 200
"""A fetch costs more than the records in it, so the broker collects records for a moment."""
RECORDS_AT_ONCE: Final = 100
"""Of a fetch. Applying them takes 10 ms."""
RECORDS_IN_A_TURN: Final = 8
"""Of the event loop. A request takes several turns, and never waits long for so few."""
TRICKLE_PAUSE_SECONDS: Final = 0.001
TRICKLING_SECONDS: Final = 0.15
"""Shorter than the time from one fetch to the next, else records would pile up."""

# -- snapshots

SAVE_EVERY_SECONDS: Final = 60.0
SNAPSHOT_RECORDS_AT_ONCE: Final = 100
SNAPSHOT_UIDS_AT_ONCE: Final = 10_000
"""What the writing thread encodes before it lets other threads run."""
