"""The evictor: `eviction_actuator` reads plans, `plan_worker` starts each.

`plan_execution` makes room for a pod, `relief` relieves nodes; `eviction_gate` is the only way from
both to an eviction, `departures` sees evicted pods go.
"""
