"""What a cluster wastes, from a week of usage by hour.

`cluster_usage` is the input: pods on nodes and what they used in each hour. `prod_peaks`,
`tier_offers`, `sized_workloads` and `hot_hours` compute the parts that `cluster_report` joins;
`report_text`, `report_rows` and `report_page` show them. `prometheus_queries` and
`prometheus_history` get the input from a Prometheus.
"""
