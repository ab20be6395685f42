"""The planner: `planner` feeds one leader, `relief_rounds` decides when to plan and writes plans.

`relief_policy` is what the descheduler configuration allows. `pool_means_publisher` publishes the
mean usage of node pools, for thresholds that are distances from it.
"""
