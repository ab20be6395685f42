"""What the users' ConfigMap says of colocation and quality of service, and what that is for a node.

`colocation` has the keys, their ranges and defaults; `selectors` which nodes an entry is for;
`loading` makes a `Policy` of a ConfigMap and keeps the last good one; `effective` resolves it for a
node; `in_force` does so for all of it. `springtide` has the keys that are ours, `contradictions`
what cannot be meant together. `normalization` and `amplification` have keys of their own, and what
they come to on a node. Names, ranges and order of merging are Koordinator's (colocation 7, 8, 13).
`slo_defaults`, `slo_checks`, `slo_loading` and `node_slo` are the same for the rules of quality of
service (colocation 14, node-qos 2), whose fields are in `pipeline.processors.slo.nodeslo`.
"""
