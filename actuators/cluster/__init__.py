"""The cluster actuator: Mid, Batch, NodeMetric and NodeSLO on the API server, from the topics.

`cluster_actuator` feeds topics and lists to features (`feature` has their protocol) and executes
their writes in the order of `write_queue`. Features: `offer_writer` writes resources of Nodes,
`node_metric_objects` and `node_slo_objects` write `custom_resources`, `node_marks` annotations and
labels, `cooled_nodes` wakes pending pods.
"""
