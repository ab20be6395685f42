"""`springtide provider`: import usage that other systems measured, for nodes without an exporter.

`sample_source` declares what a sample source is, and `registry` finds sample sources by name.
`provider_cluster_state` follows nodes, pods and exporters, `window_rounds` publishes windows to
`springtide.samples`, and `status_page` serves health and metrics.
"""
