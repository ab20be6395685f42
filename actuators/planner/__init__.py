"""The planner: `planner` feeds one leader, `relief_rounds` decides when to plan and writes plans.

`relief_policy` is what the descheduler configuration allows, and `planning_gate` says whether the
data is good enough. `hopeless_alerts` writes which nodes cannot be relieved, `plan_outcomes`
whether plans helped; `level_watch` writes alerts about usage that changed its level.
`pool_means_publisher` publishes the mean usage of node pools, for thresholds that are distances
from it, and `pool_outcomes_publisher` what calibrated peaks of their nodes came to.
"""
