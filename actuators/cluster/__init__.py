"""The cluster actuator: Mid, Batch, NodeMetric and NodeSLO on the API server, as the topics say.

`offers` keeps the extended resources of Nodes, `objects` and `metrics`
the custom resources, `cooling` tells the scheduler of nodes that have cooled: each names what is
due. `writing` lets them write, one at a time and no faster than the budget; `actuator` puts it
together under a lease.
"""
