"""Providers: usage of nodes and pods from other systems, for clusters without our exporter.

`protocol` declares the interface and `registry` finds the sources. `prometheus_provider`,
`metrics_server` and `stream_provider` implement it. `cluster_topics` follows nodes, pods and
exporters, `window_rounds` publishes windows to `springtide.samples`, and `status_page` serves
health and metrics.
"""
