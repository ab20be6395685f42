"""Collect usage from cgroups and /proc on every node and publish it to Kafka as windows.

`node_exporter.kernel` reads the kernel's files and is shared with the node actuator. The other
modules sample, aggregate windows on the UTC grid, publish them to Kafka and serve the last minute
on a local socket.
"""
