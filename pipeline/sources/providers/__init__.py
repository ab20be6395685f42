"""Providers: usage of nodes and pods from other systems, for clusters without our exporter.

`protocol` declares what a source is, `registry` finds it by name. `prometheus_provider`,
`metrics_server` and `samples_provider` (our own samples) are the built-in ones. `cluster_topics`
follows nodes, pods and exporters, `window_rounds` publishes window after window, `status_page`
serves health and metrics.
"""
