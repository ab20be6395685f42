"""The cluster actuator: Mid, Batch, NodeMetric and NodeSLO on the API server, from the topics.

`cluster_actuator` feeds topics and lists to features and executes their writes in the order of
`write_queue`. A feature is a subclass of `feature.Feature` that declares its name, modes, topics
and annotations; `cluster_actuator.FEATURES` lists them. All features share one queue, because the
limit of writes is one for the API server.
"""
