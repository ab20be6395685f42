"""What the users' ConfigMap says of colocation and quality of service; what that is for a node.

`sections` reads a key, `selectors` says which nodes an entry is for, `loading` makes a `Policy` of
a key and keeps the last good one. `colocation` has the keys of colocation, their ranges and
defaults, `effective` resolves them for a node; `springtide` has the keys that are ours.
`normalization` and `amplification` have keys of their own, and what they come to on a node.
`slo_defaults`, `slo_checks`, `slo_loading` and `node_slo` are the same for the rules of quality of
service (colocation 14, node-qos 2), whose fields are in `pipeline.processors.slo.nodeslo`.

`in_force` does all of it: every key, and the record of a node with what holds for it. What cannot
be meant together, also with our scheduler extender, is in `contradictions`. Names, ranges and order
of merging are Koordinator's (colocation 7, 8, 13).
"""
