"""Usage that others have measured, as rows of `springtide.samples`.

`usage` is what any source gives of one window; `promql` and `prometheus` say what Prometheus is
asked and read its answers, `metrics_api` reads those of metrics-server; `sampling` makes a sample
of each node.
"""
