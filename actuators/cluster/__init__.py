"""The cluster actuator: Mid, Batch, NodeMetric and NodeSLO on the API server, from the topics.

`cluster_actuator` feeds topics and lists to features (`feature` has their protocol) and executes
their writes in the order of `write_queue`. Features: `offer_writer` writes resources of Nodes,
`node_metrics` and `node_slos` write `custom_resources`, `cooled_nodes` wakes pending pods.
"""
