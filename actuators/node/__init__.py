"""Node actuator: holds pods of low classes down and protects Prod, by the cgroups of its node.

`node_actuator` runs the rounds: `newest_view` and `live_usage` give the inputs, `node_reading` puts
them together, the features of `pipeline.processors.node_qos` decide, `cgroup_writer` writes.
"""
