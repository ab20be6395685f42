"""Sizes of the documents of the console, whatever the topics have."""

from typing import Final

from pipeline.topics.alerts import FORGOTTEN_SECONDS

KEPT_SECONDS: Final = FORGOTTEN_SECONDS
"""Plans of this age are forgotten, as alerts of the planner are: both are read back for as long
when an extender starts."""
PLANS: Final = 200
"""Plans that are remembered, the newest."""
PODS_OF_A_PLAN: Final = 50
"""Pods of a plan that are listed; the number of the others is said."""
TEXT_CHARACTERS: Final = 1000
"""Characters of a reason or a warning."""
HOT_ROWS: Final = 1000
"""Open alerts that are listed: critical ones first, then the oldest."""
TROUBLES: Final = 100
"""Alerts of the planner that are listed."""
GROUPS: Final = 1000
"""Groups of judged peaks by pool, predictor and resource."""
POLICIES: Final = 50
"""Different policies that are listed, those of most nodes first."""
WARNINGS: Final = 100
"""Different warnings about the policy."""
NAMED_NODES: Final = 3
"""Nodes that a warning names; the number of all is said."""
RESULTS: Final = 50
"""Published results of `springtide what-if` that are listed, the newest."""
RESULT_BYTES: Final = 2 * 1024 * 1024
"""Their records together."""
READ_RESULTS: Final = 1000
"""Results that are read: when newer ones are withdrawn, older ones are listed again."""
READ_RESULT_BYTES: Final = 16 * 1024 * 1024
"""Their records together, which are in memory only while they are read."""
RESULT_NAME_BYTES: Final = 80
"""Of the key of a record; a valid name has at most 63."""
COUNTED_RESULTS: Final = 10_000
"""Older results that are counted."""
REFUSED_RESULTS: Final = 20
"""Records that are no results, of which the reason is shown."""
