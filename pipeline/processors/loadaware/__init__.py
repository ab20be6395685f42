"""LoadAwareScheduling of Koordinator: filter and score nodes by usage plus pods in flight.

`loadaware_args` are the arguments by upstream's names, `pod_estimate` what a pod will use,
`in_flight` what of that a node's usage lacks, `node_thresholds` the thresholds of a node,
`node_usage` the usage that they are for, `filter_score` the comparison. Amounts are whole
millicores and bytes.
"""
