"""The cluster actuator: Mid, Batch, NodeMetric and NodeSLO on the API server, as the topics say.

`inputs` reads the topics, `offers` keeps the extended resources of Nodes, `objects` the custom
resources, each as features that name what is due; `writing` lets them write, one at a time and no
faster than the budget; `actuator` puts it together under a lease.
"""
