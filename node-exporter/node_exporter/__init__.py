"""The collector that runs on every node: usage from cgroups and /proc, windows to Kafka.

`node_exporter.kernel` reads the kernel's files and is imported by the node actuator as well; the
rest samples, closes windows on the UTC grid, publishes them and serves the last seconds on a local
socket.
"""
