"""What the users' ConfigMap says of colocation, and what that comes to for one node.

`colocation` has the keys, their ranges and defaults; `selectors` which nodes an entry is for;
`loading` makes a `Policy` of a ConfigMap and keeps the last good one; `effective` resolves it for a
node. `nodemetric` is what a NodeMetric asks of it; `normalization` and `amplification` have keys of
their own, and what they come to on a node. Names, ranges and order of merging are Koordinator's
(colocation 7, 8, 13).
"""
