"""LoadAwareScheduling of Koordinator: filter and score nodes by usage plus pods in flight.

`loadaware_args` reads the arguments, by upstream's names. `pod_estimate` estimates the usage of a
pod, `in_flight` the part of it that is not yet in the node's usage. `node_thresholds` has the
thresholds of a node, `node_usage` the usage that they limit, `filter_score` the comparison. Amounts
are whole millicores and bytes.
"""
