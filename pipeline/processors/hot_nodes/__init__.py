"""Detection of hot nodes: usage against thresholds, debounce, alert records.

Everything here is a function of the windows of a node, in their order. Arrays have a row per node
and, where it says so, the four rules of `pipeline.topics.alerts.RULES`; NaN is unknown.
"""
