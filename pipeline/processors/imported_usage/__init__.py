"""Convert usage that Prometheus or metrics-server measured into rows of `springtide.samples`.

`fetched_usage` is the usage of one window from any source. `promql` has the queries, and
`prometheus_answers` reads their answers; `metrics_api` reads lists of metrics-server.
`usage_samples` makes a sample of each node.
"""
